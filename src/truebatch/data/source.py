"""What a source of rows is: a schema, a number of rows, and reading by position in one stable order."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import pyarrow as pa

from truebatch.errors import InvalidArgument

# Plain JSON values.
Identity = dict[str, object]


@runtime_checkable
class Source(Protocol):
    """Rows in one order that never changes; a row's position in it is its id.

    Guarantees that every source gives:
      - `read(start, stop)` yields record batches of `schema` that hold exactly rows start..stop-1 in order,
        none of them empty, and each of bounded size. No column is dictionary-encoded.
      - The same rows at the same positions, for every range, process and machine, as long as `identity()` is
        the same. `identity()` is plain JSON values: what must not change between runs.
      - Reading ranges one after the other costs one pass, not one pass a range.
    A source may be read by several threads at once, and can be pickled when it lives in files.
    """

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        ...

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        ...

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        ...

    def identity(self) -> Identity:
        """What must not change between runs, as plain JSON values."""
        ...


def require_range(start: int, stop: int, num_rows: int) -> None:
    """Refuse a range of rows that is not within a source."""
    if not 0 <= start <= stop <= num_rows:
        raise InvalidArgument(
            f"a range of rows must lie within 0 <= start <= stop <= {num_rows}; "
            f"got start={start}, stop={stop}."
        )


def schema_entries(schema: pa.Schema) -> list[list[object]]:
    """Name, type and nullability of each column: how identities and headers spell a schema.

    >>> schema_entries(pa.schema([pa.field("label", pa.int8(), nullable=False)]))
    [['label', 'int8', False]]
    """
    return [[field.name, str(field.type), field.nullable] for field in schema]
