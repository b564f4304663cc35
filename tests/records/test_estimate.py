"""How long a run will step: from real steps on made-up rows, and nothing read."""

import json

import numpy as np
import pyarrow as pa
import pytest

from truebatch.cli import main
from truebatch.data import Features, TableSource
from truebatch.errors import InvalidSpec
from truebatch.records import RunConfig, RunPlan, Split
from truebatch.records.estimate import Estimate, estimate

FEATURES = Features(label="label", numeric=("x",), categorical=("c",), buckets=50_000)
GOAL = {"batch_size": 200, "epochs": 1, "epsilon": 5.0, "delta": 1e-5}


class Unread(TableSource):
    """A source that must not be read."""

    def read(self, start: int, stop: int):
        raise AssertionError("a row was read")


def plan(**config) -> RunPlan:
    rows = pa.table({"label": np.zeros(4000, np.int8), "x": np.zeros(4000), "c": np.zeros(4000, np.int32)})
    return RunPlan.of(Unread(rows), FEATURES, RunConfig(**GOAL | config), Split())


def test_steps_are_taken_without_a_look_at_the_rows() -> None:
    found = estimate(plan(model="linear"))
    assert found.num_steps == 16
    assert 0 < found.step_s < 60
    assert found.stepping_s == 16 * found.step_s


def test_a_model_that_works_more_takes_longer() -> None:
    small = estimate(plan(model="click", dimension=2, hidden=(4,))).step_s
    large = estimate(plan(model="click", dimension=100, hidden=(4,))).step_s
    assert large > 4 * small


@pytest.mark.parametrize("config", [{"private": False, "epsilon": None}, {"sampler": "persistent_shuffle"}])
def test_runs_of_every_kind_have_an_estimate(config) -> None:
    assert estimate(plan(model="linear", **config)).step_s > 0
    assert estimate(plan(model="linear", **config), constant_time=True).step_s > 0


def test_the_estimate_is_said_in_words_that_promise_no_more() -> None:
    said = str(Estimate(step_s=1.5, num_steps=1000))
    assert said.startswith(
        "about 25 minutes of stepping, from steps of 1.5 s taken just now on made-up rows;"
    )


def test_a_sampler_whose_batches_have_no_largest_is_refused_before_anything_is_done() -> None:
    with pytest.raises(InvalidSpec, match="largest batch"):
        plan(sampler="poisson")


def test_a_dry_run_says_time_and_memory_and_writes_nothing(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("label,x\n" + "0,1.5\n1,2.5\n" * 500)
    line = "train rows.csv --epsilon 5 --delta 1e-5 --batch-size 50 --epochs 1 --model linear --out run"
    assert main([*line.split(), "--dry-run", "--json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)["estimate"]
    assert found["stepping_seconds"] == pytest.approx(16 * found["step_seconds"])
    assert found["memory_bytes"] > 0
    assert "of stepping, from steps of" in out.err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
