"""Reading ranges one after the other in one pass, from formats that cannot start in the middle."""

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from truebatch.errors import SourceChanged

# Streams from before a fork: their threads live in the parent, so they can be neither read nor closed.
_ABANDONED: list[object] = []

# Streams that wait for the range that comes next. Each may hold a few pages of every column.
_KEPT = 2


@dataclass
class _Stream:
    """Batches from `position` on; `rest` comes before what `batches` yields."""

    position: int
    rest: pa.RecordBatch | None
    batches: Iterator[pa.RecordBatch]


class Cursors:
    """Streams of a source that wait where a read ended, so that the next range goes on from there.

    `open_at(row)` yields all batches from a row to the end of the source.

    Guarantees:
      - The same rows as from a new stream: a stream is taken by one reader, and kept only when all of its
        range was read.
      - At most two streams are kept, the latest. They are left behind when a source is pickled, or the
        process forked.
    """

    def __init__(self, open_at: Callable[[int], Iterator[pa.RecordBatch]], num_rows: int) -> None:
        self._open_at = open_at
        self._num_rows = num_rows
        self._kept: list[_Stream] = []
        self._lock = threading.Lock()
        self._process = os.getpid()

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1."""
        if start == stop:
            return
        stream = self._taken(start) or _Stream(start, None, self._open_at(start))
        while stream.position < stop:
            batch = stream.rest if stream.rest is not None else next(stream.batches, None)
            if batch is None:
                raise SourceChanged(
                    "a source must hold the rows it was opened with; "
                    f"got {stream.position} of {self._num_rows}."
                )
            part = batch.slice(0, stop - stream.position)
            stream.position += part.num_rows
            stream.rest = batch.slice(part.num_rows) if part.num_rows < batch.num_rows else None
            if stream.position == stop < self._num_rows:
                # Before the last rows are given out: a reader that has them all need not ask again.
                self._keep(stream)
            if part.num_rows:
                yield part

    def _taken(self, start: int) -> _Stream | None:
        if self._process != os.getpid():
            _ABANDONED.append(self._kept)
            self._kept, self._lock, self._process = [], threading.Lock(), os.getpid()
        with self._lock:
            for i, stream in enumerate(self._kept):
                if stream.position == start:
                    return self._kept.pop(i)
        return None

    def _keep(self, stream: _Stream) -> None:
        with self._lock:
            self._kept.append(stream)
            del self._kept[:-_KEPT]
