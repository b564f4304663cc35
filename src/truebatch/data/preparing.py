"""Writing a source's rows, encoded if need be, as one file that is mapped into memory."""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from truebatch.data.encoded import EncodedSource
from truebatch.data.features import Features
from truebatch.data.layout import Layout
from truebatch.data.mapped import DIGEST_ROWS, HEAD_BYTES, NAME, Footer, MappedSource, combined, digest_of
from truebatch.data.opening import open_source
from truebatch.data.parallel import in_order
from truebatch.data.rows import pack
from truebatch.data.source import Source
from truebatch.errors import InvalidData, NoSpace, OutputRefused

_MODE = 0o600


def prepare(
    source: object,
    path: str | os.PathLike[str],
    features: Features | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> MappedSource:
    """Write the rows of `source` to `path` for random access, and open them; kept if they are there already.

    `source` is anything that `open_source` takes. `features` encodes it, and must be given when a column
    has no fixed width. `progress(done, total)` is called as rows are written.

    Guarantees:
      - A file that was prepared from a source of the same identity with the same features is opened as it is;
        one of another source or other features is replaced. Any other file is refused.
      - The file is written aside, synchronized and renamed: whatever happens, `path` is whole or untouched.
      - Like the data, the file is for its owner alone (mode 0600).
      - Memory does not depend on the number of rows.
    """
    place = Path(path)
    rows = open_source(source)
    rows = EncodedSource(rows, features) if features is not None else rows
    layout = _layout_of(rows)
    made_from = json.loads(json.dumps(rows.identity()))
    found = _standing(place)
    if found is not None and found.made_from == made_from and found.schema == layout.schema:
        return found
    with _aside(place) as descriptor:
        _write(rows, layout, descriptor, made_from, progress or _silent)
        os.replace(_aside_name(place), place)
        _synchronize(place.parent)
    return MappedSource.open(place)


def _layout_of(source: Source) -> Layout:
    layout = Layout.of(source.schema)
    if layout.variable or not layout.width:
        names = ", ".join(f"{field.name} ({field.type})" for field in layout.variable)
        raise InvalidData(
            f"prepared rows must have columns of fixed width only; got {names or 'no column'}.",
            hint="encode them: features=Features.infer(source.schema, label=...).",
        )
    return layout


def _standing(path: Path) -> MappedSource | None:
    """The prepared rows that are there; None if there are none, or none that are whole."""
    if not path.exists() and not path.is_symlink():
        return None
    with contextlib.suppress(InvalidData):
        return MappedSource.open(path)
    if not path.is_file() or path.stat().st_size < len(NAME) or not _is_ours(path):
        raise OutputRefused(
            f"prepared rows must have a place of their own; got {str(path)!r}, which is something else.",
            hint="choose another path.",
        )
    return None


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(NAME)) == NAME


def _write(
    source: Source,
    layout: Layout,
    descriptor: int,
    made_from: dict[str, object],
    progress: Callable[[int, int], None],
) -> None:
    """Fill the file: head, rows, footer."""
    n, width = source.num_rows, layout.width
    size = HEAD_BYTES + n * width
    try:
        _allocate(descriptor, size)
        _write_at(descriptor, NAME.ljust(HEAD_BYTES, b"\0"), 0)

        def write(block: tuple[int, list[pa.RecordBatch]]) -> tuple[int, bytes]:
            first, batches = block
            rows = np.empty((sum(b.num_rows for b in batches), width), np.uint8)
            at = 0
            for batch in batches:
                pack(batch, layout, rows[at : at + batch.num_rows])
                at += batch.num_rows
            _write_at(descriptor, rows.data.cast("B"), HEAD_BYTES + first * width)
            return first + len(rows), digest_of(rows)

        digests = []
        for done, digest in in_order(write, _blocks(source.read(0, n))):
            digests.append(digest)
            progress(done, n)
        footer = Footer(n, layout.schema, combined(iter(digests)), made_from)
        _write_at(descriptor, footer.to_bytes(), size)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise NoSpace(
            f"prepared rows of {n} rows need {size} bytes; the disk has no room for them.",
            hint="make room, or choose a path on another disk. What was written was removed.",
        ) from None


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """(first row, batches) of every DIGEST_ROWS rows."""
    first, held, count = 0, [], 0
    for batch in batches:
        at = 0
        while at < batch.num_rows:
            part = batch.slice(at, DIGEST_ROWS - count)
            held.append(part)
            at += part.num_rows
            count += part.num_rows
            if count == DIGEST_ROWS:
                yield first, held
                first, held, count = first + count, [], 0
    if count:
        yield first, held


@contextlib.contextmanager
def _aside(path: Path) -> Iterator[int]:
    """A new file beside `path` that nobody else writes; removed unless it was renamed."""
    aside = _aside_name(path)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    try:
        descriptor = os.open(aside, flags, _MODE)
    except OSError as error:
        raise OutputRefused(
            f"prepared rows must be written to a directory that can be written; got {str(path)!r}: "
            f"{error.strerror}."
        ) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputRefused(
                f"prepared rows take one writer at a time; {str(path)!r} is being written.",
                hint="wait until the other run has ended.",
            ) from None
        if not _is_same(aside, descriptor):
            raise OutputRefused(f"{str(path)!r} was written by another run just now.", hint="run again.")
        try:
            os.fchmod(descriptor, _MODE)
            os.ftruncate(descriptor, 0)
            yield descriptor
        finally:
            if _is_same(aside, descriptor):
                aside.unlink()
    finally:
        os.close(descriptor)


def _aside_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


def _is_same(path: Path, descriptor: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    return False


def _allocate(descriptor: int, size: int) -> None:
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _synchronize(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _silent(_done: int, _total: int) -> None: ...
