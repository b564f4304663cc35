"""Where the rows of a text file are: one pass over its bytes, cut into blocks of whole rows."""

import contextlib
import hashlib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from truebatch.data.parallel import in_order, prefetched
from truebatch.data.text_bad_rows import bad_rows, require_good
from truebatch.data.text_bytes import GzipPlaces, open_text
from truebatch.data.text_format import RowFormat
from truebatch.data.text_rows import count_rows_and_lines, last_row_end, row_ends
from truebatch.errors import InvalidData

OnBadRow = Literal["error", "skip"]
Ints = npt.NDArray[np.int64]

# Text in a block: enough that work per block does not show, small enough to be passed over for one row.
BLOCK_BYTES = 1 << 22

# A row may be longer than a block, up to here: beyond, it is a quote that was never closed.
_ROW_BYTES = 1 << 27


@dataclass(frozen=True, kw_only=True, eq=False)
class TextIndex:
    """The blocks of one file: the offset, bytes, rows kept, lines before, and checksum of each.

    `bad` holds, by block, the positions of rows that are skipped; `digest` stands for the whole text.
    """

    path: str
    size: int
    offsets: Ints
    lengths: Ints
    rows: Ints
    lines: Ints
    checks: Ints
    bad: dict[int, Ints]
    skipped_lines: tuple[int, str]  # how many rows are skipped, and a digest of their line numbers
    digest: str

    def blocks(self, first: int, places: GzipPlaces) -> Iterator[tuple[int, bytes]]:
        """(block, its text) from one block on."""
        with contextlib.closing(open_text(Path(self.path), places)) as text:
            text.seek(int(self.offsets[first]))
            for block in range(first, len(self.offsets)):
                yield block, text.read(int(self.lengths[block]))


@dataclass(frozen=True)
class _Block:
    offset: int
    data: bytes


@dataclass(frozen=True)
class _Counted:
    length: int
    offset: int
    rows: int
    lines: int
    check: int
    bad: Ints
    bad_lines: Ints  # counted from the block's first line


def index_text(
    path: Path, *, begin: int, lines: int, form: RowFormat, places: GzipPlaces, on_bad_row: OnBadRow
) -> TextIndex:
    """The index of a file whose rows begin at an offset of its text, after the lines of a header.

    The bytes are read once, by one thread, and counted by others. Rows are parsed only when bad ones are to
    be skipped, and at the end of the file, where one that was cut short shows.
    """
    size = path.stat().st_size
    quote = form.dialect.quote_byte

    def count(block: _Block) -> _Counted:
        return _count(block, form, parse=on_bad_row == "skip")

    blocks = prefetched(_cut(path, begin, quote, places))
    counted = list(in_order(count, blocks))
    before = np.cumsum([lines, *(c.lines for c in counted)], dtype=np.int64)
    if counted and on_bad_row == "error":
        _check_end(path, counted[-1], int(before[-2]), form, places)
    bad_lines = np.array([line + at for c, at in zip(counted, before, strict=False) for line in c.bad_lines])
    checks = np.array([c.check for c in counted], np.int64)
    lengths = np.array([c.length for c in counted], np.int64)
    return TextIndex(
        path=str(path),
        size=size,
        offsets=np.array([c.offset for c in counted], np.int64),
        lengths=lengths,
        rows=np.array([c.rows for c in counted], np.int64),
        lines=before[:-1],
        checks=checks,
        bad={i: c.bad for i, c in enumerate(counted) if len(c.bad)},
        skipped_lines=(len(bad_lines), _digest(bad_lines)),
        digest=_digest(checks, lengths),
    )


def _cut(path: Path, begin: int, quote: bytes | None, places: GzipPlaces) -> Iterator[_Block]:
    """Blocks of whole rows, each cut at the last row end within BLOCK_BYTES."""
    with contextlib.closing(open_text(path, places)) as text:
        text.seek(begin)
        offset, size, rest = begin, BLOCK_BYTES, b""
        while True:
            data = rest + text.read(size - len(rest))
            at_end = len(data) < size
            end = len(data) if at_end else last_row_end(data, quote)
            if end == 0 and not at_end:
                if size >= _ROW_BYTES:
                    raise _endless(path, offset)
                size, rest = size * 2, data
                continue
            if end:
                yield _Block(offset, data[:end] if end < len(data) else data)
            if at_end:
                return
            offset, size, rest = offset + end, BLOCK_BYTES, data[end:]


def _count(block: _Block, form: RowFormat, *, parse: bool) -> _Counted:
    data = block.data
    rows, lines = count_rows_and_lines(data, form.dialect.quote_byte)
    bad = np.array(bad_rows(data, form) if parse else [], np.int64)
    bad_lines = bad
    if len(bad):
        starts = np.concatenate([[0], row_ends(data, form.dialect.quote_byte)])[bad]
        bad_lines = np.searchsorted(np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")), starts) + 1
    check = zlib.crc32(data)
    return _Counted(len(data), block.offset, rows - len(bad), lines, check, bad, bad_lines)


def _check_end(path: Path, last: _Counted, line: int, form: RowFormat, places: GzipPlaces) -> None:
    """Parse the last row: a file that was cut short mostly ends within one."""
    with contextlib.closing(open_text(path, places)) as text:
        text.seek(last.offset)
        data = text.read(last.length)
    ends = row_ends(data, form.dialect.quote_byte)
    start = int(ends[-2]) if len(ends) > 1 else 0
    require_good(str(path), data[start:], line + data.count(b"\n", 0, start), form)


def _endless(path: Path, offset: int) -> InvalidData:
    return InvalidData(
        f"a row of text must be at most {_ROW_BYTES} bytes; got a longer one in {str(path)!r} that begins "
        f"at byte {offset}.",
        hint="a quote may be open there that is never closed: quote=None reads quotes as letters.",
    )


def _digest(*arrays: Ints) -> str:
    state = hashlib.blake2b(digest_size=16)
    for array in arrays:
        state.update(np.ascontiguousarray(array, "<i8").tobytes())
    return state.hexdigest()
