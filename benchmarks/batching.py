"""Batches from data that is not in memory: rows a second and peak memory, beside other engines and `cp`.

Rows are like Criteo's, 157 bytes: a label (int8), 13 integers and 26 categoricals (int32), either in three
columns (label, i[13], c[26]) or in 40. Every side begins with its source out of the page cache, writes all T
batches of b = 65,536 expected rows, and ends when they are on disk. What each side does:

  cp             copies the source and syncs: the limit
  ours           `make_batches` from Arrow IPC, three columns
  ours-40        the same from 40 columns
  ours-parquet   the same from Parquet, 40 columns
  duckdb         joins the same memberships (given as a table) with the rows, ORDER BY step, row, to Parquet
  polars         the same, streaming, to Arrow IPC

Each side is a process of its own; sides take turns within a round, so that what else the machine does meets
all of them. With --limit, each runs in a control group of that much memory, page cache included (needs root).
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.accounting import max_batch_size_by_rule
from truebatch.batching import LocalEngine, make_batches, open_batches
from truebatch.data import open_source

BATCH_SIZE = 65_536
KEY = Key.for_tests(0)
SIDES = ("cp", "ours", "ours-40", "ours-parquet", "duckdb", "polars")
GROUPS = Path("/sys/fs/cgroup")


def spec_for(rows: int, epochs: int) -> TruncatedPoisson:
    steps = epochs * max(1, round(rows / BATCH_SIZE))
    cap = max_batch_size_by_rule(
        num_examples=rows, batch_size=BATCH_SIZE, num_steps=steps, epsilon=5.0, delta=2.7e-8
    )
    return TruncatedPoisson(num_examples=rows, batch_size=BATCH_SIZE, num_steps=steps, max_batch_size=cap)


def write_sources(directory: Path, rows: int) -> None:
    """The three files that sides read, made piece by piece."""
    if (directory / "rows-40.parquet").exists():
        return
    plain = [("label", pa.int8()), *((f"I{i}", pa.int32()) for i in range(1, 14))]
    plain += [(f"C{i}", pa.int32()) for i in range(1, 27)]
    wide = pa.schema([pa.field(name, kind, nullable=False) for name, kind in plain])
    lists = [pa.list_(pa.field("item", pa.int32(), nullable=False), k) for k in (13, 26)]
    grouped = pa.schema(
        [wide.field(0), *(pa.field(n, k, nullable=False) for n, k in zip("ic", lists, strict=True))]
    )
    rng = np.random.default_rng(0)
    with (
        pa.ipc.new_file(str(directory / "rows.arrow"), grouped) as three,
        pa.ipc.new_file(str(directory / "rows-40.arrow"), wide) as forty,
        pq.ParquetWriter(directory / "rows-40.parquet.aside", wide, compression="snappy") as parquet,
    ):
        for start in range(0, rows, 2**18):
            k = min(2**18, rows - start)
            label = rng.integers(0, 2, k).astype(np.int8)
            numbers = rng.integers(0, 2**31, (k, 39), dtype=np.int32)
            columns = [
                pa.array(label),
                *(pa.array(np.ascontiguousarray(numbers[:, j])) for j in range(39)),
            ]
            batch = pa.RecordBatch.from_arrays(columns, schema=wide)
            forty.write_batch(batch)
            parquet.write_batch(batch)
            items = [
                pa.array(np.ascontiguousarray(p).reshape(-1)) for p in (numbers[:, :13], numbers[:, 13:])
            ]
            packed = [pa.FixedSizeListArray.from_arrays(v, type=t) for v, t in zip(items, lists, strict=True)]
            three.write_batch(pa.RecordBatch.from_arrays([columns[0], *packed], schema=grouped))
    (directory / "rows-40.parquet.aside").rename(directory / "rows-40.parquet")


def write_memberships(directory: Path, rows: int, epochs: int) -> None:
    """(step, row) as a table, for sides that join."""
    path = directory / f"members-{epochs}.parquet"
    if path.exists():
        return
    drawn = schedule(spec_for(rows, epochs), KEY)
    schema = pa.schema([("step", pa.int32()), ("row", pa.int64())])
    with pq.ParquetWriter(path.with_suffix(".aside"), schema) as writer:
        for step, members in enumerate(drawn.batches()):
            steps = np.full(len(members), step, np.int32)
            writer.write_batch(
                pa.RecordBatch.from_arrays([pa.array(steps), pa.array(members)], schema=schema)
            )
    path.with_suffix(".aside").rename(path)


def run_cp(directory: Path, out: Path, _: int, epochs: int) -> None:
    out.mkdir()
    for i in range(epochs):
        subprocess.run(["cp", directory / "rows.arrow", out / f"{i}.arrow"], check=True)
        subprocess.run(["sync", out / f"{i}.arrow"], check=True)


def run_ours(directory: Path, out: Path, rows: int, epochs: int, name: str = "rows.arrow") -> None:
    make_batches(open_source(directory / name), spec_for(rows, epochs), out, KEY, engine=LocalEngine())


def run_duckdb(directory: Path, out: Path, _: int, epochs: int) -> None:
    import duckdb  # noqa: PLC0415 - a peer that may not be installed

    out.mkdir()
    connection = duckdb.connect()
    connection.execute(f"SET temp_directory = '{out}/spill'; SET memory_limit = '1200MB'; SET threads = 2")
    connection.execute(
        f"COPY (SELECT m.step, r.* FROM read_parquet('{directory}/members-{epochs}.parquet') m "
        f"JOIN read_parquet('{directory}/rows-40.parquet', file_row_number = true) r "
        f"ON m.row = r.file_row_number ORDER BY m.step, m.row) "
        f"TO '{out}/batches.parquet' (COMPRESSION uncompressed)"
    )
    subprocess.run(["sync", out / "batches.parquet"], check=True)


def run_polars(directory: Path, out: Path, _: int, epochs: int) -> None:
    import polars as pl  # noqa: PLC0415 - a peer that may not be installed

    out.mkdir()
    data = pl.scan_parquet(directory / "rows-40.parquet", row_index_name="row")
    members = pl.scan_parquet(directory / f"members-{epochs}.parquet").with_columns(
        pl.col("row").cast(pl.UInt32)
    )
    members.join(data.with_columns(pl.col("row").cast(pl.UInt32)), on="row").sort("step", "row").sink_ipc(
        out / "batches.arrow", compression="uncompressed"
    )
    subprocess.run(["sync", out / "batches.arrow"], check=True)


RUN = {
    "cp": run_cp,
    "ours": run_ours,
    "ours-40": lambda *a: run_ours(*a, name="rows-40.arrow"),
    "ours-parquet": lambda *a: run_ours(*a, name="rows-40.parquet"),
    "duckdb": run_duckdb,
    "polars": run_polars,
}


def child(side: str, directory: Path, out: Path, rows: int, epochs: int) -> None:
    """One side, timed from its first byte to its last one on disk."""
    started = time.perf_counter()
    RUN[side](directory, out, rows, epochs)
    seconds = time.perf_counter() - started
    status = Path("/proc/self/status").read_text()
    peak = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024
    print(json.dumps({"seconds": seconds, "peak": peak}))


def forget(directory: Path) -> None:
    """Put the sources out of the page cache."""
    for path in directory.glob("*.*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(side: str, directory: Path, rows: int, epochs: int, group: Path | None) -> dict[str, float] | str:
    out = directory / "out"
    shutil.rmtree(out, ignore_errors=True)
    os.sync()
    forget(directory)
    command = [sys.executable, __file__, "--child", side, str(directory), str(out), str(rows), str(epochs)]
    join = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group is not None else None
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=join)
    shutil.rmtree(out, ignore_errors=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"signal {-done.returncode}"]
        return "killed: out of memory" if done.returncode == -9 else last[0][:70]
    return json.loads(done.stdout)


def limited(limit: int) -> Path | None:
    """A control group of so much memory, or None with a word on stderr."""
    name = f"truebatch-benchmark-{os.getpid()}"
    for group, knob in (
        (GROUPS / "memory" / name, "memory.limit_in_bytes"),
        (GROUPS / name, "memory.max"),
    ):
        try:
            group.mkdir()
            (group / knob).write_text(str(limit))
        except OSError:
            continue
        return group
    print("no control group can be made here: sides run without a limit", file=sys.stderr)
    return None


def from_the_map(directory: Path, rows: int) -> None:
    """Warm batches from the memory map into the arrays of a trainer, beside copying as many bytes."""
    out = directory / "mapped"
    make_batches(open_source(directory / "rows.arrow"), spec_for(rows, 1), out, KEY, engine=LocalEngine())
    batches = open_batches(out)
    first = next(batches.read())
    room = {name: np.empty_like(first[name]) for name in batches.schema.names}
    size = sum(array.nbytes for array in room.values())
    count = batches.spec.num_steps
    source, target = np.ones((count, size), np.uint8), np.empty(size, np.uint8)
    ours, plain = [], []
    for _ in range(5):
        started = time.perf_counter()
        for batch in batches.read():
            for name, array in room.items():
                np.copyto(array, batch[name])
        ours.append(size * count / (time.perf_counter() - started))
        started = time.perf_counter()
        for plain_batch in source:
            np.copyto(target, plain_batch)
        plain.append(size * count / (time.perf_counter() - started))
    ratio = statistics.median(ours) / statistics.median(plain)
    print(
        f"\n{rows:,} rows from the map: {statistics.median(ours) / 1e9:.1f} GB/s; "
        f"memcpy {statistics.median(plain) / 1e9:.1f} GB/s; ratio {ratio:.2f}"
    )
    shutil.rmtree(out)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1e6,4e6,16e6", help="numbers of rows (default: %(default)s)")
    parser.add_argument("--epochs", default="1", help="numbers of epochs (default: %(default)s)")
    parser.add_argument("--sides", default=",".join(SIDES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=2.0, metavar="GiB", help="0 for none (default: 2)")
    parser.add_argument("--dir", help="where files go (default: a temporary directory)")
    parser.add_argument("--map", action="store_true", help="reading: from the memory map, beside memcpy")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, directory, out, rows, epochs = arguments.child
        child(side, Path(directory), Path(out), int(rows), int(epochs))
        return 0
    sides = arguments.sides.split(",")
    group = limited(int(arguments.limit * 2**30)) if arguments.limit else None
    try:
        with tempfile.TemporaryDirectory(dir=arguments.dir) as where:
            for rows in (int(float(r)) for r in arguments.rows.split(",")):
                directory = Path(where) / str(rows)
                directory.mkdir()
                write_sources(directory, rows)
                if arguments.map:
                    from_the_map(directory, rows)
                    continue
                for epochs in (int(e) for e in arguments.epochs.split(",")):
                    compare(sides, directory, rows, epochs, arguments.rounds, group)
                shutil.rmtree(directory)
    finally:
        if group is not None:
            group.rmdir()
    return 0


def compare(
    sides: list[str], directory: Path, rows: int, epochs: int, rounds: int, group: Path | None
) -> None:
    """Rounds in which every side has a turn, and a line for each side."""
    if {"duckdb", "polars"} & set(sides):
        write_memberships(directory, rows, epochs)
    found: dict[str, list[dict[str, float] | str]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            found[side].append(measure(side, directory, rows, epochs, group))
    limit = "no limit" if group is None else "limited memory"
    print(f"\n{rows:,} rows, {epochs} epoch(s), b = {BATCH_SIZE:,}, {rounds} rounds, {limit}")
    print(f"{'side':<14}{'seconds':>9}{'M rows/s':>10}{'peak GB':>9}{'x ours':>9}{'x cp':>7}")
    base = {s: _median(found[s], "seconds") for s in sides}
    for side in sides:
        if base[side] is None:
            print(f"{side:<14}  {found[side][0]}")
            continue
        seconds, peak = base[side], _median(found[side], "peak")
        ratios = [f"{seconds / base[s]:.2f}" if base.get(s) else "-" for s in ("ours", "cp")]
        print(
            f"{side:<14}{seconds:>9.2f}{rows * epochs / seconds / 1e6:>10.2f}{peak / 1e9:>9.2f}"
            f"{ratios[0]:>9}{ratios[1]:>7}",
            flush=True,
        )


def _median(results: list[dict[str, float] | str], name: str) -> float | None:
    values = [r[name] for r in results if not isinstance(r, str)]
    return statistics.median(values) if len(values) == len(results) else None


if __name__ == "__main__":
    sys.exit(main())
