"""A source whose rows are encoded as they are read."""

from collections.abc import Iterator

import pyarrow as pa

from truebatch.data.features import Features
from truebatch.data.parallel import in_order
from truebatch.data.source import Identity, Source


class EncodedSource:
    """The rows of a source as `features` encodes them, in the same order.

    Guarantees:
      - The columns and their types are checked when it is made; a label that is neither 0 nor 1 is an error
        that names its row when it is read.
      - Pieces are encoded side by side, a few of them ahead.
    """

    def __init__(self, source: Source, features: Features) -> None:
        features.require(source.schema)
        self._source = source
        self._features = features

    @property
    def features(self) -> Features:
        """How rows are encoded."""
        return self._features

    @property
    def schema(self) -> pa.Schema:
        """`label`, `i` and `c`."""
        return self._features.schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self._source.num_rows

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        return in_order(self._encoded, _numbered(self._source.read(start, stop), start))

    def identity(self) -> Identity:
        """The source's, and the features."""
        return {
            "format": "encoded",
            "features": self._features.as_dict(),
            "source": self._source.identity(),
        }

    def _encoded(self, item: tuple[int, pa.RecordBatch]) -> pa.RecordBatch:
        row, batch = item
        return self._features.encode(batch, first_row=row)


def _numbered(batches: Iterator[pa.RecordBatch], row: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        yield row, batch
        row += batch.num_rows
