"""Which columns fit in rows of one width, and where each value and its null bit stand in a row."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from truebatch.data.source import schema_from_bytes, schema_to_bytes
from truebatch.errors import InvalidData

_PLAIN = {
    pa.bool_(): "?",
    pa.int8(): "<i1",
    pa.uint8(): "<u1",
    pa.int16(): "<i2",
    pa.uint16(): "<u2",
    pa.int32(): "<i4",
    pa.uint32(): "<u4",
    pa.int64(): "<i8",
    pa.uint64(): "<u8",
    pa.float16(): "<f2",
    pa.float32(): "<f4",
    pa.float64(): "<f8",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column's place in a row.

    `length` is the number of values in a row for a fixed-size list, and None for a single value. `null_bit`
    counts bits from the start of the null bytes; None when the column takes no nulls. `item_bit` is the first
    of `length` bits for the list's items, likewise.
    """

    name: str
    type: pa.DataType
    dtype: np.dtype[np.generic]
    length: int | None
    offset: int
    null_bit: int | None
    item_bit: int | None

    @property
    def width(self) -> int:
        """Bytes of a row that hold this column's values."""
        return self.dtype.itemsize * (1 if self.length is None else self.length)

    @property
    def format(self) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
        """The column's values in one row, as numpy says it."""
        return (self.dtype, () if self.length is None else (self.length,))


@dataclass(frozen=True)
class Layout:
    """Rows of `width` bytes that hold the fixed-width columns of a schema, in its order, then the null bits.

    Fixed-width are booleans (one byte), integers, floats, decimals, dates, times, timestamps, durations,
    binary of a fixed size, and fixed-size lists of these. Everything else (strings, binary, lists, structs)
    is named in `variable` and is the caller's to place.

    Guarantees:
      - A function of the schema alone: little-endian, without gaps, null bits last, a set bit for a null.
        A row of zeros is therefore a row of zero values, none of them null.
      - A null takes the bits of zero where its value would stand, so equal rows have equal bytes.
    """

    columns: tuple[Column, ...]
    variable: tuple[pa.Field, ...]
    nulls_at: int
    width: int

    @classmethod
    def of(cls, schema: pa.Schema) -> "Layout":
        """The layout of a schema. A field that is not nullable takes no null bit."""
        require_unique_names(schema)
        columns, variable, offset, bits = [], [], 0, 0
        for field in schema:
            place = _dtype_of(field.type)
            if place is None:
                variable.append(field)
                continue
            dtype, length, item_nullable = place
            null_bit = bits if field.nullable else None
            bits += field.nullable
            item_bit = bits if item_nullable else None
            bits += (length or 0) if item_nullable else 0
            column = Column(
                name=field.name,
                type=field.type,
                dtype=dtype,
                length=length,
                offset=offset,
                null_bit=null_bit,
                item_bit=item_bit,
            )
            columns.append(column)
            offset += column.width
        return cls(tuple(columns), tuple(variable), offset, offset + (bits + 7) // 8)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _layout_from, (schema_to_bytes(pa.schema([*self.schema, *self.variable])),)

    @cached_property
    def schema(self) -> pa.Schema:
        """The fixed-width columns, as Arrow types."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.null_bit is not None) for c in self.columns])

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        """One row as a numpy structure, with the fields c0, c1, ... in the order of `columns`."""
        return np.dtype(
            {
                "names": [f"c{i}" for i in range(len(self.columns))],
                "formats": [column.format for column in self.columns],
                "offsets": [column.offset for column in self.columns],
                "itemsize": self.width,
            }
        )

    def column(self, name: str) -> Column:
        """The column of this name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise InvalidData(
            f"a column must be one of the fixed-width columns; got {name!r}.",
            hint=f"there are: {', '.join(c.name for c in self.columns) or 'none'}.",
        )


def _layout_from(data: bytes) -> Layout:
    return Layout.of(schema_from_bytes(data))


def require_unique_names(schema: pa.Schema) -> None:
    """Refuse a schema in which a name stands for two columns."""
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise InvalidData("column names must be UTF-8; got one that is not.") from None
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidData(
                f"column names must be unique; got {name!r} twice.", hint="rename one of the two columns."
            )
        seen.add(name)


def _dtype_of(kind: pa.DataType) -> tuple[np.dtype[np.generic], int | None, bool] | None:
    """Scalar type, length of a list or None, and whether a list's items may be null; None if not fixed."""
    if pat.is_fixed_size_list(kind):
        inner = _scalar(kind.value_type)
        return None if inner is None else (inner, kind.list_size, kind.value_field.nullable)
    plain = _scalar(kind)
    return None if plain is None else (plain, None, False)


def _scalar(kind: pa.DataType) -> np.dtype[np.generic] | None:
    if kind in _PLAIN:
        return np.dtype(_PLAIN[kind])
    if pat.is_fixed_size_binary(kind) or pat.is_decimal(kind):
        return np.dtype(f"V{kind.bit_width // 8}") if kind.bit_width else None
    if pat.is_temporal(kind) and not pat.is_interval(kind):
        return np.dtype(f"<i{kind.bit_width // 8}")
    return None
