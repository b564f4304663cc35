"""The Beam engine: the scatter plan as a pipeline, on the Direct runner, Flink, Spark or Dataflow."""

import contextlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from truebatch.batching.assemble import Job
from truebatch.batching.engine import PartFile, Task
from truebatch.batching.reading import record_batch
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
from truebatch.data import Source
from truebatch.errors import InvalidArgument, MissingExtra
from truebatch.keys import Key

try:
    import apache_beam as beam
    from apache_beam.metrics import Metrics
    from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
    from apache_beam.runners.portability.portable_runner import PortableRunner
except ImportError as error:
    raise MissingExtra("the Beam engine needs apache-beam.", hint="pip install 'truebatch[beam]'") from error

# By its name "DirectRunner" Beam looks for a program to download first; this is the one inside it.
_IN_PROCESS = "FnApiRunner"


@dataclass(frozen=True)
class BeamEngine:
    """The parts of a task by a Beam pipeline.

    `options` are Beam's own, as on a command line: `["--runner=FlinkRunner", "--flink_master=[local]"]`.
    Workers read the source, and write the parts, under the paths that the task has: all machines must see
    both. The key travels inside the pipeline, so the cluster must be trusted with it, as it is with the data.

    Guarantees:
      - The key is in no option, label, display data, counter or log of ours.
      - A worker holds a piece of the source, or one part, at a time.
    """

    options: Sequence[str] = ()
    name: ClassVar[str] = "beam"

    def pipeline(self, task: Task, place: Place) -> beam.Pipeline:
        """The pipeline of a task, with its options validated, before it runs."""
        drawn = Drawn.of(task.job, task.key)
        rows = row_ranges(task.job, drawn.schedule().tile_rows, memory=task.memory, workers=task.workers)
        pipeline = _pipeline(self.options)
        _ = (
            pipeline
            | "Rows" >> ReadRows(source=task.source, rows=rows)
            | "Split" >> _split(drawn, task.parts)
            | "By part" >> beam.GroupByKey()
            | "Write" >> beam.ParDo(_Write(drawn, place))
        )
        return pipeline

    def run(self, task: Task) -> Iterator[PartFile]:
        """The parts, as they are finished."""
        if not task.parts:
            return
        place = place_for(task)
        result = self.pipeline(task, place).run()
        yield from arrivals(task, place, result.wait_until_finish, result.cancel)


@dataclass(kw_only=True, eq=False)
class ReadRows(beam.PTransform):  # type: ignore[misc]
    """Ranges of rows of a source: (first row, rows) for each."""

    source: Source
    rows: Sequence[range]

    def expand(self, root: Any) -> Any:
        """The pipeline's beginning to a collection of rows."""
        return (
            root
            | "Ranges" >> beam.Create([(rows.start, rows.stop) for rows in self.rows])
            | "Read" >> beam.ParDo(_Read(self.source))
        )


@dataclass(kw_only=True, eq=False)
class MakeBatches(beam.PTransform):  # type: ignore[misc]
    """(first row, rows) pieces of a source to (step, batch): T batches of one shape, in no order.

    For those who have a pipeline. `job` says which batches, and its `part_bytes` how many of them one worker
    makes at a time. Pieces are record batches of `job.schema`; together they hold every row once, and those
    that begin and end on multiples of `schedule.tile_rows` waste nothing.

    Guarantees:
      - Batch t has the rows `members(t)` in order, then padding of weight 0; empty batches come out too.
      - Rows that never came make the pipeline fail; no batch is quietly short.
    """

    job: Job
    key: Key

    def expand(self, pieces: Any) -> Any:
        """A collection of pieces to one of batches."""
        drawn, parts = Drawn.of(self.job, self.key), range(self.job.shape.num_parts)
        # Were the piece with row 0 to be missing, a part could be missing with it, and nobody the wiser.
        every = pieces.pipeline | "Every part" >> beam.Create([(part, NO_ROWS) for part in parts])
        blocks = pieces | "Split" >> _split(drawn, parts)
        return (
            (every, blocks)
            | "With every part" >> beam.Flatten()
            | "By part" >> beam.GroupByKey()
            | "Assemble" >> beam.ParDo(_Assemble(drawn))
        )


class _Read(beam.DoFn):  # type: ignore[misc]
    def __init__(self, source: Source) -> None:
        self._source = source
        self._rows_read = Metrics.counter("truebatch", "rows_read")

    def process(self, rows: tuple[int, int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        first, last = rows
        self._rows_read.inc(last - first)
        yield first, record_batch(self._source, range(first, last))


class _Split(beam.DoFn):  # type: ignore[misc]
    def __init__(self, drawn: Drawn, parts: Sequence[int]) -> None:
        self._drawn, self._parts = drawn, parts

    def process(self, piece: tuple[int, pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
        start, rows = piece
        if start == 0:
            yield from ((part, NO_ROWS) for part in self._parts)
        yield from blocks_of(self._drawn, rows, start, self._parts)


def _split(drawn: Drawn, parts: Sequence[int]) -> Any:
    """Pieces of rows to (part, block): what travels is blocks, never single rows."""
    return beam.ParDo(_Split(drawn, parts)).with_output_types(tuple[int, bytes])


class _Write(beam.DoFn):  # type: ignore[misc]
    def __init__(self, drawn: Drawn, place: Place) -> None:
        self._drawn, self._place = drawn, place
        self._bytes_written = Metrics.counter("truebatch", "bytes_written")

    def process(self, group: tuple[int, Iterable[bytes]]) -> None:
        part, blocks = group
        self._bytes_written.inc(write_shipped(self._drawn, self._place, part, blocks).num_bytes)


class _Assemble(beam.DoFn):  # type: ignore[misc]
    def __init__(self, drawn: Drawn) -> None:
        self._drawn = drawn

    def process(self, group: tuple[int, Iterable[bytes]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        part, blocks = group
        job = self._drawn.job
        step, rows = job.shape.part_steps(part).start, job.shape.rows
        for record in records_of(self._drawn, self._drawn.schedule(), part, blocks):
            for first in range(0, record.num_rows, rows):
                yield step, _alone(record.slice(first, rows))
                step += 1


def _alone(record: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in memory of their own: a slice would travel with all that it was cut from."""
    return pa.ipc.read_record_batch(record.serialize(), record.schema)


def _pipeline(options: Sequence[str]) -> beam.Pipeline:
    parsed = PipelineOptions(list(options))
    standard = parsed.view_as(StandardOptions)
    if standard.runner in (None, "DirectRunner"):
        standard.runner = _IN_PROCESS
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            known, given = parsed.get_all_options(), parsed.get_all_options(retain_unknown_options=True)
        pipeline = beam.Pipeline(options=parsed)
    except (ValueError, ImportError) as error:
        raise _refused(" ".join(str(error).split())) from None
    except SystemExit:  # how argparse ends, after a page of usage and a line that says what is wrong
        raise _refused(said.getvalue().strip().rpartition("error: ")[2]) from None
    unknown = sorted(given.keys() - known.keys())
    if unknown and not isinstance(pipeline.runner, PortableRunner):  # whose job servers have their own
        raise _refused(f"unknown options {', '.join(unknown)}")
    return pipeline


def _refused(why: str) -> InvalidArgument:
    return InvalidArgument(
        f"options of the Beam engine must be what its runner takes; got: {why}",
        hint="spell them as Beam does: --runner=FlinkRunner --flink_master=[local].",
    )
