"""How fast rows come in, beside pyarrow's own readers on the same files, in one run.

    python benchmarks/ingest.py                  # a minute or two
    python benchmarks/ingest.py --rows 8000000

Rows of Criteo's layout: label, 13 integers, 26 categoricals of 8 hex digits, as text, as gzip and as Parquet.

| case | what is timed |
| --- | --- |
| pyarrow | `csv.open_csv` (the streaming reader) or `ParquetFile.iter_batches`, all rows, and nothing else |
| pyarrow, whole | `csv.read_csv`: the whole table in memory |
| index | `open_source`: where rows are, and how many |
| read | all rows of the source, in bounded pieces |
| encoded | index, read and encode: label, `i` and `c` |
| prepared | index, read, encode, and written as a mapped file |

Cases take turns, round after round, so that other work on the machine disturbs all of them alike; a line
shows the best round, in seconds and in processor seconds, and rows a second relative to pyarrow's reader.
"""

import argparse
import datetime
import gzip
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from truebatch.data import EncodedSource, Features, open_source, prepare

Case = Callable[[], int]

NAMES = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
CHUNK = 500_000


def table(rows: int, seed: int) -> pa.Table:
    """Rows with a fifth of the integers and a tenth of the categories missing, as in the real thing."""
    rng = np.random.default_rng(seed)
    words = pa.array([f"{word:08x}" for word in rng.integers(0, 2**32, 20_000)])
    columns: dict[str, pa.Array] = {"label": pa.array(rng.integers(0, 2, rows), pa.int8())}
    for name in NAMES[1:14]:
        columns[name] = pa.array(rng.integers(0, 500, rows), pa.int32(), mask=rng.random(rows) < 0.2)
    for name in NAMES[14:]:
        places = np.minimum(rng.zipf(1.3, rows), len(words)) - 1
        columns[name] = words.take(pa.array(places, mask=rng.random(rows) < 0.1))
    return pa.table(columns)


def write_files(directory: Path, rows: int) -> tuple[Path, Path, Path]:
    """train.txt, train.txt.gz and train.parquet."""
    text, zipped, parquet = (directory / f"train.{end}" for end in ("txt", "txt.gz", "parquet"))
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    sizes = [min(CHUNK, rows - at) for at in range(0, rows, CHUNK)]
    with text.open("wb") as file, pq.ParquetWriter(parquet, table(0, 0).schema) as writer:
        for seed, size in enumerate(sizes):
            part = table(size, seed)
            csv.write_csv(part, file, options)
            writer.write_table(part)
    with text.open("rb") as file, gzip.open(zipped, "wb", compresslevel=6) as packed:
        shutil.copyfileobj(file, packed, 1 << 22)
    return text, zipped, parquet


def count(batches: Iterable[pa.RecordBatch]) -> int:
    return sum(batch.num_rows for batch in batches)


def text_options() -> dict[str, object]:
    kinds = {"label": pa.int8()} | dict.fromkeys(NAMES[1:14], pa.int32())
    kinds |= dict.fromkeys(NAMES[14:], pa.string())
    return {
        "read_options": csv.ReadOptions(column_names=list(NAMES)),
        "parse_options": csv.ParseOptions(delimiter="\t", quote_char=False),
        "convert_options": csv.ConvertOptions(column_types=kinds, null_values=[""], strings_can_be_null=True),
    }


def peers(path: Path) -> dict[str, Case]:
    if path.suffix == ".parquet":
        return {"pyarrow": lambda: count(pq.ParquetFile(path).iter_batches())}
    return {
        "pyarrow": lambda: count(csv.open_csv(path, **text_options())),
        "pyarrow, whole": lambda: csv.read_csv(path, **text_options()).num_rows,
    }


def ours(path: Path) -> dict[str, Case]:
    opened = open_source(path)
    features = Features.infer(opened.schema)

    def encoded() -> int:
        source = open_source(path)
        return count(EncodedSource(source, features).read(0, source.num_rows))

    def prepared() -> int:
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            return prepare(path, Path(directory, "rows"), features).num_rows

    return {
        "index": lambda: open_source(path).num_rows,
        "read": lambda: count(opened.read(0, opened.num_rows)),
        "encoded": encoded,
        "prepared": prepared,
    }


def compare(path: Path, rounds: int) -> None:
    cases = peers(path) | ours(path)
    best = dict.fromkeys(cases, (float("inf"), float("inf")))
    rows = 0
    for turn in range(rounds + 1):
        for name, case in cases.items():
            wall, work = time.perf_counter(), time.process_time()
            rows = case()
            took = (time.perf_counter() - wall, time.process_time() - work)
            if turn:  # the first round warms caches
                best[name] = (min(best[name][0], took[0]), min(best[name][1], took[1]))
    print(f"\n## {path.name}: {rows:,} rows, {path.stat().st_size / 1e6:.0f} MB\n")
    print("| case | seconds | processor seconds | million rows a second | relative to pyarrow |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, (wall, work) in best.items():
        ratio = best["pyarrow"][0] / wall
        print(f"| {name} | {wall:.2f} | {work:.2f} | {rows / wall / 1e6:.2f} | {ratio:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{datetime.date.today()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"Python {platform.python_version()}, numpy {np.__version__}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        for path in write_files(Path(directory), options.rows):
            compare(path, options.rounds)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"\nPeak memory of the whole run, whole tables included: {peak} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
