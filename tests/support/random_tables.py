"""Random tables for the tests of the data room."""

import datetime
import decimal
import itertools
import string

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

FIXED = (
    pa.bool_(),
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.time64("us"),
    pa.timestamp("us", tz="UTC"),
    pa.duration("ns"),
    pa.decimal128(9, 2),
    pa.binary(5),
)
VARIABLE = (pa.string(), pa.large_string(), pa.binary(), pa.list_(pa.int32()), pa.null())


def values(kind, rng, k):
    """k Python values of a type, without nulls."""
    if pa.types.is_list(kind):
        return [values(kind.value_type, rng, int(rng.integers(0, 4))) for _ in range(k)]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        letters = list(string.ascii_letters + 'é"\n,\t')
        return ["".join(rng.choice(letters, rng.integers(0, 6))) for _ in range(k)]
    if pa.types.is_binary(kind):
        return [rng.bytes(rng.integers(0, 6)) for _ in range(k)]
    return fixed_values(kind, rng, k)


def fixed_values(kind, rng, k):
    """The same for a type of fixed width, and for the null type."""
    if pa.types.is_boolean(kind):
        return rng.integers(0, 2, k).astype(bool).tolist()
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return rng.integers(info.min, info.max, k, dtype=info.dtype, endpoint=True).tolist()
    if pa.types.is_floating(kind):
        return rng.normal(size=k).astype(kind.to_pandas_dtype()).tolist()
    if pa.types.is_date(kind):
        return [datetime.date(1970, 1, 1) + datetime.timedelta(days=int(d)) for d in rng.integers(0, 9999, k)]
    if pa.types.is_temporal(kind):
        return rng.integers(0, 10**9, k).tolist()
    if pa.types.is_decimal(kind):
        return [decimal.Decimal(int(v)).scaleb(-2) for v in rng.integers(-(10**6), 10**6, k)]
    if pa.types.is_fixed_size_binary(kind):
        return [rng.bytes(kind.byte_width) for _ in range(k)]
    return [None] * k


def array(kind, rng, k, *, nulls):
    """k values of a type, some null when `nulls`; and null items in fixed-size lists that take them."""
    if pa.types.is_fixed_size_list(kind):
        items = array(kind.value_type, rng, k * kind.list_size, nulls=nulls and kind.value_field.nullable)
        mask = pa.array(rng.random(k) < 0.3) if nulls else None
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=mask)
    made = values(kind, rng, k)
    return pa.array([None if nulls and rng.random() < 0.3 else v for v in made], kind)


ROWS = st.integers(0, 50)


@st.composite
def kinds(draw, variable=True):
    kind = draw(st.sampled_from(FIXED + VARIABLE if variable else FIXED))
    if kind in FIXED and draw(st.integers(0, 3)) == 0:
        item = pa.field("item", kind, nullable=draw(st.booleans()))
        return pa.list_(item, draw(st.integers(1, 9)))
    return kind


@st.composite
def tables(draw, rows=ROWS, variable=True, least=0, kinds=None):
    """A table of random types, values, nulls, chunks and offsets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    k, extra = draw(rows), draw(st.integers(0, 9))
    kinds = globals()["kinds"](variable) if kinds is None else kinds
    fields, arrays = [], []
    for i in range(draw(st.integers(least, 5))):
        kind = draw(kinds)
        nullable = draw(st.booleans()) or kind == pa.null()
        fields.append(pa.field(f"x{i}", kind, nullable=nullable))
        arrays.append(array(kind, rng, k + extra, nulls=nullable and draw(st.booleans())))
    table = pa.table(arrays, schema=pa.schema(fields)).slice(extra)
    cuts = sorted({0, len(table), *(draw(st.integers(0, len(table))) for _ in range(2))})
    parts = [table.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    return pa.concat_tables(parts) if parts else table
