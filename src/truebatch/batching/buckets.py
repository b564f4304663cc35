"""The scatter plan for any rows: one pass sends blocks to bucket files, then each bucket becomes a part."""

import contextlib
import dataclasses
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.batching.assemble import Job, block_from_bytes, block_to_bytes, split
from truebatch.batching.engine import PartFile, Progress, Task, write_part_file
from truebatch.batching.journal import Journal, passes
from truebatch.batching.reading import ahead, ranges, record_batch
from truebatch.data import Layout
from truebatch.sampling import Schedule

Int64s = npt.NDArray[np.int64]

ROAD = "buckets"

_MOST_PARTS = 500
# Of a piece of the source there is at a time: the rows, the next ones, both packed, and their blocks.
_PIECE_SHARE = 12
_VARIABLE_BYTES = 64
# A bucket takes its blocks, each behind its length.
_LENGTH = struct.Struct("<q")


def piece_rows(job: Job, memory: int) -> int:
    """How many rows of the source a pass holds at a time within `memory`, text taken at a nominal width."""
    layout = Layout.of(job.schema)
    width = layout.width + _VARIABLE_BYTES * len(layout.variable)
    return max(1024, memory // _PIECE_SHARE // max(1, width))


def disk_bytes(job: Job, parts: int) -> int:
    """About what the buckets of so many parts need on disk, beside the parts."""
    shape = job.shape
    return parts * shape.steps_per_part * shape.batch_bytes


def scatter_by_buckets(task: Task, schedule: Schedule) -> Iterator[PartFile]:
    """Every part of the task, by as few passes over the source as the disk allows."""
    room = shutil.disk_usage(task.directory).free // 3
    most = min(_MOST_PARTS, max(1, room // disk_bytes(task.job, 1)))
    for journal, parts in passes(task.parts, most, Journal.load(task.work), ROAD):
        begun = journal if journal is not None and _cut_back(task, journal) else None
        if begun is None:
            begun = Journal(road=ROAD, parts=parts, sizes=(0,) * len(parts))
            begun.save(task.work)
            for part in parts:
                _path(task, part).unlink(missing_ok=True)
        _one_pass(task, schedule, begun)
        yield from _assemble_all(task, schedule, parts)


def _path(task: Task, part: int) -> Path:
    return task.work / f"bucket-{part:05d}"


def _cut_back(task: Task, journal: Journal) -> bool:
    """Bring the buckets to what the journal knows of; False where one has less. Finished parts have none."""
    wanted = set(task.parts)
    for part, size in zip(journal.parts, journal.sizes, strict=True):
        path = _path(task, part)
        if part not in wanted:
            continue
        if (path.stat().st_size if path.is_file() else 0) < size:
            return False
        if path.is_file():
            os.truncate(path, size)
    return True


def _one_pass(task: Task, schedule: Schedule, journal: Journal) -> None:
    """Append the blocks of all rows to the buckets, and note piece by piece what is on disk."""
    job, n = task.job, task.job.spec.num_examples
    parts = [part for part in journal.parts if part in set(task.parts)]
    steps = np.concatenate([np.asarray(job.shape.part_steps(part)) for part in parts])
    sizes = dict(zip(journal.parts, journal.sizes, strict=True))
    pieces = ranges(journal.next_row, n, piece_rows(job, task.memory), schedule.tile_rows)

    def read(rows: range) -> tuple[range, pa.RecordBatch]:
        return rows, record_batch(task.source, rows)

    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(task.workers))
        files: dict[int, int] = {}
        for rows, piece in ahead(map(read, pieces)):
            shares = ranges(rows.start, rows.stop, -(-len(rows) // task.workers), schedule.tile_rows)
            work = [pool.submit(_blocks, task, schedule, piece, rows.start, share, steps) for share in shares]
            for future in work:
                for part, data in future.result():
                    if part not in files:
                        files[part] = os.open(
                            _path(task, part), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
                        )
                        stack.callback(os.close, files[part])
                    sizes[part] += _append(files[part], data)
            for descriptor in files.values():
                os.fdatasync(descriptor)
            now = tuple(sizes[part] for part in journal.parts)
            dataclasses.replace(journal, next_row=rows.stop, sizes=now).save(task.work)
            task.advance(Progress(phase="rows", done=rows.stop, total=n, num_bytes=piece.nbytes))


def _blocks(
    task: Task,
    schedule: Schedule,
    piece: pa.RecordBatch,
    start: int,
    share: range,
    steps: Int64s,
) -> list[tuple[int, bytes]]:
    """The blocks of some rows of a piece that begins at row `start`."""
    rows = piece.slice(share.start - start, len(share))
    return [
        (part, block_to_bytes(block))
        for part, block in split(task.job, schedule, rows, share.start, steps=steps)
    ]


def _append(descriptor: int, data: bytes) -> int:
    whole = _LENGTH.pack(len(data)) + data
    rest = memoryview(whole)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    return len(whole)


def _assemble_all(task: Task, schedule: Schedule, parts: Sequence[int]) -> Iterator[PartFile]:
    def assemble(part: int) -> PartFile:
        with _bucket(task, part) as blocks:
            found = write_part_file(task.job, schedule, part, blocks, task.directory, mode=task.file_mode)
        _path(task, part).unlink(missing_ok=True)
        return found

    with ThreadPoolExecutor(task.workers) as pool:
        for done, found in enumerate(pool.map(assemble, parts), start=1):
            task.advance(Progress(phase="files", done=done, total=len(parts), num_bytes=found.num_bytes))
            yield found


@contextlib.contextmanager
def _bucket(task: Task, part: int) -> Iterator[list[pa.RecordBatch]]:
    """The blocks of a bucket, mapped."""
    path = _path(task, part)
    if not path.is_file() or path.stat().st_size == 0:
        yield []
        return
    blocks, position = [], 0
    with pa.memory_map(str(path)) as file:
        data = file.read_buffer()
        while position < data.size:
            (length,) = _LENGTH.unpack(data.slice(position, _LENGTH.size))
            position += _LENGTH.size
            blocks.append(block_from_bytes(task.job, data.slice(position, length)))
            position += length
        yield blocks
