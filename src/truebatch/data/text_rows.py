"""Where rows of text begin and end: at newlines that are not within quotes."""

import numpy as np
import numpy.typing as npt

_NEWLINE = 10


def last_row_end(data: bytes, quote: bytes | None) -> int:
    """Where the last whole row in `data` ends, newline included; 0 if there is none.

    `data` begins with a row. Quotes are counted, so a doubled quote within quotes is as good as none.
    """
    end = data.rfind(b"\n")
    if quote is None or end < 0:
        return end + 1
    before = data.count(quote, 0, end)
    while end >= 0 and before % 2:
        newer = data.rfind(b"\n", 0, end)
        before -= data.count(quote, max(newer, 0), end)
        end = newer
    return end + 1


def row_ends(data: bytes, quote: bytes | None) -> npt.NDArray[np.int64]:
    """Where each row ends, newline included; the last one may do without."""
    view = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(view == _NEWLINE)
    if quote is not None and quote in data:
        quotes = np.flatnonzero(view == quote[0])
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    ends = ends + 1
    if len(data) and (len(ends) == 0 or ends[-1] < len(data)):
        ends = np.append(ends, len(data))
    return ends.astype(np.int64)


def count_rows_and_lines(data: bytes, quote: bytes | None) -> tuple[int, int]:
    """How many rows and how many lines; they differ by the newlines within quotes."""
    lines = int(np.count_nonzero(np.frombuffer(data, np.uint8) == _NEWLINE))
    unended = bool(data) and not data.endswith(b"\n")
    if quote is None or quote not in data:
        return lines + unended, lines + unended
    return len(row_ends(data, quote)), lines + unended
