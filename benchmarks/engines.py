"""Batches by engines of many machines, on one: rows a second and peak memory, beside the printed Beam code.

    pip install -e '.[beam,spark]'
    python benchmarks/engines.py                    # 100,000 rows, three rounds: three minutes
    python benchmarks/engines.py --rows 1000000 --rounds 1

Rows are like Criteo's, 157 bytes, in an Arrow IPC file; one epoch in 16 batches. What each side does:

  printed   the idea of the paper's Appendix A on Beam's Direct runner: every row, a protocol buffer, draws
            the gaps between its batches from a generator; rows are grouped one by one and sampled to B, and
            batches are padded with copies of a row. Nothing is written
  bytes     the same where a row is 157 bytes, and has no weight
  beam      BeamEngine on the same runner; the batches are on disk when it ends
  beam-2    the same with two worker processes
  spark     SparkEngine at local[2]; the session runs already
  local     the embedded engine, for scale

Each side is a process of its own, and sides take turns. Seconds are of the work alone, without imports and
start of a session. Memory is the process's peak, or that of the largest of its children.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from pyspark.sql import SparkSession

from truebatch import Key, TruncatedPoisson
from truebatch.batching import LocalEngine, make_batches
from truebatch.batching.beam import BeamEngine
from truebatch.batching.engine import Engine
from truebatch.batching.spark import SparkEngine
from truebatch.data import Layout, open_source, pack

# What is pickled for workers is then found by name; pieces of a script are not.
AS_MODULE = "import engines; engines.main()"
SIDES = ("printed", "bytes", "beam", "beam-2", "spark", "local")
STEPS = 16
ROW_BYTES = 157


def spec_for(rows: int) -> TruncatedPoisson:
    b = rows // STEPS
    return TruncatedPoisson(
        num_examples=rows, batch_size=b, num_steps=STEPS, max_batch_size=b + 6 * math.isqrt(b)
    )


def write_source(path: Path, rows: int) -> None:
    fields = [pa.field("label", pa.int8(), nullable=False)]
    for name, k in (("i", 13), ("c", 26)):
        kind = pa.list_(pa.field("item", pa.int32(), nullable=False), k)
        fields.append(pa.field(name, kind, nullable=False))
    schema, rng = pa.schema(fields), np.random.default_rng(0)
    with pa.ipc.new_file(str(path), schema) as writer:
        for start in range(0, rows, 2**16):
            k = min(2**16, rows - start)
            columns = [pa.array(rng.integers(0, 2, k).astype(np.int8))]
            for field in fields[1:]:
                items = pa.array(rng.integers(0, 2**31, k * field.type.list_size).astype(np.int32))
                columns.append(pa.FixedSizeListArray.from_arrays(items, type=field.type))
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


class DrawBatches(beam.DoFn):
    """Draws the gaps between a row's batches from a generator that it carries, as printed."""

    def __init__(self, num_steps: int, prob: float) -> None:
        self.rng, self.num_steps, self.prob = np.random.default_rng(), num_steps, prob

    def process(self, row: Any) -> Iterator[tuple[int, Any]]:
        """(batch, row) for every batch of a row; batches count from 1."""
        batch = int(self.rng.geometric(self.prob))
        while batch <= self.num_steps:
            yield batch, row
            batch += int(self.rng.geometric(self.prob))


def messages() -> Any:
    """A protocol buffer like those the paper's rows are: a map from names to lists of one of three kinds."""
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package="rows", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    feature = file.message_type.add(name="Feature")
    for i, (name, kind) in enumerate([("bytes", 12), ("floats", 2), ("ints", 3)], start=1):
        feature.field.add(name=name, number=i, type=kind, label=kinds.LABEL_REPEATED)
    row = file.message_type.add(name="Row")
    entry = row.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    inner = {"type": kinds.TYPE_MESSAGE, "label": kinds.LABEL_OPTIONAL}
    entry.field.add(name="value", number=2, type_name=".rows.Feature", **inner)
    inner["label"] = kinds.LABEL_REPEATED
    row.field.add(name="feature", number=1, type_name=".rows.Row.FeatureEntry", **inner)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = message_factory.GetMessageClass(pool.FindMessageTypeByName("rows.Row"))
    found.__module__ = __name__
    return found


Row = messages()


def read_rows(source: Path, rows: int, first: int, as_messages: bool) -> Iterator[Any]:
    held = open_source(str(source))
    layout = Layout.of(held.schema)
    for piece in held.read(first, min(first + 2**14, rows)):
        packed = pack(piece, layout)
        if not as_messages:
            yield from (row.tobytes() for row in packed)
            continue
        values = np.ascontiguousarray(packed[:, 1:]).view("<i4")
        for label, numbers in zip(packed[:, 0].tolist(), values.tolist(), strict=True):
            row = Row()
            row.feature["label"].ints.append(label)
            for i, number in enumerate(numbers):
                row.feature[f"I{i + 1}" if i < 13 else f"C{i - 12}"].ints.append(number)
            yield row


def weighted(row: Any) -> Any:
    copy = Row()
    copy.CopyFrom(row)
    copy.feature["weight"].floats[:] = [1.0]
    return copy


def padding_of(row: Any) -> Any:
    copy = Row()
    copy.CopyFrom(row)
    copy.feature["weight"].floats[:] = [0.0]
    return copy


def printed(source: Path, rows: int, *, as_messages: bool) -> None:
    spec = spec_for(rows)

    def padded(batch: tuple[int, list[Any]]) -> tuple[int, list[Any]]:
        step, held = batch
        padding = padding_of(held[0]) if as_messages else held[0]
        return step, held + [padding] * (spec.max_batch_size - len(held))

    with beam.Pipeline("FnApiRunner") as pipeline:
        read = pipeline | beam.Create(range(0, rows, 2**14))
        read = read | "rows" >> beam.FlatMap(lambda first: read_rows(source, rows, first, as_messages))
        if as_messages:
            read = read | "weight" >> beam.Map(weighted)
        _ = (
            read
            | "draw" >> beam.ParDo(DrawBatches(spec.num_steps, float(spec.sampling_prob)))
            | "cut" >> beam.combiners.Sample.FixedSizePerKey(spec.max_batch_size)
            | "pad" >> beam.Map(padded)
            | "count" >> beam.Map(lambda batch: len(batch[1]))
        )


def engine_for(side: str) -> Engine:
    if side == "local":
        return LocalEngine()
    if side == "spark":
        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
        return SparkEngine("local[2]")
    processes = ["--direct_running_mode=multi_processing", "--direct_num_workers=2"]
    return BeamEngine(processes if side == "beam-2" else [])


def work_of(side: str, source: Path, rows: int, out: Path) -> Callable[[], object]:
    """What is timed."""
    if side in ("printed", "bytes"):
        return lambda: printed(source, rows, as_messages=side == "printed")
    engine = engine_for(side)
    return lambda: make_batches(
        str(source), spec_for(rows), out, Key.for_tests(0), engine=engine, memory=2**28, workers=2
    )


def one_side(side: str, source: Path, rows: int) -> None:
    """Run one side here, and print what it took."""
    with tempfile.TemporaryDirectory(dir=source.parent) as out:
        work = work_of(side, source, rows, Path(out) / "batches")
        start = time.perf_counter()
        work()
        seconds = time.perf_counter() - start
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    print(json.dumps({"seconds": seconds, "peak": max(resource.getrusage(w).ru_maxrss for w in who) * 1024}))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--scratch", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--one-side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_side:
        one_side(given.one_side, given.scratch / "rows.arrow", given.rows)
        return
    sides = given.sides.split(",")
    seen: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        write_source(Path(scratch) / "rows.arrow", given.rows)
        for _ in range(given.rounds):
            for side in sides:
                command = [sys.executable, "-c", AS_MODULE, "--one-side", side, "--rows", str(given.rows)]
                done = subprocess.run(
                    [*command, "--scratch", scratch],
                    cwd=Path(__file__).parent,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    sys.exit(f"{side} failed:\n{done.stderr[-3000:]}")
                seen[side].append(json.loads(done.stdout.strip().splitlines()[-1]))
                print(side, seen[side][-1], file=sys.stderr)
    report(seen, given.rows)


def report(seen: dict[str, list[dict[str, float]]], rows: int) -> None:
    """Medians, and ratios to the printed code within a round."""
    print(f"{rows:,} rows of {ROW_BYTES} bytes, {STEPS} batches")
    print(f"{'side':<9}{'rows/s':>12}{'times printed':>15}{'peak GB':>9}{'of printed':>12}")
    for side, runs in seen.items():
        rate = rows / statistics.median(run["seconds"] for run in runs)
        peak = max(run["peak"] for run in runs)
        line = f"{side:<9}{rate:>12,.0f}"
        if "printed" in seen:
            pairs = zip(seen["printed"], runs, strict=True)
            times = statistics.median(theirs["seconds"] / run["seconds"] for theirs, run in pairs)
            share = peak / max(run["peak"] for run in seen["printed"])
            line += f"{times:>15.1f}{peak / 1e9:>9.2f}{share:>12.2f}"
        else:
            line += f"{'':>15}{peak / 1e9:>9.2f}"
        print(line)


if __name__ == "__main__":
    main()
