"""The file of a checkpoint: a line that names the format, a header, arrays as they lie in memory, a digest.

    format line | length of the header, 8 bytes | its SHA-256 | header, JSON | arrays | digest

Each array is filled up with zeros to a multiple of 64 bytes and cut into pieces of PIECE_BYTES, which are
written, read and checked side by side: the digest is SHA-256 of the SHA-256 of the header and of each piece.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from truebatch.errors import DamagedCheckpoint, NoSpace, OutputRefused

Arrays = dict[str, Any]
Header = dict[str, Any]
Bytes = npt.NDArray[np.uint8]

PIECE_BYTES = 2**23
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_DIGEST_BYTES = 32
_MAX_HEADER_BYTES = 2**28
_THREADS = 4


def describe(arrays: Arrays) -> list[dict[str, Any]]:
    """Name, type and shape of each array, in order: what the header says about them."""
    return [
        {"name": name, "dtype": jnp.dtype(array.dtype).name, "shape": list(array.shape)}
        for name, array in arrays.items()
    ]


def write_file(path: Path, unfinished: Path, header: Header, arrays: Arrays) -> None:
    """Write everything aside, make sure that it is on the disk, and rename."""
    text = json.dumps(header, separators=(",", ":")).encode()
    layout = _Layout(header["arrays"])
    try:
        with _opened(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            head = _line(header["format"]) + len(text).to_bytes(_LENGTH_BYTES, "little") + _sha(text) + text
            _write_at(descriptor, head, 0)
            digest = _write_pieces(descriptor, len(head), layout, arrays)
            _write_at(descriptor, _combined(text, digest), len(head) + layout.size)
            os.fsync(descriptor)
        os.replace(unfinished, path)
        with _opened(path.parent, os.O_RDONLY) as folder:
            os.fsync(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoSpace(
                f"a checkpoint needs {layout.size:,} bytes beside the two that are kept; "
                f"there is no room in {path.parent}.",
                hint="make room and train again: the run goes on from the checkpoint before.",
            ) from None
        raise OutputRefused(
            f"a checkpoint must be writable; got {path}: {error.strerror}.",
            hint="see to it and train again: the run goes on from the checkpoint before.",
        ) from None


def read_header(path: Path, format_name: str) -> tuple[Header, int]:
    """The header, and where the arrays begin."""
    line = _line(format_name)
    try:
        with path.open("rb") as file:
            start = file.read(len(line) + _LENGTH_BYTES)
            length = int.from_bytes(start[len(line) :], "little")
            if start[: len(line)] != line or length > _MAX_HEADER_BYTES:
                raise DamagedCheckpoint(f"{path} does not begin as a file of format {format_name!r}.")
            digest, text = file.read(_DIGEST_BYTES), file.read(length)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}.") from None
    if _sha(text) != digest:
        raise DamagedCheckpoint(f"the header of {path} is not what was written: its digest differs.")
    header: Header = json.loads(text)
    return header, len(start) + _DIGEST_BYTES + length


def read_arrays(path: Path, header: Header, offset: int) -> list[npt.NDArray[Any]]:
    """The arrays, in order, once the digest agrees."""
    layout = _Layout(header["arrays"])
    text = json.dumps(header, separators=(",", ":")).encode()
    body = np.empty(layout.size, dtype=np.uint8)

    def read_piece(place: tuple[int, int, int]) -> bytes:
        _, start, stop = place
        done = start
        while done < stop:
            count = os.preadv(descriptor, [body[done:stop].data], offset + done)
            if count == 0:
                break
            done += count
        return _sha(body[start:done].data)

    try:
        found, expected = path.stat().st_size, offset + layout.size + _DIGEST_BYTES
        if found != expected:
            raise DamagedCheckpoint(f"{path} must have {expected:,} bytes; it has {found:,}.")
        with _opened(path, os.O_RDONLY) as descriptor:
            digests = _side_by_side(read_piece, layout.pieces())
            written = os.pread(descriptor, _DIGEST_BYTES, offset + layout.size)
    except OSError as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}.") from None
    if _combined(text, digests) != written:
        raise DamagedCheckpoint(f"{path} is not what was written: its digest differs.")
    return [
        body[start : start + length].view(jnp.dtype(entry["dtype"])).reshape(entry["shape"])
        for entry, start, length in zip(header["arrays"], layout.starts, layout.lengths, strict=True)
    ]


class _Layout:
    """Where arrays lie, in bytes from the end of the header."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.lengths = [math.prod(entry["shape"]) * jnp.dtype(entry["dtype"]).itemsize for entry in entries]
        ends = np.cumsum([0, *(-(-length // _ALIGNMENT) * _ALIGNMENT for length in self.lengths)]).tolist()
        self.starts: list[int] = ends[:-1]
        self.size: int = ends[-1]
        self._ends: list[int] = ends[1:]

    def pieces(self) -> list[tuple[int, int, int]]:
        """Number of the array, first byte and end of each piece."""
        return [
            (i, begin, min(begin + PIECE_BYTES, end))
            for i, (start, end) in enumerate(zip(self.starts, self._ends, strict=True))
            for begin in range(start, end, PIECE_BYTES)
        ]


def _write_pieces(descriptor: int, offset: int, layout: _Layout, arrays: Arrays) -> list[bytes]:
    views = [_bytes_of(array) for array in arrays.values()]

    def write_piece(place: tuple[int, int, int]) -> bytes:
        i, start, stop = place
        data = views[i][start - layout.starts[i] : stop - layout.starts[i]]
        if len(data) < stop - start:
            data = np.concatenate([data, np.zeros(stop - start - len(data), dtype=np.uint8)])
        _write_at(descriptor, data.data, offset + start)
        return _sha(data.data)

    return _side_by_side(write_piece, layout.pieces())


def _bytes_of(array: Any) -> Bytes:
    """The bytes of an array, not copied where it lies in this machine's memory in one piece."""
    view: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return view


def _write_at(descriptor: int, data: bytes | memoryview, position: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, position)
        rest, position = rest[count:], position + count


def _side_by_side(
    work: Callable[[tuple[int, int, int]], bytes], pieces: list[tuple[int, int, int]]
) -> list[bytes]:
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(work, pieces))


def _combined(text: bytes, digests: list[bytes]) -> bytes:
    return _sha(_sha(text) + b"".join(digests))


def _sha(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _line(format_name: str) -> bytes:
    return f"{format_name}\n".encode()


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
