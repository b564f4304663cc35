"""The gather plan: batches straight from rows that can be reached at random."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.batching.assemble import Job, placed, record_of_rows
from truebatch.batching.batches import Batch, require_steps
from truebatch.batching.engine import PartFile, Progress, Task, write_records
from truebatch.batching.reading import ahead
from truebatch.data import Layout, Source, pack
from truebatch.errors import InvalidData, InvalidSpec
from truebatch.keys import Key
from truebatch.sampling import Schedule, schedule
from truebatch.specs import Sampler

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]


@runtime_checkable
class RandomAccess(Source, Protocol):
    """A source whose rows can be taken in any order at the cost of those rows."""

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """These rows, in this order, in the source's schema."""
        ...


@runtime_checkable
class PackedRows(Source, Protocol):
    """The same, with rows that are packed already."""

    @property
    def layout(self) -> Layout:
        """Where the columns stand in a row."""
        ...

    def gather(self, rows: Int64s, out: Bytes) -> object:
        """Copy these rows, in this order, into a matrix [rows, layout.width]."""
        ...


class GatherBatches:
    """The batches of a spec from a source of random access, without writing them anywhere.

    Guarantees:
      - The batches that `make_batches` writes for the same spec, key and source, value for value.
      - Memory for a few batches, however many there are.
    """

    def __init__(self, source: Source, spec: Sampler, key: Key, *, prefetch: int = 2) -> None:
        self._source = require_random_access(source)
        require_as_many(source, spec)
        self._job = Job(spec=spec, schema=source.schema)
        self._schedule = schedule(spec, key)
        self._prefetch = prefetch
        self._job.shape  # noqa: B018  # a shape that cannot be is refused now, not at the first batch

    @property
    def spec(self) -> Sampler:
        """The sampler that draws the batches."""
        return self._job.spec

    @property
    def schema(self) -> pa.Schema:
        """The columns of a batch: the source's, then the weight."""
        return self._job.shape.schema

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The batches of consecutive steps, a few of them made ahead in a thread of their own."""
        return ahead(self._made(require_steps(start_step, stop_step, self.spec)), self._prefetch)

    def _made(self, steps: range) -> Iterator[Batch]:
        members = self._schedule.batches(steps.start, steps.stop)
        for step, rows in zip(steps, members, strict=True):
            yield Batch(step=step, record=_gathered(self._job, self._source, [rows]))


@dataclass(frozen=True)
class GatherEngine:
    """Part files by the gather plan: for a source of random access that is in memory or in the page cache."""

    name: ClassVar[str] = "gather"

    def run(self, task: Task) -> Iterator[PartFile]:
        """The parts, in order."""
        source = require_random_access(task.source)
        drawn = schedule(task.job.spec, task.key)

        def make(part: int) -> PartFile:
            records = _records(task.job, drawn, source, part)
            return write_records(task.job, part, records, task.directory, mode=task.file_mode)

        with ThreadPoolExecutor(task.workers) as pool:
            for done, found in enumerate(pool.map(make, task.parts), start=1):
                task.advance(
                    Progress(phase="files", done=done, total=len(task.parts), num_bytes=found.num_bytes)
                )
                yield found


def require_random_access(source: Source) -> RandomAccess | PackedRows:
    """The source, when its rows can be reached at random."""
    if isinstance(source, PackedRows | RandomAccess):
        return source
    raise InvalidData(
        f"the gather plan needs rows that can be reached at random; got a {type(source).__name__}.",
        hint="write its rows to a mapped file with truebatch.data.prepare, or use the scatter plan.",
    )


def require_as_many(source: Source, spec: Sampler) -> None:
    """Refuse a spec for another number of rows."""
    if spec.num_examples != source.num_rows:
        raise InvalidSpec(
            f"num_examples must be the number of rows of the source; got num_examples={spec.num_examples} "
            f"for {source.num_rows} rows.",
            hint=f"use num_examples={source.num_rows}.",
        )


def _records(
    job: Job, drawn: Schedule, source: RandomAccess | PackedRows, part: int
) -> Iterator[pa.RecordBatch]:
    for steps in job.shape.records(job.shape.part_steps(part)):
        yield _gathered(job, source, list(drawn.batches(steps.start, steps.stop)))


def _gathered(job: Job, source: RandomAccess | PackedRows, batches: list[Int64s]) -> pa.RecordBatch:
    """The record batch of consecutive steps, from the rows of each."""
    layout, B = job.shape.layout, job.shape.rows
    real = (np.arange(B) < np.array([[len(rows)] for rows in batches])).reshape(-1)
    rows = np.zeros((len(real), layout.width), np.uint8)
    if isinstance(source, PackedRows):
        for i, members in enumerate(batches):
            source.gather(members, rows[i * B : i * B + len(members)])
        return record_of_rows(job, rows, [], real)
    piece = source.take(np.concatenate(batches))
    place = np.flatnonzero(real)
    if layout.width:
        rows[place] = pack(piece, layout)
    variable = [placed(f.type, [piece.column(f.name)], [place], len(real)) for f in layout.variable]
    return record_of_rows(job, rows, variable, real)
