"""Prepared rows: one file of rows of one width, mapped into memory, any of which is a few cache lines away.

The file, `truebatch-rows/1`: its name, padded with zeros to 4096 bytes; the rows, as `data.rows` packs them;
a footer of JSON; the footer's length in 8 bytes, little-endian, its BLAKE2b digest in 16, and the name again.
"""

import base64
import hashlib
import json
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data.features import Features
from truebatch.data.files import changed
from truebatch.data.layout import Layout
from truebatch.data.pieces import PIECE_ROWS
from truebatch.data.rows import Bytes, to_batch
from truebatch.data.source import (
    Identity,
    require_range,
    schema_entries,
    schema_from_bytes,
    schema_to_bytes,
)
from truebatch.errors import InvalidArgument, InvalidData

NAME = b"TRUEBATCH-ROWS/1"
HEAD_BYTES = 4096

# Rows that share a digest, so that digests can be computed side by side.
DIGEST_ROWS = 1 << 16

_TAIL_BYTES = 8 + 16 + len(NAME)

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Footer:
    """What a file of rows says of itself."""

    rows: int
    schema: pa.Schema
    digest: str
    made_from: Identity

    def to_bytes(self) -> bytes:
        """The end of the file."""
        record = {
            "rows": self.rows,
            "schema": base64.b64encode(schema_to_bytes(self.schema)).decode(),
            "digest": self.digest,
            "made_from": self.made_from,
        }
        text = json.dumps(record).encode()
        return text + len(text).to_bytes(8, "little") + _digest(text) + NAME

    @classmethod
    def read(cls, path: Path) -> "Footer":
        """The footer of a whole file; anything else is refused."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            if file.read(len(NAME)) != NAME:
                raise InvalidData(f"prepared rows must begin with their name; got {str(path)!r} without it.")
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
            length = int.from_bytes(tail[:8], "little")
            file.seek(max(0, size - _TAIL_BYTES - length))
            text = file.read(length) if tail.endswith(NAME) and length < size else b""
        if not text or _digest(text) != tail[8:24]:
            raise _cut(path)
        try:
            footer = cls._of(json.loads(text))
        except (KeyError, TypeError, ValueError, RecursionError, pa.ArrowException):
            raise _cut(path) from None
        layout = Layout.of(footer.schema)
        wanted = HEAD_BYTES + footer.rows * layout.width + length + _TAIL_BYTES
        if layout.variable or not layout.width or size != wanted:
            raise _cut(path)
        return footer

    @classmethod
    def _of(cls, record: dict[str, Any]) -> "Footer":
        """The footer that `to_bytes` wrote, and a ValueError or the like for anything else."""
        rows, digest, made_from = record["rows"], record["digest"], record["made_from"]
        if type(rows) is not int or rows < 0:
            raise ValueError("its number of rows is none")
        if not (isinstance(digest, str) and isinstance(made_from, dict)):
            raise TypeError("a field is not of its type")
        return cls(rows, schema_from_bytes(base64.b64decode(record["schema"])), digest, made_from)


class MappedSource:
    """Prepared rows as a source of random access.

    Made by `prepare` and by `MappedSource.open(path)`.

    Guarantees:
      - Opening reads the footer alone. A file that is not whole is refused.
      - Rows are held by the system's page cache, which many processes share; reading in order takes
        memory for one piece, and gathering maps the pages that hold the rows.
      - `identity()` is a digest of the values, whatever they were made from.
    """

    def __init__(self, path: Path, footer: Footer) -> None:
        self._path, self._footer = path, footer
        self._layout = Layout.of(footer.schema)
        # Kept open, so that what is read is what is mapped even when the file is replaced.
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)
        self._rows = _mapped(self._descriptor, footer.rows, self._layout.width)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "MappedSource":
        """The rows of a file that `prepare` wrote."""
        place = Path(path)
        try:
            return cls(place, Footer.read(place))
        except OSError as error:
            raise InvalidData(
                f"prepared rows must be a file; got {str(place)!r}: {error.strerror}."
            ) from None

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._footer.schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self._footer.rows

    @property
    def layout(self) -> Layout:
        """Where the columns stand in a row."""
        return self._layout

    @property
    def rows(self) -> Bytes:
        """All rows, a read-only matrix [num_rows, layout.width] of bytes in the map."""
        return self._rows

    @property
    def made_from(self) -> Identity:
        """The identity of the source that was prepared."""
        return self._footer.made_from

    @property
    def features(self) -> Features | None:
        """How the rows were encoded; None when they were not."""
        encoded = self.made_from.get("features")
        return Features.from_dict(encoded) if isinstance(encoded, dict) else None

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        for at in range(start, stop, PIECE_ROWS):
            yield to_batch(self._copied(at, min(at + PIECE_ROWS, stop)), self._layout)

    def gather(self, rows: Int64s, out: Bytes | None = None) -> Bytes:
        """These rows, in this order, packed: a matrix [rows, layout.width], which may be given."""
        rows, width = np.asarray(rows, np.int64), self._layout.width
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.num_rows:
            raise InvalidArgument(f"rows must be from 0 to {self.num_rows - 1}; got one outside.")
        if out is None:
            out = np.empty((len(rows), width), np.uint8)
        elif out.shape != (len(rows), width) or out.dtype != np.uint8 or not out.flags.c_contiguous:
            raise InvalidArgument(
                f"out must be a C-contiguous uint8 matrix of shape ({len(rows)}, {width}); "
                f"got {out.dtype} of shape {out.shape}."
            )
        if os.fstat(self._descriptor).st_size < HEAD_BYTES + self.num_rows * width:
            raise _cut(self._path)  # what is mapped is there only as long as the file is
        # Rows are within range, so nothing is clipped: this is the mode without a buffer in between.
        np.take(self._rows, rows, axis=0, out=out, mode="clip")
        return out

    def take(self, rows: Int64s) -> pa.RecordBatch:
        """These rows, in this order, as columns."""
        return to_batch(self.gather(rows), self._layout)

    def identity(self) -> Identity:
        """Number of rows, schema and a digest of the values."""
        return {
            "format": "prepared",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "digest": self._footer.digest,
        }

    def verify(self) -> None:
        """Read all rows and hold them against their digest."""
        starts = range(0, self.num_rows, DIGEST_ROWS)
        parts = (self._copied(at, min(at + DIGEST_ROWS, self.num_rows)) for at in starts)
        if combined(digest_of(part) for part in parts) != self._footer.digest:
            raise InvalidData(
                f"prepared rows must be as they were written; got {str(self._path)!r} with others.",
                hint="remove the file and prepare it again.",
            )

    def _copied(self, start: int, stop: int) -> Bytes:
        """Rows read past the map: a pass through the map would count as this process's memory."""
        width = self._layout.width
        rows = np.empty((stop - start, width), np.uint8)
        view, offset = rows.reshape(-1).data, HEAD_BYTES + start * width
        while view.nbytes:
            count = os.preadv(self._descriptor, [view], offset)
            if count == 0:
                raise _cut(self._path)
            view, offset = view[count:], offset + count
        return rows

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _reopened, (str(self._path), self._footer.digest)


def digest_of(rows: Bytes) -> bytes:
    """SHA-256 of DIGEST_ROWS rows, or of the last ones."""
    return hashlib.sha256(np.ascontiguousarray(rows).data if rows.size else b"").digest()


def combined(digests: Iterator[bytes]) -> str:
    """The digest of all rows."""
    state = hashlib.blake2b(digest_size=16)
    for digest in digests:
        state.update(digest)
    return state.hexdigest()


def _reopened(path: str, digest: str) -> MappedSource:
    source = MappedSource.open(path)
    if source.identity()["digest"] != digest:
        raise changed(path)
    return source


def _mapped(descriptor: int, count: int, width: int) -> Bytes:
    if count * width == 0:
        return np.empty((count, width), np.uint8)
    data = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    return np.frombuffer(data, np.uint8, count=count * width, offset=HEAD_BYTES).reshape(count, width)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _cut(path: Path) -> InvalidData:
    return InvalidData(
        f"prepared rows must be whole; got {str(path)!r}, whose end is missing or damaged.",
        hint="remove the file and prepare it again.",
    )
