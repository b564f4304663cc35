"""A small Beam job in a process of its own: what job servers and their threads leave behind ends with it.

python beam_job.py DIRECTORY FAILING_ROW BEAM_OPTIONS...
"""

import base64
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from failing import FailsOnce

from truebatch import Key, TruncatedPoisson
from truebatch.batching import Job
from truebatch.batching.beam import BeamEngine
from truebatch.batching.engine import Task

KEY = Key.for_tests(11)


def named(n: int = 3000) -> pa.Table:
    """Rows with text and nulls."""
    rng = np.random.default_rng(1)
    names = [None if i % 7 == 0 else "x" * (i % 5) for i in range(n)]
    return pa.table({"x": rng.normal(size=n), "name": names})


def job_of(table: pa.Table) -> Job:
    n = len(table)
    spec = TruncatedPoisson(num_examples=n, batch_size=n // 20, num_steps=43, max_batch_size=n // 20 + 9)
    return Job(spec=spec, schema=table.schema, record_bytes=2**12, part_bytes=2**15)


def spellings(key: Key) -> list[str]:
    """The ways in which 32 bytes come to stand in a text."""
    raw = key.to_bytes()
    return [raw.hex(), base64.b64encode(raw).decode()[:40], repr(raw)[2:-1], str(list(raw))[1:-1]]


def main(directory: Path, failing_row: int, options: list[str]) -> None:
    table = named()
    job = job_of(table)
    source = FailsOnce(table, directory / "failed", failing_row)
    parts = range(job.shape.num_parts)
    task = Task(job=job, source=source, key=KEY, directory=directory, parts=parts, memory=1, workers=2)
    assert sorted(found.part for found in BeamEngine(options).run(task)) == list(parts)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
