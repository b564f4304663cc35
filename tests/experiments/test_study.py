"""The study: what each arm adds, what is kept and found again, and what is drawn."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest

from truebatch import accounting
from truebatch.data import Features, TableSource
from truebatch.errors import InvalidArgument, InvalidData, SourceChanged
from truebatch.experiments.study_cells import ARMS, SWEEPS, Cell, Sweep
from truebatch.experiments.study_figures import series, write_study
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
    rows = run_sweep(study, SWEEP, lambda *now: seen.append(now))
    good, bad = rows[:4], rows[4:]
    assert all("at most the number of training rows" in row["why"] for row in bad)
    assert all(row["auc"] > 0.6 and row["seeds"] == 2 for row in good)
    assert [row["may_claim"] is None for row in good] == [False, False, True, True]
    assert good[0]["may_claim"] <= 5 < good[1]["may_claim"]
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()}
    assert len(kept) == 4 * 3
    assert run_sweep(study, SWEEP) == rows
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "cells").iterdir()} == kept
    one = json.loads(next((tmp_path / "cells").glob("truncated_poisson-*.json")).read_text())
    assert {"cell", "claim", "metrics", "source", "versions"} <= one.keys()
    with pytest.raises(SourceChanged, match="one source"):
        Study(source(1), FEATURES, tmp_path).result(SWEEP.tuning(next(SWEEP.points()))[0])
    paths = write_study(SWEEP, rows, tmp_path)
    assert [path.suffix for path in paths] == [".csv", ".png", ".svg"]
    assert len(paths[0].read_text().splitlines()) == 9
    assert series(SWEEP, rows)["panels"][1]["common_mistake"][0][0] == 60


def test_a_study_without_results_is_not_drawn(tmp_path) -> None:
    with pytest.raises(InvalidData, match="too large"):
        write_study(SWEEP, [{"arm": "x", "why": "too large"}], tmp_path)
