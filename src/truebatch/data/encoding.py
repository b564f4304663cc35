"""Rows to numbers and buckets, a column at a time: what `Features` says, done."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from truebatch.data.hashing import buckets_of, hashes
from truebatch.data.logarithm import signed_log
from truebatch.errors import InvalidArgument, InvalidData

# Rows that are encoded at a time: the arrays that a column takes on its way stay in the cache.
_CHUNK_ROWS = 1 << 13

_Value = str | int | float | bool


def is_numeric(kind: pa.DataType) -> bool:
    """Whether a column of this type can be a number."""
    return bool(pat.is_integer(kind) or pat.is_floating(kind) or pat.is_decimal(kind) or pat.is_boolean(kind))


def is_categorical(kind: pa.DataType) -> bool:
    """Whether a column of this type can be hashed into buckets."""
    return bool(
        pat.is_integer(kind)
        or pat.is_boolean(kind)
        or (pat.is_temporal(kind) and not pat.is_interval(kind))
        or pat.is_string(kind)
        or pat.is_large_string(kind)
        or pat.is_string_view(kind)
        or pat.is_binary(kind)
        or pat.is_large_binary(kind)
        or pat.is_fixed_size_binary(kind)
    )


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The columns of features, checked; see `Features` for what each becomes."""

    label: str
    positive: _Value | None
    numeric: tuple[str, ...]
    log: bool
    ranges: Mapping[str, tuple[float, float]]
    categorical: tuple[str, ...]
    buckets: tuple[int, ...]
    vocabularies: Mapping[str, tuple[_Value, ...]]

    @property
    def schema(self) -> pa.Schema:
        """The columns of encoded rows."""
        fields = [pa.field("label", pa.int8(), nullable=False)]
        if self.numeric:
            fields.append(_list_field("i", pa.float32(), len(self.numeric)))
        if self.categorical:
            fields.append(_list_field("c", pa.int32(), len(self.categorical)))
        return pa.schema(fields)

    def require(self, schema: pa.Schema) -> None:
        """Refuse columns whose types cannot be what they are said to be."""
        for name in self.numeric:
            if not is_numeric(schema.field(name).type):
                raise InvalidArgument(
                    f"a numeric column must hold numbers; got {name!r} of type {schema.field(name).type}.",
                    hint="make it categorical, or convert it.",
                )
        for name in self.categorical:
            kind = schema.field(name).type
            if not is_categorical(kind):
                raise InvalidArgument(
                    f"a categorical column must hold text, bytes, whole numbers, truth values, dates or "
                    f"times; got {name!r} of type {kind}.",
                    hint="make it numeric, or convert it.",
                )
            if name in self.vocabularies:
                _values(name, self.vocabularies[name], kind)
        kind = schema.field(self.label).type
        if self.positive is not None:
            _values(self.label, (self.positive,), kind)
        elif not is_numeric(kind):
            raise InvalidArgument(
                f"a label must be a truth value, 0 or 1; got {self.label!r} of type {kind}.",
                hint="say which value counts as 1: positive=...",
            )

    def encode(self, batch: pa.RecordBatch, *, first_row: int) -> pa.RecordBatch:
        """The rows, encoded."""
        k = batch.num_rows
        label = np.empty(k, np.int8)
        numbers = np.empty((k, len(self.numeric)), np.float32)
        places = np.empty((k, len(self.categorical)), np.int32)
        for start in range(0, k, _CHUNK_ROWS):
            part = batch.slice(start, _CHUNK_ROWS)
            rows = slice(start, start + part.num_rows)
            label[rows] = self._labels(_column(part, self.label), first_row + start)
            for j, name in enumerate(self.numeric):
                numbers[rows, j] = _numbers(_column(part, name), log=self.log, within=self.ranges.get(name))
            for j, name in enumerate(self.categorical):
                places[rows, j] = self._buckets(_column(part, name), j)
        arrays = [pa.array(label)]
        for values in (numbers, places):
            if values.shape[1]:
                arrays.append(_list_array(values))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _labels(self, array: pa.Array, first_row: int) -> npt.NDArray[np.bool_]:
        if array.null_count:
            row = first_row + int(np.flatnonzero(~np.asarray(array.is_valid()))[0])
            raise InvalidData(f"a label must not be missing; got none in column {self.label!r} of row {row}.")
        if self.positive is not None:
            (positive,) = _values(self.label, (self.positive,), array.type)
            return np.asarray(pc.equal(array, positive))
        if pat.is_boolean(array.type):
            return np.asarray(array)
        values = np.asarray(array.cast(pa.float64()) if pat.is_decimal(array.type) else array)
        wrong = (values != 0) & (values != 1)
        if wrong.any():
            row = first_row + int(np.flatnonzero(wrong)[0])
            raise InvalidData(
                f"a label must be 0 or 1; got another number in column {self.label!r} of row {row}.",
                hint="say which value counts as 1: positive=...",
            )
        marks: npt.NDArray[np.bool_] = values == 1
        return marks

    def _buckets(self, array: pa.Array, column: int) -> npt.NDArray[np.generic]:
        name, count = self.categorical[column], self.buckets[column]
        found: npt.NDArray[np.generic]
        if name in self.vocabularies:
            known = _values(name, self.vocabularies[name], array.type)
            found = np.asarray(pc.fill_null(pc.index_in(array, known, skip_nulls=True), -1)) + 2
        else:
            found = buckets_of(hashes(array, column), count - 1)
            found += np.uint64(1)
        if array.null_count:
            found *= np.asarray(array.is_valid())
        return found


def _numbers(array: pa.Array, *, log: bool, within: tuple[float, float] | None) -> npt.NDArray[np.float32]:
    kind = array.type
    if pat.is_decimal(kind) or pat.is_float16(kind):
        array = array.cast(pa.float64())
    elif pat.is_boolean(kind):
        array = array.cast(pa.uint8())
    values = np.asarray(pc.fill_null(array, 0) if array.null_count else array)
    known = np.asarray(array.is_valid())
    if values.dtype.kind == "f":
        known = known & np.isfinite(values)
        values = np.where(known, values, values.dtype.type(0))
    if within is not None:
        low, high = within
        placed = np.clip((values.astype(np.float64) - low) / (high - low) * 2 - 1, -1, 1)
        return np.where(known, placed, 0).astype(np.float32)
    if log:
        return signed_log(values)
    with np.errstate(over="ignore"):
        found = values.astype(np.float32)
    return np.where(np.isfinite(found), found, np.float32(0))


def _values(name: str, values: tuple[_Value, ...], kind: pa.DataType) -> pa.Array:
    """What a user gave to compare a column's values with, in the type of the column."""
    try:
        return pa.array(values).cast(kind)
    except (pa.ArrowException, TypeError):
        raise InvalidArgument(
            f"values to look for in a column must be of its type; got others for {name!r}, which is {kind}."
        ) from None


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    try:
        array = batch.column(name)
    except KeyError:
        raise InvalidData(
            f"rows must have every column of their features; got some without {name!r}."
        ) from None
    return array.dictionary_decode() if pat.is_dictionary(array.type) else array


def _list_field(name: str, kind: pa.DataType, length: int) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("item", kind, nullable=False), length), nullable=False)


def _list_array(values: npt.NDArray[np.generic]) -> pa.Array:
    items = pa.array(values.reshape(-1))
    kind = pa.list_(pa.field("item", items.type, nullable=False), values.shape[1])
    return pa.FixedSizeListArray.from_arrays(items, type=kind)
