"""Small jobs of the command line: their rows, their words, and what they leave behind."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from truebatch.cli import main

KEY = "--public-test-seed 3"
BATCHES = f"--batch-size 200 --steps 60 --max-batch-size 230 --memory 200KB {KEY}"
TRAIN = f"--sigma 2 --delta 1e-5 --batch-size 100 --steps 80 --model linear --buckets 16 {KEY}"


def table(n: int, *, nulls: bool = False, seed: int = 0) -> pa.Table:
    """Labels, a number and a category; with nulls, batches go by buckets, and in place without."""
    rng = np.random.default_rng(seed)
    x, c = rng.normal(size=n), rng.integers(0, 5, n)
    label = (x + (c == 2) + rng.normal(size=n) > 0).astype(np.int8)
    columns = [pa.array(label), pa.array(x), pa.array(c.astype(np.int32))]
    fields = [pa.field(name, a.type, nullable=nulls) for name, a in zip("lxc", columns, strict=True)]
    return pa.table(columns, schema=pa.schema(fields)).rename_columns(["label", "x", "c"])


def write_rows(path: Path, n: int = 4000, **more: object) -> Path:
    pq.write_table(table(n, **more), path)  # type: ignore[arg-type]
    return path


def command(line: str) -> int:
    """The exit code of a command line."""
    try:
        return main(line.split())
    except SystemExit as stop:
        return int(stop.code or 0)


def batches(rows: Path, out: Path) -> int:
    return command(f"batches {rows} --out {out} {BATCHES}")


def train(rows: Path, out: Path) -> int:
    return command(f"train {rows} --out {out} {TRAIN}")


def contents(out: Path) -> dict[str, bytes]:
    """All files of a directory of batches."""
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}


def result(out: Path) -> dict[str, object]:
    """What a finished run's record says came out: the digest of the model's file, and all metrics."""
    record = json.loads((out / "run.json").read_text())
    return {name: record[name] for name in ("checkpoint", "metrics", "batches", "claim")}
