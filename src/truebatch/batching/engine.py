"""What every engine is given and gives back, and how a part file comes to its place."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa

from truebatch.batching.arrow_files import write_part
from truebatch.batching.assemble import Job, assemble
from truebatch.batching.digest import digest_of
from truebatch.batching.shape import part_name
from truebatch.data import Source
from truebatch.keys import Key
from truebatch.sampling import Schedule

# Output is as secret as the data: open to its owner alone unless the user says otherwise.
FILE_MODE = 0o600

# What is unfinished stands in this folder of the output directory, and goes when the manifest is written.
WORK = ".unfinished"


@dataclass(frozen=True, kw_only=True)
class PartFile:
    """A finished part: its size and digest in the manifest."""

    part: int
    num_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Work done so far in one phase, in rows of the source or of the batches; follows from n, B and T."""

    phase: str
    done: int
    total: int
    num_bytes: int


def no_progress(_: Progress) -> None:
    """For those who do not watch."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Parts to make, from what, where to, and within which means.

    `parts` increase. `memory` is the budget in bytes of one machine, `workers` how many threads or processes
    may work at once; neither changes a byte of the result.
    """

    job: Job
    source: Source
    key: Key
    directory: Path
    parts: Sequence[int]
    memory: int = 2**30
    workers: int = 1
    file_mode: int = FILE_MODE
    advance: Callable[[Progress], None] = no_progress

    @property
    def work(self) -> Path:
        """Where an engine keeps what it needs to go on after it was stopped."""
        return self.directory / WORK


class Engine(Protocol):
    """Makes the parts of a task.

    Guarantees that every engine gives:
      - The same bytes in the same files as every other, at any number of workers, after any retry.
      - A part stands under its name when it is whole, and not before.
      - Neither the key nor a membership is written anywhere but in the batches.
    """

    name: ClassVar[str]

    def run(self, task: Task) -> Iterator[PartFile]:
        """The parts, in any order, each as soon as its file stands."""
        ...


def write_part_file(
    job: Job,
    schedule: Schedule,
    part: int,
    blocks: Iterable[pa.RecordBatch],
    directory: Path,
    *,
    mode: int = FILE_MODE,
) -> PartFile:
    """Assemble one part from its blocks and put it in its place."""
    return write_records(job, part, assemble(job, schedule, part, blocks), directory, mode=mode)


def write_records(
    job: Job, part: int, records: Iterable[pa.RecordBatch], directory: Path, *, mode: int = FILE_MODE
) -> PartFile:
    """Put one part in its place from its record batches: written aside, synced, renamed.

    Two workers that make the same part at once do not disturb each other: both write the same bytes.
    """
    work = directory / WORK
    work.mkdir(mode=0o700, exist_ok=True)
    aside = work / f"{part_name(part)}.{secrets.token_hex(8)}"
    try:
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            write_part(file, job.shape.schema, records)
            file.flush()
            os.fsync(file.fileno())
        found = PartFile(part=part, num_bytes=aside.stat().st_size, digest=digest_of_file(aside))
        aside.rename(directory / part_name(part))
    finally:
        aside.unlink(missing_ok=True)
    return found


def digest_of_file(path: Path) -> str:
    """The digest of a part file on disk."""
    with pa.memory_map(str(path)) as file:
        return digest_of(file.read_buffer())
