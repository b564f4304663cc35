"""Rows of the source as the passes over it want them: in pieces of a stated size, one read ahead."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data import Layout, Source, pack
from truebatch.errors import SourceChanged

Item = TypeVar("Item")


def ranges(start: int, stop: int, rows: int, unit: int) -> Iterator[range]:
    """Consecutive ranges of about `rows` rows that begin and end on multiples of `unit`, where that fits.

    >>> [(r.start, r.stop) for r in ranges(0, 10, 5, 2)]
    [(0, 4), (4, 8), (8, 10)]
    """
    step = max(1, rows)
    if step >= unit:
        step = step // unit * unit
    first = start
    while first < stop:
        last = min((first // step + 1) * step, stop)
        yield range(first, last)
        first = last


def packed_rows(
    source: Source, layout: Layout, rows: range, out: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """These rows of the source as rows of one width, in `out`, which is a matrix [rows, width]."""
    end = 0
    for batch in source.read(rows.start, rows.stop):
        start, end = end, end + batch.num_rows
        if end > len(rows):
            break
        pack(batch, layout, out[start:end])
    if end != len(rows):
        raise _other_length(rows, end)
    return out


def record_batch(source: Source, rows: range) -> pa.RecordBatch:
    """These rows of the source as one record batch."""
    batches = list(source.read(rows.start, rows.stop))
    if sum(batch.num_rows for batch in batches) != len(rows):
        raise _other_length(rows, sum(batch.num_rows for batch in batches))
    columns = [pa.concat_arrays([batch.column(i) for batch in batches]) for i in range(len(source.schema))]
    return pa.RecordBatch.from_arrays(columns, schema=source.schema)


def _other_length(rows: range, found: int) -> SourceChanged:
    return SourceChanged(
        f"a source must give the rows it says it has; rows {rows.start} to {rows.stop - 1} "
        f"came out as {found} rows, not {len(rows)}.",
        hint="see whether its files change while they are read.",
    )


def ahead(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """The items, in order, up to `depth` of them made in a thread of their own before they are asked for.

    >>> list(ahead(map(str, range(3))))
    ['0', '1', '2']
    """
    source = iter(items)
    waiting: deque[Future[list[Item]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            for _ in range(depth):
                waiting.append(pool.submit(_next, source))
            while found := waiting.popleft().result():
                waiting.append(pool.submit(_next, source))
                yield found.pop()
        finally:
            for future in waiting:
                future.cancel()


def _next(source: Iterator[Item]) -> list[Item]:
    return list(itertools.islice(source, 1))
