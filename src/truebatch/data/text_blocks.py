"""Blocks of text to record batches: side by side, in order, and checked against the index."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from truebatch.data.files import Spans, changed
from truebatch.data.parallel import in_order, prefetched
from truebatch.data.pieces import pieces
from truebatch.data.text_bad_rows import require_good, stray_quotes, without_rows
from truebatch.data.text_bytes import GzipPlaces
from truebatch.data.text_format import RowFormat
from truebatch.data.text_index import TextIndex

_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class TextBlocks:
    """All blocks of a source, by file; `places` are the gzip files' and stay behind when it is pickled."""

    form: RowFormat
    indexes: tuple[TextIndex, ...]
    places: tuple[GzipPlaces, ...]

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _blocks, (self.form, self.indexes)

    def spans(self) -> Spans:
        """The rows of each block."""
        return Spans(int(rows) for index in self.indexes for rows in index.rows)

    def stream(self, start: int) -> Iterator[pa.RecordBatch]:
        """All batches from a row on."""
        block, skip = self.spans().find(start)
        for batch in in_order(self._parsed, prefetched(self._texts(block))):
            yield from pieces(batch.slice(skip), batch.schema)
            skip = max(0, skip - batch.num_rows)

    def _texts(self, first: int) -> Iterator[tuple[TextIndex, int, bytes]]:
        """(file, block, text) from one block on, without blocks of no rows."""
        for index, places in zip(self.indexes, self.places, strict=True):
            count = len(index.rows)
            if first < count:
                if Path(index.path).stat().st_size != index.size:
                    raise changed(index.path)
                for block, data in index.blocks(first, places):
                    if index.rows[block]:
                        yield index, block, data
            first = max(0, first - count)

    def _parsed(self, item: tuple[TextIndex, int, bytes]) -> pa.RecordBatch:
        index, block, data = item
        if zlib.crc32(data) != index.checks[block]:
            raise changed(index.path)
        try:
            batch = self.form.parse(without_rows(data, self.form, index.bad.get(block, _NONE)))
        except pa.ArrowException:
            batch = None
        if batch is None or batch.num_rows != index.rows[block]:
            line = int(index.lines[block])
            require_good(index.path, data, line, self.form)
            raise stray_quotes(index.path, line)
        return batch


def _blocks(form: RowFormat, indexes: tuple[TextIndex, ...]) -> TextBlocks:
    return TextBlocks(form=form, indexes=indexes, places=tuple(GzipPlaces() for _ in indexes))
