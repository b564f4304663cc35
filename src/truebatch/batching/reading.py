"""Rows of the source as the passes over it want them: in pieces of a stated size, one read ahead."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data import Layout, Source, pack
from truebatch.errors import SourceChanged

Item = TypeVar("Item")
Result = TypeVar("Result")


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


def packed_rows(source: Source, layout: Layout, rows: range) -> npt.NDArray[np.uint8]:
    """These rows of the source as rows of one width."""
    out = np.empty((len(rows), layout.width), np.uint8)
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


def ahead(items: Iterable[Item], work: Callable[[Item], Result], depth: int = 1) -> Iterator[Result]:
    """work(item) for each item, in order, up to `depth` of them done before they are asked for."""
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        waiting: list[Future[Result]] = []
        source = iter(items)
        try:
            for item in itertools.islice(source, depth):
                waiting.append(pool.submit(work, item))
            while waiting:
                result = waiting.pop(0).result()
                for item in itertools.islice(source, 1):
                    waiting.append(pool.submit(work, item))
                yield result
                del result
        finally:
            for future in waiting:
                future.cancel()
