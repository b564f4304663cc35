"""How a text file begins: its header, and the rows from which types are inferred."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from truebatch.data.text_bad_rows import bad_rows, require_good, stray_quotes, without_rows
from truebatch.data.text_bytes import GzipPlaces, open_text
from truebatch.data.text_format import (
    Dialect,
    RowFormat,
    Types,
    infer_format,
    require_names,
    text_format,
)
from truebatch.data.text_index import OnBadRow
from truebatch.data.text_rows import last_row_end, row_ends
from truebatch.errors import InvalidArgument, InvalidData

_BOM = b"\xef\xbb\xbf"
_HEADER_BYTES = 1 << 18
_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Head:
    """The names of a file's columns, and the offset in its text where rows begin."""

    path: Path
    names: tuple[str, ...]
    begin: int
    lines: int  # before the rows

    @classmethod
    def of(cls, path: Path, dialect: Dialect, columns: Sequence[str] | None) -> "Head":
        """The head of a file; `columns` when it has no header."""
        data = read_text(path, 0, _HEADER_BYTES)
        begin = len(_BOM) if data.startswith(_BOM) else 0
        if len(data) == begin:
            raise InvalidData(f"a text file must not be empty; got {str(path)!r} without a row.")
        if columns is not None:
            if isinstance(columns, str) or not all(isinstance(name, str) and name for name in columns):
                raise InvalidArgument(f"columns must be a list of names; got {columns!r}.")
            require_names(columns, str(path), is_header=False)
            return cls(path=path, names=tuple(columns), begin=begin, lines=0)
        end = int(row_ends(data[begin:], dialect.quote_byte)[0])
        try:
            names = dialect.names(data[begin : begin + end])
        except pa.ArrowException:
            raise InvalidData(f"{path}, line 1: a header must be a row of names in UTF-8.") from None
        require_names(names, str(path), is_header=True)
        return cls(path=path, names=tuple(names), begin=begin + end, lines=data.count(b"\n", 0, begin + end))


def format_of(
    heads: Sequence[Head], dialect: Dialect, types: Types | None, on_bad_row: OnBadRow
) -> RowFormat:
    """The format of all files: names that agree, and types inferred from the first MiB of rows."""
    first = heads[0]
    for head in heads:
        if head.names != first.names:
            raise InvalidData(
                f"all files of a source must have the same columns; got {len(first.names)} in "
                f"{str(first.path)!r} and others, or in another order, in {str(head.path)!r}.",
                hint="read them as two sources, or give columns=[...] if they have no header.",
            )
    sample = b""
    for first in heads:
        block = read_text(first.path, first.begin, _SAMPLE_BYTES)
        sample = block[: last_row_end(block, dialect.quote_byte)] if len(block) == _SAMPLE_BYTES else block
        if sample:
            break
    shape = text_format(dialect, first.names)
    if not _has_shape(sample, shape):
        if on_bad_row == "error":
            require_good(str(first.path), sample, first.lines, shape)
        sample = without_rows(sample, shape, np.array(bad_rows(sample, shape), np.int64))
        if not _has_shape(sample, shape):
            raise stray_quotes(str(first.path), first.lines)
    return infer_format(sample, dialect, first.names, types)


def _has_shape(sample: bytes, shape: RowFormat) -> bool:
    try:
        shape.parse(sample)
    except pa.ArrowException:
        return not sample
    return True


def read_text(path: Path, offset: int, size: int) -> bytes:
    """Some bytes of a file's text."""
    with contextlib.closing(open_text(path, GzipPlaces())) as text:
        text.seek(offset)
        return text.read(size)
