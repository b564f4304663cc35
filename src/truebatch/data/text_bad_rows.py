"""Rows of text that are not of their format: which they are, and what is wrong with them."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data.text_format import RowFormat
from truebatch.data.text_rows import row_ends
from truebatch.errors import InvalidData

Ints = npt.NDArray[np.int64]


def bad_rows(data: bytes, form: RowFormat, *, first_only: bool = False) -> list[int]:
    """Positions of the rows that are not of this format, in order.

    Rows of another number of columns are counted out where that is safe, and the others found by halving.
    """
    ends = row_ends(data, form.dialect.quote_byte)
    miscounted = _miscounted(data, ends, form)
    counted = np.delete(np.arange(len(ends)), miscounted)
    rest = without_rows(data, form, miscounted)
    unreadable = counted[_unreadable(rest, form, first_only=first_only)]
    found: list[int] = np.union1d(miscounted, unreadable).tolist()
    return found[:1] if first_only else found


def _unreadable(data: bytes, form: RowFormat, *, first_only: bool) -> list[int]:
    """Rows that cannot be read by themselves: a range that can be read as a whole holds none."""
    ends = row_ends(data, form.dialect.quote_byte)
    starts = np.concatenate([[0], ends[:-1]])
    found: list[int] = []
    ranges = [(0, len(ends))]
    while ranges and not (first_only and found):
        low, high = ranges.pop()
        if low == high or _is_good(data[starts[low] : ends[high - 1]], form, high - low):
            continue
        if high - low == 1:
            found.append(low)
            continue
        middle = (low + high) // 2
        ranges += [(middle, high), (low, middle)]
    return found


def _miscounted(data: bytes, ends: Ints, form: RowFormat) -> Ints:
    """Rows with too few or too many delimiters; none when there are quotes, which may hold some."""
    quote = form.dialect.quote_byte
    if len(form.names) == 1 or (quote is not None and quote in data):
        return np.zeros(0, np.int64)
    delimiters = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(form.dialect.delimiter))
    counts = np.diff(np.searchsorted(delimiters, ends), prepend=0)
    return np.flatnonzero(counts != len(form.names) - 1)


def without_rows(data: bytes, form: RowFormat, bad: Ints) -> bytes:
    """The data without some of its rows."""
    if not len(bad):
        return data
    ends = row_ends(data, form.dialect.quote_byte)
    kept = np.ones(len(ends), np.bool_)
    kept[bad] = False
    lengths = np.diff(ends, prepend=0)
    return np.frombuffer(data, np.uint8)[np.repeat(kept, lengths)].tobytes()


def why_bad(row: bytes, form: RowFormat) -> str:
    """What is wrong with a row: its number of columns, or the column that is not of its type."""
    stray = (
        "a row must be one line, with quotes around whole fields only; got stray quotes or carriage returns"
    )
    try:
        count = form.dialect.count_columns(row)
    except pa.ArrowException:  # what is one row by its line end is several to the parser
        return stray
    if count != len(form.names):
        got = f"{count} column{'s' * (count != 1)}" if count else "an empty line"
        return f"a row must have {len(form.names)} columns; got {got}"
    if form.hexadecimal and b"\0" in row:
        return "a row must be text; got a NUL byte"
    for name, kind in zip(form.names, form.types, strict=True):
        try:
            form.parse(row, [name])
        except pa.ArrowException:
            what = "8 hex digits" if name in form.hexadecimal else f"of type {kind}"
            empty = "" if name in form.required else " or empty"
            return f"column {name!r} must be {what}{empty}; got something else"
    return stray


def require_good(path: str, data: bytes, first_line: int, form: RowFormat) -> None:
    """Raise the error that names the first bad row of a block, if there is one."""
    bad = bad_rows(data, form, first_only=True)
    if not bad:
        return
    ends = row_ends(data, form.dialect.quote_byte)
    start = int(ends[bad[0] - 1]) if bad[0] else 0
    why = why_bad(data[start : ends[bad[0]]], form)
    line = first_line + data.count(b"\n", 0, start) + 1
    hint = "on_bad_row='skip' (--on-bad-row skip) leaves such rows out, and counts them."
    if form.inferred and why.startswith("column"):
        hint += " Types were inferred from the first rows: types={...} gives them."
    raise InvalidData(f"{path}, line {line}: {why}.", hint=hint)


def stray_quotes(path: str, first_line: int) -> InvalidData:
    """The error for rows that can be read one by one, and not together."""
    return InvalidData(
        f"{path}, from line {first_line + 1}: quotes must be around whole fields only; got stray ones.",
        hint="quote=None reads quotes as letters.",
    )


def _is_good(data: bytes, form: RowFormat, count: int) -> bool:
    try:
        return bool(form.parse(data).num_rows == count)
    except pa.ArrowException:
        return False
