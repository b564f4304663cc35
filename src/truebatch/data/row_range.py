"""Consecutive rows of a source as a source: the training rows of a split, or a number that b divides."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from truebatch.data.source import Identity, Source, require_range
from truebatch.errors import InvalidArgument


@dataclass(frozen=True)
class RowRange:
    """Rows start..stop-1 of a source, counted from 0. Which they are is chosen without a look at them."""

    source: Source
    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop <= self.source.num_rows:
            raise InvalidArgument(
                f"a range must hold at least one of the source's {self.source.num_rows} rows and no other; "
                f"got rows {self.start} to {self.stop}."
            )

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.source.schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self.stop - self.start

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1 of the range, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        return self.source.read(self.start + start, self.start + stop)

    def identity(self) -> Identity:
        """The source's, and which of its rows are meant."""
        return {"format": "range", "rows": [self.start, self.stop], "source": self.source.identity()}
