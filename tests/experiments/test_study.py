"""The study: what each arm adds, what is kept and found again, and what is drawn."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from truebatch import accounting
from truebatch.cli import main
from truebatch.data import Features, TableSource
from truebatch.errors import InvalidArgument, InvalidData, SourceChanged
from truebatch.experiments.study_cells import ARMS, SWEEPS, Cell, Sweep
from truebatch.experiments.study_figures import series, write_study
from truebatch.experiments.study_results import read_results, summary, write_bundle
from truebatch.experiments.study_runs import Study, run_sweep

FEATURES = Features(label="label", numeric=("x",), categorical=("c",), buckets=8)
SWEEP = Sweep(
    name="auc-by-batch-size",
    arms=("truncated_poisson", "dynamic_shuffle", "common_mistake", "plain_dynamic"),
    batch_sizes=(60, 5000),
    epsilons=(5.0,),
    epochs=(1,),
    learning_rates=(0.01, 0.1),
    clip_norms=(1.0,),
    num_seeds=2,
)
CELL = Cell(
    arm="dynamic_shuffle", batch_size=60, epochs=1, epsilon=5.0, delta=1e-6,
    learning_rate=0.1, clip_norm=1.0, seed=0,
)  # fmt: skip


def source(seed: int = 0) -> TableSource:
    rng = np.random.default_rng(seed)
    x, c = rng.normal(size=1200), rng.integers(0, 3, 1200)
    label = (x + c + rng.normal(size=1200) > 1).astype(np.int8)
    return TableSource(pa.table({"label": label, "x": x, "c": c}))


def test_shuffles_take_the_noise_they_need_at_least_and_claim_what_may_be_claimed() -> None:
    config = CELL.config(960)
    ends = accounting.sigma(config.spec(960), epsilon=5.0, delta=1e-6)
    assert config.sigma == ends.lower.value < ends.upper.value
    assert config.epsilon is None


def test_the_common_mistake_takes_poissons_noise_and_says_so() -> None:
    config = dataclasses.replace(CELL, arm="common_mistake").config(960)
    assert (config.sampler, config.accounted_as, config.epsilon) == ("dynamic_shuffle", "poisson", 5.0)


def test_arms_without_privacy_add_none() -> None:
    assert [arm.name for arm in ARMS.values() if arm.noise_of is None] == [
        "plain_poisson", "plain_persistent", "plain_dynamic",
    ]  # fmt: skip
    assert dataclasses.replace(CELL, arm="plain_dynamic").config(960).private is False


@pytest.mark.parametrize("arm", ["truncated_poisson", "common_mistake"])
def test_where_nothing_may_be_claimed_the_noise_is_that_of_ideal_draws(arm: str) -> None:
    """e^64 times the statistical distance of real draws leaves no delta."""
    config = dataclasses.replace(CELL, arm=arm, epsilon=64.0, delta=1e-4).config(960)
    assert config.epsilon is None
    assert config.sigma is not None
    spec = config.spec(960, sampler=config.accounted_as)
    ideal = accounting.sigma(spec, epsilon=64.0, delta=1e-4).upper.value
    assert config.sigma == pytest.approx(ideal, rel=1e-6)


def test_every_field_of_a_cell_shows_in_its_name() -> None:
    changes = {"batch_size": 61, "epochs": 2, "epsilon": 4.0, "delta": 1e-5, "learning_rate": 0.2,
               "clip_norm": 2.0, "seed": 1, "model": "click", "optimizer": "sgd"}  # fmt: skip
    names = {dataclasses.replace(CELL, **{field: value}).name for field, value in changes.items()}
    assert len(names | {CELL.name}) == len(changes) + 1


def test_an_unknown_arm_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="one of deterministic"):
        dataclasses.replace(SWEEP, arms=("best",))


def test_the_papers_sweeps_have_its_epsilons_and_batch_sizes() -> None:
    assert SWEEPS["auc-by-epsilon"].epsilons == tuple(2.0**i for i in range(9))
    assert SWEEPS["auc-by-batch-size"].batch_sizes[0] == 1024
    assert len(list(SWEEPS["auc-by-batch-size"].points())) == 2 * 7 * 8


def test_a_sweep_is_trained_once_tuned_on_validation_and_drawn_from_its_files(tmp_path) -> None:
    seen: list[tuple[int, int, str]] = []
    study = Study(source(), FEATURES, tmp_path)
    failures = run_sweep(study, SWEEP, lambda *now: seen.append(now))
    assert len(failures) == 4
    assert all("b = 5000" in why and "at most the number of training rows" in why for why in failures)
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert len(kept) == 4 * 3
    assert run_sweep(study, SWEEP) == failures
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == kept
    one = json.loads(next((tmp_path / "cells").glob("truncated_poisson-*.json")).read_text())
    assert {"cell", "claim", "metrics", "source", "versions"} <= one.keys()
    with pytest.raises(SourceChanged, match="one source"):
        Study(source(1), FEATURES, tmp_path).result(SWEEP.tuning(next(SWEEP.points()))[0])
    found = summary(SWEEP.name, read_results(tmp_path), SWEEP)
    assert all(row["auc"] > 0.6 and row["seeds"] == 2 and row["tried"] == 2 for row in found.rows)
    claims = {row["arm"]: row["may_claim"] for row in found.rows}
    assert claims["common_mistake"] is claims["plain_dynamic"] is None
    assert claims["truncated_poisson"] <= 5 < claims["dynamic_shuffle"]
    assert found.note == "incomplete: of 8 points 4 have all their runs, 0 some of them"
    paths = write_study(found, tmp_path)
    assert [path.suffix for path in paths] == [".csv", ".png", ".svg"]
    assert len(paths[0].read_text().splitlines()) == 5
    assert series(found)["panels"][1]["common_mistake"][0][0] == 60


def results(*changes: dict) -> dict[Cell, dict]:
    """Finished runs that were never trained: a cell each, and its AUC on both parts."""
    found = {}
    for change in changes:
        scores = {f"{part}_auc": change.get(part, 0.6) for part in ("valid", "test")}
        cell = dataclasses.replace(CELL, **{k: v for k, v in change.items() if k not in ("valid", "test")})
        claim = {"sigma": 1.0, "epsilon": 5.0, "private": True}
        found[cell] = {
            "format": "truebatch-study/1", "source": {"rows": 9}, "cell": dataclasses.asdict(cell),
            "claim": claim, "metrics": scores,
        }  # fmt: skip
    return found


RUNS = results(
    {"learning_rate": 0.01, "valid": 0.7, "test": 0.65},
    {"learning_rate": 0.1, "valid": 0.6, "test": 0.8},
    {"learning_rate": 0.01, "seed": 1, "valid": 0.5, "test": 0.67},
    {"learning_rate": 0.1, "seed": 1, "valid": 0.9, "test": 0.9},
)


def test_validation_rows_choose_with_the_first_seed_and_test_rows_never_do() -> None:
    (row,) = summary("auc-by-batch-size", RUNS).rows
    assert (row["learning_rate"], row["seeds"], row["tried"]) == (0.01, 2, 2)
    assert row["auc"] == pytest.approx((0.65 + 0.67) / 2)


def test_a_figure_holds_one_epsilon_and_one_kind_of_run_and_says_what_it_left_out() -> None:
    runs = RUNS | results({"epsilon": 1.0}, {"epsilon": 2.0}, {"model": "click"}, {"arm": "plain_dynamic"})
    found = summary("auc-by-batch-size", runs)
    assert [(row["arm"], row["epsilon"]) for row in found.rows] == [
        ("dynamic_shuffle", 5.0),
        ("plain_dynamic", 5.0),
    ]
    assert "1 runs of another model" in found.note
    assert "of 112 points 0 have all their runs" in found.note
    assert found.held == "epsilon = 5"
    by_epsilon = summary("auc-by-epsilon", runs)
    assert [row["epsilon"] for row in by_epsilon.rows] == [1.0, 2.0, 5.0]
    assert by_epsilon.held == "b = 60"


def test_a_whole_sweep_has_nothing_to_say() -> None:
    sweep = dataclasses.replace(SWEEP, arms=("dynamic_shuffle",), batch_sizes=(60,))
    (point,) = sweep.points()
    cells = sweep.tuning(point)
    runs = {cell: run for cell in cells for run in results(dataclasses.asdict(cell)).values()}
    assert summary(sweep.name, runs, sweep).note != ""
    (repeat,) = sweep.repeats(cells[0])
    runs |= results(dataclasses.asdict(repeat))
    assert summary(sweep.name, runs, sweep).note == ""


@pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz"])
def test_a_bundle_holds_every_run_and_its_bytes_follow_from_them(name, tmp_path) -> None:
    write_bundle(RUNS, tmp_path / name)
    before = (tmp_path / name).read_bytes()
    assert read_results(tmp_path / name) == RUNS
    write_bundle(dict(reversed(RUNS.items())), tmp_path / name)
    assert (tmp_path / name).read_bytes() == before


def test_a_directory_and_its_bundle_draw_the_same_figure(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study" / "cells").mkdir(parents=True)
    for cell, run in RUNS.items():
        (tmp_path / "study" / "cells" / f"{cell.name}.json").write_text(json.dumps(run))
    assert main(["study", "--bundle", "runs.jsonl.gz"]) == 0
    assert main(["figure", "auc-by-batch-size", "--out", "a"]) == 0
    assert "incomplete: of 112 points 0 have all their runs, 0 some of them" in capsys.readouterr().err
    assert main(["figure", "auc-by-batch-size", "--runs", "runs.jsonl.gz", "--out", "b"]) == 0
    for suffix in ("csv", "png"):
        name = f"auc-by-batch-size.{suffix}"
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_figures_of_auc_without_runs_name_the_study(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["figure", "auc-by-epsilon"]) == 2
    said = capsys.readouterr().err
    assert "there are none in 'study'" in said
    assert "truebatch study" in said
    assert main(["figure", "sigma-by-epochs", "--runs", "study"]) == 2


DAMAGE = {
    "no JSON": (lambda run: "{", "must be JSON"),
    "a list": (lambda run: "[]", "must hold its cell"),
    "another format": (lambda run: json.dumps(run | {"format": "x"}), "must be of format"),
    "no metrics": (lambda run: json.dumps({k: v for k, v in run.items() if k != "metrics"}), "must hold"),
    "an unknown arm": (lambda run: json.dumps(run | {"cell": run["cell"] | {"arm": "best"}}), "must hold"),
    "a list for a number": (
        lambda run: json.dumps(run | {"cell": run["cell"] | {"epsilon": []}}),
        "must hold",
    ),
    "AUC of 2": (lambda run: json.dumps(run | {"metrics": {"valid_auc": 2, "test_auc": 2}}), "must hold"),
    "another source": (lambda run: json.dumps(run | {"source": 1}), "one source"),
    "another result": (lambda run: json.dumps(run | {"seconds": 1}), "one result"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_run_that_is_not_one_is_refused_by_its_name(what, tmp_path) -> None:
    change, says = DAMAGE[what]
    first = next(iter(RUNS.values()))
    (tmp_path / "a.json").write_text(json.dumps(first))
    (tmp_path / "b.json").write_text(change(first))
    with pytest.raises(InvalidData, match=rf"b\.json.*{says}|{says}.*b\.json"):
        read_results(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{}\n", b"\x1f\x8b\x08broken", b"\xff\xfe"])
def test_what_is_no_bundle_is_refused(data, tmp_path) -> None:
    for name in ("runs.jsonl", "runs.jsonl.gz"):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InvalidData, match=r"runs\.jsonl"):
            read_results(tmp_path / name)


def test_runs_of_other_points_alone_are_not_drawn() -> None:
    with pytest.raises(InvalidData, match="no run of auc-by-epsilon"):
        summary("auc-by-epsilon", results({"arm": "plain_dynamic"}))
