"""The Spark engine: the scatter plan in two stages, a read and a group, without Beam."""

import itertools
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa

from truebatch.batching.assemble import Job
from truebatch.batching.engine import PartFile, Task
from truebatch.batching.reading import record_batch
from truebatch.batching.shape import WEIGHT
from truebatch.batching.shipped import (
    NO_ROWS,
    Drawn,
    Place,
    arrivals,
    blocks_of,
    place_for,
    records_of,
    row_ranges,
    write_shipped,
)
from truebatch.errors import InvalidArgument, InvalidData, MissingExtra
from truebatch.keys import Key
from truebatch.specs import Sampler

try:
    from pyspark.sql import DataFrame, GroupedData, SparkSession
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import FloatType, LongType, StructField, StructType
except ImportError as error:
    raise MissingExtra("the Spark engine needs pyspark.", hint="pip install 'truebatch[spark]'") from error

STEP, SLOT = "step", "slot"

_BLOCKS = pa.schema([pa.field("part", pa.int64()), pa.field("block", pa.binary())])
_BLOCKS_IN_SPARK = "part long, block binary"
# Far more than any cluster works on at once; each costs the driver some memory.
_MOST_TASKS = 10_000
# A run of consecutive rows costs milliseconds to draw, however short it is.
_FEW_RUNS, _LEAST_RUN = 64, 64
# Rows that a worker gathers before it splits them.
_PIECE_BYTES = 2**26


@dataclass(frozen=True)
class SparkEngine:
    """The parts of a task by a Spark job.

    `master` and `config` are Spark's own: `SparkEngine("spark://host:7077", {"spark.cores.max": "8"})`.
    A session that runs already is used, and left running. Workers read the source, and write the parts, under
    the paths that the task has: all machines must see both. The key travels inside the job, so the cluster
    must be trusted with it, as it is with the data.

    Guarantees:
      - The key is in no option, plan, label or log of ours.
      - What is shuffled is blocks of rows, never single rows.
    """

    master: str = "local[*]"
    config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    name: ClassVar[str] = "spark"

    def run(self, task: Task) -> Iterator[PartFile]:
        """The parts, as they are finished."""
        if not task.parts:
            return
        running = SparkSession.getActiveSession()
        session = _session(self.master, self.config) if running is None else running
        try:
            _require_master(session, self.master)
            place, tag = place_for(task), f"truebatch-{secrets.token_hex(8)}"
            blocks = _blocks_of_source(session, task)
            job = _write_parts(blocks, task.parts, Drawn.of(task.job, task.key), place)

            def finish() -> None:
                session.addTag(tag)
                job.collect()

            yield from arrivals(task, place, finish, lambda: session.interruptTag(tag))
        finally:
            if running is None:
                session.stop()


def batches_of(
    frame: DataFrame, spec: Sampler, key: Key, *, row_id: str = "row", part_bytes: int = 2**27
) -> DataFrame:
    """The batches of `spec` over the rows of a DataFrame: step, slot, the columns, and the weight.

    Column `row_id` numbers the rows from 0 to num_examples-1, and must be stored, not computed on the way, or
    a task that is run again might number them otherwise. Numbers mostly follow each other within a partition,
    in whatever order the runs are. `part_bytes` is what one worker makes at a time.

    Guarantees:
      - Row (t, j) is row j of batch t: `members(t)` in order, then padding of weight 0; B rows for every t.
      - Rows that are missing, or come twice, make the job fail; no batch is quietly short.
    """
    fields = [column for column in frame.schema if column.name != row_id]
    taken = {STEP, SLOT} & {column.name for column in fields}
    if len(fields) == len(frame.schema) or taken:
        raise InvalidData(
            f"a frame must have its row numbers in column {row_id!r}, and none named {STEP} or {SLOT}; "
            f"got columns {', '.join(frame.columns)}.",
            hint="name the column of row numbers with row_id=..., and rename the others.",
        )
    job = Job(spec=spec, schema=to_arrow_schema(StructType(fields)), part_bytes=part_bytes)
    drawn = Drawn.of(job, key)
    _ = job.shape  # what cannot be made is refused here, not on the cluster

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for start, piece in _pieces(job, batches, row_id):
            yield from _as_rows(blocks_of(drawn, piece, start))

    def assemble(group: pa.Table) -> pa.Table:
        return _batches(drawn, group)

    numbers = [StructField(name, LongType(), nullable=False) for name in (STEP, SLOT)]
    schema = StructType([*numbers, *fields, StructField(WEIGHT, FloatType(), nullable=False)])
    blocks = frame.mapInArrow(split, _BLOCKS_IN_SPARK)
    return _grouped(blocks, range(job.shape.num_parts)).applyInArrow(assemble, schema)


def _blocks_of_source(session: SparkSession, task: Task) -> DataFrame:
    """One task a range of rows: it is read and split where it is needed."""
    drawn, source, parts = Drawn.of(task.job, task.key), task.source, tuple(task.parts)
    rows = row_ranges(task.job, drawn.schedule().tile_rows, memory=task.memory, workers=task.workers)

    def read_and_split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for i in batch.column(0).to_pylist():
                piece = record_batch(source, rows[i])
                yield from _as_rows(blocks_of(drawn, piece, rows[i].start, parts))

    numbers = session.range(0, len(rows), 1, min(len(rows), _MOST_TASKS))
    return numbers.mapInArrow(read_and_split, _BLOCKS_IN_SPARK)


def _write_parts(blocks: DataFrame, parts: Sequence[int], drawn: Drawn, place: Place) -> DataFrame:
    """A job that writes the parts, and says which it wrote."""

    def write(group: pa.Table) -> pa.Table:
        part = group.column(0)[0].as_py()
        found = write_shipped(drawn, place, part, _blocks_in(group))
        return pa.table({"part": [found.part]})

    return _grouped(blocks, parts).applyInArrow(write, "part long")


def _grouped(blocks: DataFrame, parts: Sequence[int]) -> GroupedData:
    """The blocks of each part together, every part once."""
    every = blocks.sparkSession.createDataFrame([(part, NO_ROWS) for part in parts], _BLOCKS_IN_SPARK)
    whole = every.unionByName(blocks).repartition(min(len(parts), _MOST_TASKS), "part")
    return whole.groupBy("part")


def _as_rows(blocks: Iterator[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
    """Each block as one row, by itself: a batch of several would be as large as all of them."""
    for part, block in blocks:
        yield pa.RecordBatch.from_arrays([pa.array([part]), pa.array([block])], schema=_BLOCKS)


def _blocks_in(group: pa.Table) -> Iterator[pa.Buffer]:
    return (value.as_buffer() for value in group.column(1))


def _batches(drawn: Drawn, group: pa.Table) -> pa.Table:
    """All batches of one part, as rows."""
    part, shape = group.column(0)[0].as_py(), drawn.job.shape
    records = records_of(drawn, drawn.schedule(), part, _blocks_in(group))
    table = pa.Table.from_batches(records, shape.schema)
    steps = np.repeat(np.asarray(shape.part_steps(part), np.int64), shape.rows)
    slots = np.tile(np.arange(shape.rows, dtype=np.int64), len(shape.part_steps(part)))
    return table.add_column(0, SLOT, pa.array(slots)).add_column(0, STEP, pa.array(steps))


def _pieces(job: Job, batches: Iterator[pa.RecordBatch], row_id: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(first row, rows): as many consecutive rows together as a worker may hold."""
    held: list[pa.RecordBatch] = []
    start = stop = size = 0
    for batch in batches:
        for first, run in _runs(job, batch, row_id):
            if held and (first != stop or size > _PIECE_BYTES):
                yield start, _joined(held)
                held, size = [], 0
            start = start if held else first
            held.append(run)
            stop, size = first + run.num_rows, size + run.nbytes
    if held:
        yield start, _joined(held)


def _runs(job: Job, batch: pa.RecordBatch, row_id: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch cut where its row numbers do not follow each other."""
    number = batch.column(row_id)
    if number.null_count:
        raise InvalidData(f"a row number must be a whole number; got a null in column {row_id!r}.")
    ids = number.cast(pa.int64()).to_numpy()
    rows = batch.select(job.schema.names).cast(job.schema)
    if (np.diff(ids) < 0).any():
        order = np.argsort(ids, kind="stable")
        ids, rows = ids[order], rows.take(pa.array(order))
    edges = np.flatnonzero(np.diff(ids, prepend=-2, append=-2) != 1)
    if len(edges) > max(_FEW_RUNS, len(ids) // _LEAST_RUN):
        raise InvalidData(
            f"row numbers must mostly follow each other where a frame is stored; in column {row_id!r} they "
            "do not: each would cost as much as thousands that do.",
            hint=f"pass frame.repartitionByRange({row_id!r}).sortWithinPartitions({row_id!r}).",
        )
    for low, high in itertools.pairwise(edges.tolist()):
        yield int(ids[low]), rows.slice(low, high - low)


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(pieces).combine_chunks().to_batches()[0]


def _session(master: str, config: Mapping[str, str]) -> SparkSession:
    if master.startswith("local"):
        # Spark would start whichever python3 is found first, which need not have this package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("truebatch").master(master)
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _require_master(session: SparkSession, master: str) -> None:
    found = session.sparkContext.master
    if found != master:
        raise InvalidArgument(
            f"a process has one Spark session at a time; got master={master!r}, and one of {found!r} runs.",
            hint="stop it first, or give its master.",
        )
