"""Record batches to rows of one width and back: the bytes that are mapped, moved and gathered."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from truebatch.data.layout import Column, Layout
from truebatch.errors import InvalidData

Bytes = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.bool_]

# Rows are filled a column at a time; this many bytes of rows stay in the second-level cache meanwhile.
_CHUNK_BYTES = 1 << 19


def pack(batch: pa.RecordBatch, layout: Layout, out: Bytes | None = None) -> Bytes:
    """The fixed-width columns of a batch as rows: a matrix [rows, layout.width] of bytes.

    Columns are taken by name; what the layout calls variable is left out. `out`, when given, is a
    C-contiguous matrix of that shape, and is returned.

    Guarantees:
      - Every byte of the result is written: equal rows have equal bytes, whatever lay under a null.
      - A null in a column that takes none is refused.
    """
    k = batch.num_rows
    if out is None:
        out = np.empty((k, layout.width), np.uint8)
    elif out.shape != (k, layout.width) or out.dtype != np.uint8 or not out.flags.c_contiguous:
        raise InvalidData(
            f"out must be a C-contiguous uint8 matrix of shape ({k}, {layout.width}); "
            f"got {out.dtype} of shape {out.shape}."
        )
    sources = [(column, *_values(_column(batch, column), column)) for column in layout.columns]
    step = max(256, _CHUNK_BYTES // max(1, layout.width))
    for start in range(0, k, step):
        rows = out[start : start + step]
        rows[:, layout.nulls_at :] = 0
        for column, values, nulls, item_nulls in sources:
            part = slice(start, start + len(rows))
            field_of(rows, column)[...] = values[part]
            if nulls is not None and column.null_bit is not None:
                _set_bits(rows, layout, column.null_bit, nulls[part, None])
            if item_nulls is not None and column.item_bit is not None:
                _set_bits(rows, layout, column.item_bit, item_nulls[part])
    return out


def unpack(
    rows: Bytes, layout: Layout, out: dict[str, npt.NDArray[np.generic]] | None = None
) -> dict[str, npt.NDArray[np.generic]]:
    """The values of every column, as contiguous arrays [rows] or [rows, length]; a null reads as zero.

    `out` may hold arrays to fill, by name; columns it lacks are left out. Which values are null is what
    `nulls` says.
    """
    if out is None:
        out = {c.name: np.empty((len(rows), *c.format[1]), c.dtype) for c in layout.columns}
    wanted = [layout.column(name) for name in out]
    step = max(256, _CHUNK_BYTES // max(1, layout.width))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        for column in wanted:
            out[column.name][start : start + len(part)] = field_of(part, column)
    return out


def nulls(rows: Bytes, layout: Layout, name: str) -> Bits:
    """Which rows hold a null in this column."""
    column = layout.column(name)
    if column.null_bit is None:
        return np.zeros(len(rows), np.bool_)
    return _bits(rows, layout, column.null_bit)


def item_nulls(rows: Bytes, layout: Layout, name: str) -> Bits:
    """Which items of a fixed-size list column are null: a matrix [rows, length]."""
    column = layout.column(name)
    length = column.length or 0
    if column.item_bit is None:
        return np.zeros((len(rows), length), np.bool_)
    first = column.item_bit
    return np.stack([_bits(rows, layout, first + i) for i in range(length)], axis=1)


def to_batch(rows: Bytes, layout: Layout) -> pa.RecordBatch:
    """The record batch that `pack` would turn into these rows, without the variable columns."""
    values = unpack(rows, layout)
    arrays = [_to_arrow(rows, layout, column, values[column.name]) for column in layout.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=layout.schema)


def field_of(rows: Bytes, column: Column) -> npt.NDArray[np.generic]:
    """A writable view of one column in a C-contiguous matrix of rows; its values may be unaligned."""
    shape, strides = (len(rows), *column.format[1]), (rows.shape[1], column.dtype.itemsize)
    return np.ndarray(shape, column.dtype, rows, column.offset, strides[: len(shape)])


def _column(batch: pa.RecordBatch, column: Column) -> pa.Array:
    try:
        array = batch.column(column.name)
    except KeyError:
        raise InvalidData(
            f"a batch must have every column of the layout; got one without {column.name!r}."
        ) from None
    if array.type != column.type:
        raise InvalidData(
            f"column {column.name!r} must be of type {column.type}; got {array.type}.",
            hint="cast the batch to the schema of its source.",
        )
    return array


def _values(array: pa.Array, column: Column) -> tuple[npt.NDArray[np.generic], Bits | None, Bits | None]:
    """Values with zeros under nulls, the rows that are null, and the list items that are; None for none."""
    gone = _null_mask(array, column.null_bit, column.name)
    if column.length is None:
        return _zeroed(_plain(array, column.dtype), gone), gone, None
    L = column.length
    child = array.values.slice(array.offset * L, len(array) * L)
    values = _plain(child, column.dtype).reshape(len(array), L)
    if child.null_count == 0:
        return _zeroed(values, gone), gone, None
    # An item inside a null list is not counted as null itself: the list's bit says it all.
    lost = ~np.asarray(child.is_valid()).reshape(len(array), L)
    if gone is not None:
        lost &= ~gone[:, None]
    if column.item_bit is None and lost.any():
        raise _unexpected_null(f"an item of {column.name}")
    return _zeroed(_zeroed(values, lost), gone), gone, lost


def _null_mask(array: pa.Array, null_bit: int | None, name: str) -> Bits | None:
    if array.null_count == 0:
        return None
    if null_bit is None:
        raise _unexpected_null(name)
    return ~np.asarray(array.is_valid())


def _unexpected_null(name: str) -> InvalidData:
    return InvalidData(
        f"a column that is declared not nullable must have no nulls; got a null in {name!r}.",
        hint="declare the field nullable in the schema, or encode the rows with Features.",
    )


def _zeroed(values: npt.NDArray[np.generic], gone: Bits | None) -> npt.NDArray[np.generic]:
    if gone is None or not gone.any():
        return values
    values = values.copy()
    values[gone] = np.zeros((), values.dtype)
    return values


def _plain(array: pa.Array, dtype: np.dtype[np.generic]) -> npt.NDArray[np.generic]:
    """The value buffer of a flat array, nulls included as whatever lies there."""
    if array.type == pa.bool_():
        array = array.cast(pa.uint8())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype)
    native = dtype if dtype.kind == "V" else dtype.newbyteorder("=")
    return np.frombuffer(buffer, native, count=len(array), offset=array.offset * dtype.itemsize)


def _set_bits(rows: Bytes, layout: Layout, first: int, marks: Bits) -> None:
    for i in range(marks.shape[1]):
        byte, bit = divmod(first + i, 8)
        rows[:, layout.nulls_at + byte] |= marks[:, i].astype(np.uint8) << np.uint8(bit)


def _bits(rows: Bytes, layout: Layout, index: int) -> Bits:
    byte, bit = divmod(index, 8)
    marks: Bits = (rows[:, layout.nulls_at + byte] & np.uint8(1 << bit)) != 0
    return marks


def _to_arrow(rows: Bytes, layout: Layout, column: Column, values: npt.NDArray[np.generic]) -> pa.Array:
    gone = _bits(rows, layout, column.null_bit) if column.null_bit is not None else None
    if column.length is None:
        return _flat(column.type, values, gone)
    lost = item_nulls(rows, layout, column.name).reshape(-1) if column.item_bit is not None else None
    items = _flat(column.type.value_type, values.reshape(-1), lost)
    return pa.Array.from_buffers(column.type, len(rows), [_validity(gone)], children=[items])


def _flat(kind: pa.DataType, values: npt.NDArray[np.generic], gone: Bits | None) -> pa.Array:
    if kind == pa.bool_():
        data = pa.py_buffer(np.packbits(values.astype(np.bool_), bitorder="little"))
    else:
        native = (
            values if values.dtype.kind == "V" else values.astype(values.dtype.newbyteorder("="), copy=False)
        )
        data = pa.py_buffer(np.ascontiguousarray(native))
    return pa.Array.from_buffers(kind, len(values), [_validity(gone), data])


def _validity(gone: Bits | None) -> pa.Buffer | None:
    return None if gone is None or not gone.any() else pa.py_buffer(np.packbits(~gone, bitorder="little"))
