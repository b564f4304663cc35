"""What engines on many machines send to their workers, and what the workers do with it."""

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.batching.assemble import Job, assemble, block_from_bytes, block_to_bytes, split
from truebatch.batching.engine import PartFile, Progress, Task, write_part_file
from truebatch.batching.reading import ranges
from truebatch.errors import EngineFailed, IncompletePart, InvalidData, OutputRefused, TruebatchError
from truebatch.keys import Key
from truebatch.sampling import Schedule
from truebatch.sampling import schedule as make_schedule

# Every part is sent a block of nothing, so that a part that no row joins is made all the same.
NO_ROWS = b""

# What travels as one value. Large enough that a value's own cost does not show, and far below what any
# runner takes as one message.
_BLOCK_BYTES = 2**23
# Of a piece of the source a worker holds at a time: the rows, both packed and not, and their blocks.
_PIECE_SHARE = 8
_PIECE_BYTES = 2**26
_VARIABLE_BYTES = 64
_WRITTEN = "written"
_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """A job and its key's bytes, shipped on purpose: every worker draws the coins for itself.

    Guarantees:
      - Nothing in it advances: work that is done again draws the same coins.
      - `repr` is free of the key.
    """

    job: Job
    key_bytes: bytes = field(repr=False)

    @classmethod
    def of(cls, job: Job, key: Key) -> "Drawn":
        """What workers are sent of a job under a key."""
        return cls(job=job, key_bytes=key.to_bytes())

    def schedule(self) -> Schedule:
        """The schedule, made where it is used: it takes milliseconds."""
        return make_schedule(self.job.spec, Key.from_bytes(self.key_bytes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """Where workers put the parts: a directory that all machines see under the same name."""

    directory: Path
    written: Path
    file_mode: int


def row_ranges(job: Job, tile_rows: int, *, memory: int, workers: int) -> list[range]:
    """The rows of the source in ranges that one worker reads at a time."""
    layout = job.shape.layout
    width = max(1, layout.width + _VARIABLE_BYTES * len(layout.variable))
    most = min(memory // max(1, workers) // _PIECE_SHARE, _PIECE_BYTES)
    return list(ranges(0, job.spec.num_examples, max(1024, most // width), tile_rows))


def steps_of(job: Job, parts: Sequence[int]) -> npt.NDArray[np.int64]:
    """The steps of these parts."""
    steps = [np.asarray(job.shape.part_steps(part), np.int64) for part in parts]
    return np.concatenate([*steps, np.empty(0, np.int64)])


def blocks_of(
    drawn: Drawn, piece: pa.RecordBatch, start: int, parts: Sequence[int] | None = None
) -> Iterator[tuple[int, bytes]]:
    """(part, block) for the rows of a piece that begins at row `start`, in all parts or in these."""
    job = drawn.job
    steps = None if parts is None else steps_of(job, parts)
    for part, block in split(job, drawn.schedule(), _as_said(piece, job.schema), start, steps=steps):
        rows = max(1, _BLOCK_BYTES * block.num_rows // max(1, block.nbytes))
        for first in range(0, block.num_rows, rows):
            yield part, block_to_bytes(block.slice(first, rows))


def _as_said(piece: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The piece in the schema it was said to have: pickling forgets that items of lists take no nulls."""
    try:
        return piece if piece.schema.equals(schema) else piece.select(schema.names).cast(schema)
    except (KeyError, ValueError, pa.ArrowException):
        wanted, found = (", ".join(map(str, one)) for one in (schema, piece.schema))
        raise InvalidData(
            f"rows must have the columns {wanted}; got {found}.",
            hint="make the job from the schema of the rows.",
        ) from None


def records_of(
    drawn: Drawn, schedule: Schedule, part: int, data: Iterable[bytes | pa.Buffer]
) -> Iterator[pa.RecordBatch]:
    """The record batches of one part from its blocks, which came in any order.

    Guarantees:
      - A row id that two rows have raises, where `assemble` would take one of them: a shuffle delivers once.
    """
    return assemble(drawn.job, schedule, part, _blocks_from(drawn.job, schedule, part, data))


def _blocks_from(
    job: Job, schedule: Schedule, part: int, data: Iterable[bytes | pa.Buffer]
) -> list[pa.RecordBatch]:
    blocks = [block_from_bytes(job, block) for block in data if block]
    steps = job.shape.part_steps(part)
    if sum(block.num_rows for block in blocks) > schedule.sizes(steps.start, steps.stop).sum():
        raise IncompletePart(
            f"a part must be given every row of its batches once; part {part} was not.",
            hint="see whether each row id from 0 to num_examples-1 stands for one row.",
        )
    return blocks


def write_shipped(drawn: Drawn, place: Place, part: int, blocks: Iterable[bytes | pa.Buffer]) -> PartFile:
    """One part from its blocks, in its place, and a note of it for whoever started the work."""
    job, schedule = drawn.job, drawn.schedule()
    held = _blocks_from(job, schedule, part, blocks)
    found = write_part_file(job, schedule, part, held, place.directory, mode=place.file_mode)
    aside = place.written / f".{part}.{secrets.token_hex(8)}"
    try:
        aside.write_text(json.dumps(asdict(found)))
        aside.rename(place.written / f"{part}.json")
    finally:
        aside.unlink(missing_ok=True)
    return found


def place_for(task: Task) -> Place:
    """Where workers put the parts of a task, without notes of an earlier run."""
    written = task.work / _WRITTEN
    for directory in (task.work, written):
        directory.mkdir(mode=0o700, exist_ok=True)
    for part in task.parts:
        (written / f"{part}.json").unlink(missing_ok=True)
    return Place(directory=task.directory.resolve(), written=written.resolve(), file_mode=task.file_mode)


def arrivals(
    task: Task, place: Place, finish: Callable[[], object], cancel: Callable[[], object]
) -> Iterator[PartFile]:
    """The parts of a task as workers finish them, while `finish` waits for the end of all work.

    What `finish` raises is raised, as an EngineFailed unless it is an error of ours. `cancel` is called when
    nobody wants the parts any more.
    """
    waiting = list(task.parts)
    for _ in _beats(finish, cancel):
        for part in waiting.copy():
            with contextlib.suppress(FileNotFoundError):
                found = PartFile(**json.loads((place.written / f"{part}.json").read_text()))
                waiting.remove(part)
                done, total = len(task.parts) - len(waiting), len(task.parts)
                task.advance(Progress(phase="files", done=done, total=total, num_bytes=found.num_bytes))
                yield found
    if waiting:
        raise OutputRefused(
            f"every worker must see the output directory as {str(place.directory)!r}; "
            f"part {waiting[0]} was made, and is not there.",
            hint="give a directory on a file system that all machines share.",
        )


def _beats(finish: Callable[[], object], cancel: Callable[[], object]) -> Iterator[None]:
    """A beat now and then while work goes on, and a last one when it is over."""
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            finish()
        except BaseException as error:  # raised below, in the thread that waits for it
            failed.append(error)

    waiting = threading.Thread(target=wait, daemon=True, name="waiting for workers")
    waiting.start()
    try:
        while waiting.is_alive():
            waiting.join(_POLL_S)
            yield
        yield
    finally:
        if waiting.is_alive():
            cancel()
    if not failed:
        return
    if isinstance(failed[0], TruebatchError) or not isinstance(failed[0], Exception):
        raise failed[0]
    raise EngineFailed(
        f"the cluster's work must come to its end; it failed: {_reason(str(failed[0]))}",
        hint="the cluster's own log says more. The same call makes the parts that are missing.",
    ) from failed[0]


def _reason(said: str) -> str:
    """The line that says why, of all that a cluster says: an error of ours, or else the first line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()] or ["it did not say why"]
    ours = [line for line in lines if line.startswith("truebatch.errors.")]
    return (ours or lines)[0]
