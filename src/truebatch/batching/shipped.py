"""What engines on many machines send to their workers, and what the workers do with it."""

import contextlib
import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.batching.assemble import Job, block_from_bytes, block_to_bytes, split
from truebatch.batching.engine import PartFile, Task, write_part_file
from truebatch.batching.reading import ranges
from truebatch.errors import OutputRefused
from truebatch.keys import Key
from truebatch.sampling import Schedule, schedule

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
        return schedule(self.job.spec, Key.from_bytes(self.key_bytes))


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
    steps = None if parts is None else steps_of(drawn.job, parts)
    for part, block in split(drawn.job, drawn.schedule(), piece, start, steps=steps):
        rows = max(1, _BLOCK_BYTES * block.num_rows // max(1, block.nbytes))
        for first in range(0, block.num_rows, rows):
            yield part, block_to_bytes(block.slice(first, rows))


def blocks_from(job: Job, data: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """The blocks of one part as they came, in any order."""
    return (block_from_bytes(job, block) for block in data if block)


def write_shipped(drawn: Drawn, place: Place, part: int, blocks: Iterable[bytes]) -> PartFile:
    """One part from its blocks, in its place, and a note of it for whoever started the work."""
    job = drawn.job
    found = write_part_file(
        job, drawn.schedule(), part, blocks_from(job, blocks), place.directory, mode=place.file_mode
    )
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


class Arrivals:
    """The parts of a task that workers have finished, each seen once."""

    def __init__(self, task: Task, place: Place) -> None:
        self._task, self._place = task, place
        self._waiting = list(task.parts)

    def new(self) -> Iterator[PartFile]:
        """Those that have come since the last time."""
        for part in self._waiting.copy():
            with contextlib.suppress(FileNotFoundError):
                fields = json.loads((self._place.written / f"{part}.json").read_text())
                self._waiting.remove(part)
                yield PartFile(**fields)

    def require_all(self) -> None:
        """Refuse to go on when the work is over and a part is not here."""
        if self._waiting:
            raise OutputRefused(
                f"every worker must see the output directory as {str(self._place.directory)!r}; "
                f"part {self._waiting[0]} was made, and is not there.",
                hint="give a directory on a file system that all machines share.",
            )
