"""What a source of rows is: a schema, a number of rows, and reading by position in one stable order."""

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import pyarrow as pa

from truebatch.errors import InvalidArgument, InvalidData

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


def require_same_schema(schemas: Mapping[str, pa.Schema]) -> pa.Schema:
    """The schema that all files of a source have, by name of the file."""
    (first, schema), *others = schemas.items()
    for name, other in others:
        if other != schema:
            raise InvalidData(
                f"all files of a source must have the same schema; "
                f"{_difference(first, schema, name, other)}.",
                hint="cast the files to one schema, or read them as two sources.",
            )
    return schema


def _difference(first: str, schema: pa.Schema, name: str, other: pa.Schema) -> str:
    """Where two schemas part, said by the names of their files."""
    mine, theirs = schema_entries(schema), schema_entries(other)
    if len(mine) != len(theirs):
        return f"got {len(mine)} columns in {first!r} and {len(theirs)} in {name!r}"
    a, b = next((pair for pair in zip(mine, theirs, strict=True) if pair[0] != pair[1]), (mine[0], theirs[0]))
    return f"got {_spelled(a)} in {first!r} and {_spelled(b)} in {name!r}"


def _spelled(entry: list[object]) -> str:
    name, kind, nullable = entry
    return f"{name} {kind}{'' if nullable else ' not null'}"


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """A schema as Arrow itself writes it.

    Pickling a schema instead loses that the items of a fixed-size list are not nullable (pyarrow 25).
    """
    return bytes(schema.serialize().to_pybytes())


def schema_from_bytes(data: bytes) -> pa.Schema:
    """The schema that was written."""
    return pa.ipc.read_schema(pa.py_buffer(data))
