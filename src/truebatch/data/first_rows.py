"""A source cut off after its first rows, for samplers that need a number that the batch size divides."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from truebatch.data.source import Identity, Source, require_range
from truebatch.errors import InvalidArgument


@dataclass(frozen=True)
class FirstRows:
    """The first `num_rows` rows of a source; how many is chosen without a look at them."""

    source: Source
    num_rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.num_rows <= self.source.num_rows:
            raise InvalidArgument(
                f"rows must be from 1 to the source's {self.source.num_rows}; got rows={self.num_rows}."
            )

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self.source.schema

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        return self.source.read(start, stop)

    def identity(self) -> Identity:
        """The source's, and how many of its rows are taken."""
        return {**self.source.identity(), "first_rows": self.num_rows}
