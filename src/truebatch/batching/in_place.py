"""The scatter plan where every value has a place known beforehand: one pass, and no copy in between.

A piece of the source holds consecutive rows, and the rows of a batch stand in the order of the source. So
what a piece adds to a batch is one run of slots, and in one column that is one run of bytes of the part file.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from truebatch.batching.arrow_files import Skeleton, has_fixed_places
from truebatch.batching.assemble import Job
from truebatch.batching.digest import combine
from truebatch.batching.engine import PartFile, Progress, Task, digest_of_file
from truebatch.batching.journal import Journal, passes, sync_directory
from truebatch.batching.reading import ahead, packed_rows, ranges
from truebatch.batching.shape import WEIGHT_BYTES, Shape, part_name
from truebatch.sampling import Schedule

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

ROAD = "in place"

# A process may have 1,024 files open where nobody has raised that.
_MOST_PARTS = 500
# Two pieces of the source are in memory at a time, and what threads take from one of them.
_PIECE_SHARE = 5
# What is taken from a piece and written column by column stays in the second-level cache meanwhile.
_CACHED_BYTES = 2**19
# States of digests that are kept: some hundred bytes each.
_MOST_LEAVES = 200_000
# Runs of fewer rows cost more in calls than they save in copies.
LEAST_RUN = 64


def piece_rows(job: Job, memory: int) -> int:
    """How many rows of the source a pass holds at a time within `memory`."""
    return max(1024, memory // _PIECE_SHARE // max(1, job.shape.layout.width))


def suits(job: Job, memory: int) -> bool:
    """Whether every value has a place known beforehand, and pieces of the source make runs worth a write."""
    schema = job.shape.source_schema
    fixed = has_fixed_places(schema) and not any(
        column.null_bit is not None or column.item_bit is not None for column in job.shape.layout.columns
    )
    run = piece_rows(job, memory) * job.shape.rows / job.spec.num_examples
    return fixed and not job.shape.layout.variable and run >= min(LEAST_RUN, job.shape.rows)


def scatter_in_place(task: Task, schedule: Schedule) -> Iterator[PartFile]:
    """Every part of the task, by as few passes over the source as open files allow."""
    for begun, parts in passes(task.parts, _MOST_PARTS, Journal.load(task.work), ROAD):
        with contextlib.ExitStack() as stack:
            files = _reopened(task, parts, stack) if begun is not None else None
            journal = begun
            if journal is None or files is None:
                journal = Journal(road=ROAD, parts=parts)
                files = _made(task, schedule, parts, stack)
                journal.save(task.work)
            if journal.next_row == 0:
                files = [dataclasses.replace(file, leaves=_leaves(file)) for file in files]
            _one_pass(task, schedule, files, journal)
            yield from _seal(task, schedule, files)


@dataclass(frozen=True, kw_only=True)
class _Partial:
    """A part file that is being filled."""

    part: int
    path: Path
    descriptor: int
    skeleton: Skeleton
    first_step: int
    leaves: "list[list[hashlib._Hash]] | None" = None

    @property
    def steps(self) -> range:
        """The steps that the part holds."""
        return range(self.first_step, self.first_step + self.skeleton.num_steps)


def _leaves(file: _Partial) -> "list[list[hashlib._Hash]] | None":
    """The digest's state of each column of each step, to be fed as runs are written: they come in order.

    None where several batches share a buffer, or where there would be too many: the file is read again then.
    """
    shape = file.skeleton.shape
    columns = len(shape.layout.columns)
    if shape.steps_per_record > 1 or shape.num_steps * columns > _MOST_LEAVES:
        return None
    return [[hashlib.sha256() for _ in range(columns)] for _ in file.steps]


def _reopened(task: Task, parts: Sequence[int], stack: contextlib.ExitStack) -> list[_Partial] | None:
    """The partial files of an earlier run; None where one is not there as it was left."""
    files = []
    for part in parts:
        path = _path(task, part)
        steps = task.job.shape.part_steps(part)
        skeleton = _skeleton(task.job.shape, len(steps))
        if not path.is_file() or path.stat().st_size != skeleton.size:
            return None
        files.append(_open(task, part, os.O_RDWR, stack))
    return files


def _made(
    task: Task, schedule: Schedule, parts: Sequence[int], stack: contextlib.ExitStack
) -> list[_Partial]:
    """Partial files with everything but the values of rows: room for them, heads, footer and the weights."""
    files = []
    for part in parts:
        _path(task, part).unlink(missing_ok=True)
        file = _open(task, part, os.O_RDWR | os.O_CREAT | os.O_EXCL, stack)
        os.posix_fallocate(file.descriptor, 0, file.skeleton.size)
        for offset, data in file.skeleton.pieces:
            _write(file.descriptor, data, offset)
        steps = task.job.shape.part_steps(part)
        sizes = schedule.sizes(steps.start, steps.stop)
        ones = np.ones(int(sizes.max()), "<f4")
        for step, size in enumerate(sizes.tolist()):
            _write(file.descriptor, ones[:size].data.cast("B"), file.skeleton.offsets[step, -1])
        files.append(file)
    return files


def _open(task: Task, part: int, flags: int, stack: contextlib.ExitStack) -> _Partial:
    steps = task.job.shape.part_steps(part)
    descriptor = os.open(_path(task, part), flags, task.file_mode)
    stack.callback(os.close, descriptor)
    return _Partial(
        part=part,
        path=_path(task, part),
        descriptor=descriptor,
        skeleton=_skeleton(task.job.shape, len(steps)),
        first_step=steps.start,
    )


def _path(task: Task, part: int) -> Path:
    return task.work / f"{part_name(part)}.partial"


@cache
def _skeleton(shape: Shape, num_steps: int) -> Skeleton:
    return Skeleton.of(shape, num_steps)


def _one_pass(task: Task, schedule: Schedule, files: list[_Partial], journal: Journal) -> None:
    """Send the rows of the source to their places, and note piece by piece what is on disk."""
    job, n, shape = task.job, task.job.spec.num_examples, task.job.shape
    by_part = {file.part: file for file in files}
    steps = np.concatenate([np.asarray(shape.part_steps(file.part)) for file in files])
    shares = [share for share in np.array_split(steps, task.workers) if len(share)]

    # Two pieces take turns in the same memory: fresh pages cost more than what is done with them.
    most = min(n, piece_rows(job, task.memory))
    rooms = itertools.cycle([np.empty((most, shape.layout.width), np.uint8) for _ in range(2)])

    def read(rows: range) -> tuple[range, Bytes]:
        return rows, packed_rows(task.source, shape.layout, rows, next(rooms)[: len(rows)])

    def note(rows: range) -> None:
        for file in files:
            os.fdatasync(file.descriptor)
        dataclasses.replace(journal, next_row=rows.stop).save(task.work)

    pieces = ranges(journal.next_row, n, piece_rows(job, task.memory), schedule.tile_rows)
    noted: Future[None] | None = None
    with ThreadPoolExecutor(task.workers) as pool, ThreadPoolExecutor(1) as syncer:
        for rows, packed in ahead(map(read, pieces)):
            placing = [
                pool.submit(_place, schedule, shape, by_part, packed, rows.start, share) for share in shares
            ]
            for future in placing:
                future.result()
            if noted is not None:
                noted.result()
            noted = syncer.submit(note, rows)
            task.advance(Progress(phase="rows", done=rows.stop, total=n, num_bytes=packed.nbytes))
        if noted is not None:
            noted.result()


def _place(
    schedule: Schedule, shape: Shape, files: dict[int, _Partial], packed: Bytes, start: int, steps: Int64s
) -> None:
    """Write what a piece of packed rows, which begins at row `start`, adds to the batches of `steps`."""
    whole = packed.reshape(-1).view(f"V{packed.shape[1]}")
    stride = max(LEAST_RUN, _CACHED_BYTES // packed.shape[1])
    for placed in schedule.placement_blocks(start, start + len(packed), steps=steps):
        edges = np.flatnonzero(np.diff(placed.step, prepend=-1, append=-1))
        for first, last in itertools.pairwise(edges.tolist()):
            step = int(placed.step[first])
            file = files[step // shape.steps_per_part]
            offsets = file.skeleton.offsets[step - file.first_step].tolist()
            leaves = None if file.leaves is None else file.leaves[step - file.first_step]
            for low in range(first, last, stride):
                rows = np.take(whole, placed.row[low : min(low + stride, last)] - start)
                slot = int(placed.slot[low])
                for j, (column, offset) in enumerate(zip(shape.layout.columns, offsets[:-1], strict=True)):
                    kind = column.dtype if column.length is None else np.dtype(f"V{column.width}")
                    view = np.ndarray(len(rows), kind, rows, column.offset, (packed.shape[1],))
                    values = np.ascontiguousarray(view).data.cast("B")
                    _write(file.descriptor, values, offset + slot * column.width)
                    if leaves is not None:
                        leaves[j].update(values)


def _digest(file: _Partial, schedule: Schedule) -> str:
    """The digest of a filled file: from what was fed on the way, or by reading it."""
    if file.leaves is None:
        return digest_of_file(file.path)
    shape, inside = file.skeleton.shape, []
    sizes = schedule.sizes(file.steps.start, file.steps.stop).tolist()
    widths = [*(column.width for column in shape.layout.columns), WEIGHT_BYTES]
    zeros = bytes(shape.rows * max(widths))
    for size, leaves in zip(sizes, file.leaves, strict=True):
        weight = hashlib.sha256(np.ones(size, "<f4").data.cast("B"))
        for leaf, width in zip([*leaves, weight], widths, strict=True):
            leaf.update(memoryview(zeros)[: (shape.rows - size) * width])
            inside.append(leaf.digest())
    outside = hashlib.sha256()
    for piece in file.skeleton.outside():
        outside.update(piece)
    return combine(outside.digest(), inside)


def _seal(task: Task, schedule: Schedule, files: list[_Partial]) -> Iterator[PartFile]:
    """Put finished files in their places."""

    def seal(file: _Partial) -> PartFile:
        os.fsync(file.descriptor)
        digest = _digest(file, schedule)
        file.path.rename(task.directory / part_name(file.part))
        return PartFile(part=file.part, num_bytes=file.skeleton.size, digest=digest)

    with ThreadPoolExecutor(task.workers) as pool:
        for done, found in enumerate(pool.map(seal, files), start=1):
            sync_directory(task.directory)
            task.advance(Progress(phase="files", done=done, total=len(files), num_bytes=found.num_bytes))
            yield found


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written
