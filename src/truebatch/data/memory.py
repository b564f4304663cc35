"""Rows that are in memory already: an Arrow table, or a dict of arrays."""

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data.digest import digest_of_rows
from truebatch.data.layout import require_unique_names
from truebatch.data.pieces import PIECE_ROWS, decoded, decoded_schema
from truebatch.data.source import Identity, require_range, schema_entries
from truebatch.errors import InvalidData


class TableSource:
    """A source over a pyarrow Table, or over anything that stays in memory as one.

    Guarantees:
      - Fixed-width rows are not copied; pieces follow the table's own chunks.
      - `identity()` is a digest of the values; it is computed once, in one pass.
    """

    def __init__(self, table: pa.Table) -> None:
        require_unique_names(table.schema)
        self._table = table
        self._schema = decoded_schema(table.schema)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        for batch in self._table.slice(start, stop - start).to_batches(max_chunksize=PIECE_ROWS):
            if batch.num_rows:
                yield decoded(batch, self._schema)

    def take(self, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """These rows, in this order."""
        taken = self._table.take(pa.array(rows))
        columns = [column.combine_chunks() for column in taken.columns]
        return decoded(pa.RecordBatch.from_arrays(columns, schema=self._table.schema), self._schema)

    def identity(self) -> Identity:
        """Number of rows, schema and a digest of the values."""
        return {
            "format": "memory",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "digest": self._digest,
        }

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        return _from_stream, (sink.getvalue().to_pybytes(),)

    @cached_property
    def _digest(self) -> str:
        return digest_of_rows(self.read(0, self.num_rows), self._schema)


def _from_stream(data: bytes) -> TableSource:
    # As Arrow writes it: pickling a table loses that the items of a fixed-size list are not nullable.
    return TableSource(pa.ipc.open_stream(data).read_all())


def table_of_arrays(arrays: Mapping[str, object]) -> pa.Table:
    """A table of named arrays: numpy, Arrow, or lists; a matrix [rows, k] becomes a fixed-size list column.

    >>> table_of_arrays({"x": [1, 2], "y": np.zeros((2, 3), np.float32)}).schema.field("y").type
    FixedSizeListType(fixed_size_list<item: float not null>[3])
    """
    if not arrays:
        raise InvalidData("a dict of arrays must have at least one column; got none.")
    columns, first = {}, None
    for name, values in arrays.items():
        if not isinstance(name, str):
            raise InvalidData(f"a column name must be a string; got {name!r}.")
        columns[name] = column = _array(name, values)
        first = name if first is None else first
        if len(column) != len(columns[first]):
            raise InvalidData(
                f"arrays must have the same length; got {first!r} with {len(columns[first])} rows "
                f"and {name!r} with {len(column)}."
            )
    return pa.table(columns, schema=pa.schema([_field(name, column) for name, column in columns.items()]))


def _field(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Field:
    return pa.field(name, column.type, nullable=column.null_count > 0)


def _array(name: str, values: object) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        if isinstance(values, np.ndarray) and values.ndim > 1:
            return _list_column(name, values)
        return pa.array(values)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidData(f"a column must be an array of one plain type; got {name!r}: {error}.") from None


def _list_column(name: str, values: np.ndarray) -> pa.Array:
    rows = values.reshape(len(values), -1)
    if values.ndim > 2 or rows.shape[1] == 0:
        raise InvalidData(
            f"a column must have one or two dimensions, none of them empty; "
            f"got {name!r} of shape {values.shape}.",
            hint="flatten each row's values to one dimension.",
        )
    items = pa.array(np.ascontiguousarray(rows).reshape(-1))
    kind = pa.list_(pa.field("item", items.type, nullable=False), rows.shape[1])
    return pa.FixedSizeListArray.from_arrays(items, type=kind)
