import dataclasses
import json

import pytest

import truebatch
from truebatch.accounting import Adjacency
from truebatch.errors import InvalidArgument
from truebatch.experiments import sigma_points
from truebatch.experiments.sigma_grids import Point, Question
from truebatch.experiments.sigma_points import (
    Answer,
    PointCache,
    cache_key,
    default_cache_dir,
    open_cache,
    solve,
)
from truebatch.specs import Deterministic, DynamicShuffle, PersistentShuffle

SPEC = PersistentShuffle(num_examples=1000, batch_size=10, num_steps=200)
POINT = Point(spec=SPEC, epsilon=1.0, delta=1e-6)
ANSWER = Answer(lower=0.1 + 0.2, upper=None, source_lower="a proof", source_upper="nothing is known")


@pytest.mark.parametrize(
    "change",
    [
        {"spec": dataclasses.replace(SPEC, num_steps=300)},
        {"spec": dataclasses.replace(SPEC, batch_size=20)},
        {"spec": dataclasses.replace(SPEC, num_examples=2000)},
        {"spec": DynamicShuffle(num_examples=1000, batch_size=10, num_steps=200)},
        {"epsilon": 1.0000000000000002},
        {"delta": 1.0000000000000002e-6},
        {"adjacency": Adjacency.REPLACE_ONE},
        {"question": Question.CLONES_STEPS},
        {"dear": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_key_changes_with_every_input(change):
    assert cache_key(dataclasses.replace(POINT, **change)) != cache_key(POINT)


def test_the_key_changes_with_the_version_and_with_the_accountants_source(monkeypatch):
    before = cache_key(POINT)
    with monkeypatch.context() as patch:
        patch.setattr(truebatch, "__version__", "0.0.0")
        assert cache_key(POINT) != before
    monkeypatch.setattr(sigma_points, "_source_digest", lambda: "another source")
    assert cache_key(POINT) != before


def test_the_source_digest_sees_a_change_of_one_byte(tmp_path, monkeypatch):
    def digest():
        sigma_points._source_digest.cache_clear()
        return sigma_points._source_digest()

    room = tmp_path / "accounting"
    room.mkdir()
    (room / "__init__.py").write_text("x = 1\n")
    (tmp_path / "specs.py").write_text("")
    with monkeypatch.context() as patch:
        patch.setattr(sigma_points.accounting, "__file__", str(room / "__init__.py"))
        before = digest()
        (room / "__init__.py").write_text("x = 2\n")
        assert digest() != before
    sigma_points._source_digest.cache_clear()


def test_a_stored_answer_comes_back_bit_for_bit(tmp_path):
    cache = PointCache(tmp_path)
    assert cache.load(POINT) is None
    cache.store(POINT, ANSWER)
    assert cache.load(POINT) == ANSWER
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]


def _half(text):
    return text[: len(text) // 2]


def _other_number(text):
    return text.replace("0.30000000000000004", "0.2")


def _other_shape(text):
    return json.dumps([json.loads(text)])


def _other_key(text):
    entry = json.loads(text)
    return json.dumps({**entry, "key": "0" * 64})


@pytest.mark.parametrize(
    "damage",
    [_half, _other_number, _other_shape, _other_key, lambda _: "", lambda _: "\0" * 100, lambda _: "NaN"],
)
def test_a_damaged_file_is_not_trusted(tmp_path, damage):
    cache = PointCache(tmp_path)
    cache.store(POINT, ANSWER)
    (path,) = tmp_path.iterdir()
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    assert cache.load(POINT) is None
    cache.store(POINT, ANSWER)
    assert cache.load(POINT) == ANSWER


def test_an_answer_filed_under_another_points_name_is_not_trusted(tmp_path):
    cache = PointCache(tmp_path)
    cache.store(POINT, ANSWER)
    (path,) = tmp_path.iterdir()
    other = dataclasses.replace(POINT, epsilon=2.0)
    path.rename(tmp_path / f"{cache_key(other)}.json")
    assert cache.load(other) is None


def test_a_directory_that_cannot_be_is_refused_when_asked_for(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InvalidArgument, match="cache directory"):
        open_cache(file)


def test_without_a_writable_platform_cache_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    cache = open_cache(None)
    cache.store(POINT, ANSWER)
    assert cache.load(POINT) is None


def test_the_platform_cache_follows_xdg(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "truebatch" / "sigma"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert default_cache_dir().parts[-3:] == (".cache", "truebatch", "sigma")


def test_a_point_is_answered_by_the_accountant():
    spec = Deterministic(num_examples=1000, batch_size=10, num_steps=100)
    ends = truebatch.accounting.sigma(spec, epsilon=1.0, delta=1e-6)
    answer = solve(Point(spec=spec, epsilon=1.0, delta=1e-6))
    assert (answer.lower, answer.upper) == (ends.lower.value, ends.upper.value)
    assert (answer.source_lower, answer.source_upper) == (ends.lower.source, ends.upper.source)


def test_an_optimistic_reading_is_no_bound():
    spec = PersistentShuffle(num_examples=36672512, batch_size=1024, num_steps=35813)
    point = Point(spec=spec, epsilon=5.0, delta=2.7e-8, question=Question.CLONES_STEPS)
    answer = solve(point)
    assert answer.lower is None
    assert answer.upper == pytest.approx(1.0444, abs=2e-4)
    assert "not a bound" in answer.source_upper
