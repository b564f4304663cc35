"""A run of the main job that takes seconds, with everything that it leaves behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from truebatch import Key, records
from truebatch.data import Features, Source, open_source
from truebatch.records import RunConfig, RunPlan, Split
from trust.fault import replaced

KEY = Key.for_tests(7004)
# 480 rows train, in epochs of 24 steps: a shuffle fits the same numbers.
NUM_ROWS = 600
CONFIG: dict[str, Any] = {
    "batch_size": 20,
    "steps": 48,
    "epsilon": 5.0,
    "delta": 1e-5,
    "model": "linear",
    "learning_rate": 0.05,
}


def source(place: Path) -> Source:
    """The rows that train, written down first where they are not yet."""
    path = place / "rows.parquet"
    if not path.exists():
        rng = np.random.default_rng(11)
        x, c = rng.normal(size=NUM_ROWS), rng.integers(0, 4, NUM_ROWS)
        label = (x + (c == 2) + rng.normal(size=NUM_ROWS) > 0).astype(np.int8)
        pq.write_table(pa.table({"label": label, "x": x, "c": [f"v{i}" for i in c]}), path)
    return open_source(path)


def finished(place: Path, *, gathers: bool = False, key: Key = KEY, **changed: Any) -> Path:
    """The directory of a finished run, with written batches unless it `gathers`."""
    rows = source(place)
    features = Features.infer(rows.schema, label="label", buckets=8)
    plan = RunPlan.of(rows, features, RunConfig(**{**CONFIG, **changed}), Split())
    object.__setattr__(plan, "gathers", gathers)
    # What other samplers would have to claim takes most of a small run's time, and no check reads it.
    with replaced({"truebatch.records.run:comparison": lambda _: []}):
        records.run(plan, place / "run", key)
    return place / "run"
