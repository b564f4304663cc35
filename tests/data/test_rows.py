"""Rows of one width: what goes in comes out, and equal rows are equal bytes."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import tables

from truebatch.data import Layout, item_nulls, nulls, pack, to_batch, unpack
from truebatch.data.rows import field_of
from truebatch.errors import InvalidData


def batch_of(table):
    return pa.RecordBatch.from_arrays(
        [pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], c.type) for c in table.columns],
        schema=table.schema,
    )


@settings(deadline=None, max_examples=300)
@given(tables())
def test_rows_keep_every_value_and_every_null(table):
    layout = Layout.of(table.schema)
    for batch in [batch_of(table), *table.to_batches()]:
        rows = pack(batch, layout)
        assert rows.shape == (len(batch), layout.width)
        if not layout.columns:
            continue  # Arrow has no rows without columns
        back = to_batch(rows, layout)
        back.validate(full=True)
        assert back.schema == layout.schema
        assert back.equals(batch.select(layout.schema.names).replace_schema_metadata(None))
        assert {f.name for f in layout.variable} == set(batch.schema.names) - set(layout.schema.names)
        assert np.array_equal(pack(back, layout), rows)
        sent = pickle.loads(pickle.dumps(layout))
        assert (sent.columns, set(sent.variable)) == (layout.columns, set(layout.variable))


def test_large_batches_are_packed_in_chunks_without_seams():
    k = 100_003
    table = pa.table(
        {
            "a": pa.array(np.arange(k, dtype=np.int32), mask=np.arange(k) % 7 == 0),
            "m": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(k * 26, dtype=np.int32)), 26),
        }
    )
    layout = Layout.of(table.schema)
    batch = batch_of(table)
    assert to_batch(pack(batch, layout), layout).equals(batch)


@settings(deadline=None, max_examples=60)
@given(tables(variable=False), st.data())
def test_packing_slices_gives_slices_of_the_packed(table, data):
    layout, batch = Layout.of(table.schema), batch_of(table)
    start = data.draw(st.integers(0, len(batch)))
    k = data.draw(st.integers(0, len(batch) - start))
    assert np.array_equal(pack(batch.slice(start, k), layout), pack(batch, layout)[start : start + k])


def test_equal_rows_have_equal_bytes_whatever_lies_under_a_null():
    junk = np.array([1, 77, 3], np.int32)
    clean = np.array([1, 0, 3], np.int32)
    valid = pa.py_buffer(np.array([0b101], np.uint8))
    schema = pa.schema([("x", pa.int32())])
    made = [
        pa.RecordBatch.from_arrays(
            [pa.Array.from_buffers(pa.int32(), 3, [valid, pa.py_buffer(v)])], schema=schema
        )
        for v in (junk, clean)
    ]
    layout = Layout.of(schema)
    first, second = (pack(batch, layout) for batch in made)
    assert np.array_equal(first, second)
    assert nulls(first, layout, "x").tolist() == [False, True, False]
    # The twin: the raw buffers do differ, so a codec that copied them would fail.
    assert made[0].column(0).buffers()[1].to_pybytes() != made[1].column(0).buffers()[1].to_pybytes()


def test_a_row_of_zeros_is_zero_values_without_nulls():
    schema = pa.schema([("a", pa.int16()), ("m", pa.list_(pa.float32(), 3)), ("b", pa.bool_())])
    layout = Layout.of(schema)
    back = to_batch(np.zeros((2, layout.width), np.uint8), layout)
    assert back.to_pylist() == [{"a": 0, "m": [0.0, 0.0, 0.0], "b": False}] * 2


def test_criteo_rows_take_157_bytes():
    schema = pa.schema(
        [
            pa.field("label", pa.int8(), nullable=False),
            *(pa.field(f"I{i}", pa.int32(), nullable=False) for i in range(13)),
            *(pa.field(f"C{i}", pa.int32(), nullable=False) for i in range(26)),
        ]
    )
    assert Layout.of(schema).width == 157


def test_unpack_fills_what_is_given_and_reads_nulls_as_zero():
    batch = pa.record_batch(
        {"a": pa.array([1, None, 3]), "m": pa.array([[1, None], None, [5, 6]], pa.list_(pa.int8(), 2))}
    )
    layout = Layout.of(batch.schema)
    rows = pack(batch, layout)
    out = {"m": np.full((3, 2), 9, np.int8)}
    assert unpack(rows, layout, out) is out
    assert out["m"].tolist() == [[1, 0], [0, 0], [5, 6]]
    assert unpack(rows, layout)["a"].tolist() == [1, 0, 3]
    assert item_nulls(rows, layout, "m").tolist() == [[False, True], [False, False], [False, False]]
    assert nulls(rows, layout, "m").tolist() == [False, True, False]


def test_a_field_view_writes_into_the_rows():
    layout = Layout.of(pa.schema([("a", pa.int8()), ("b", pa.int64())]))
    rows = np.zeros((4, layout.width), np.uint8)
    field_of(rows, layout.column("b"))[:] = [1, 2, 3, 4]
    assert unpack(rows, layout)["b"].tolist() == [1, 2, 3, 4]


def test_nulls_where_none_are_declared_are_refused():
    schema = pa.schema([pa.field("x", pa.int8(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.int8())], schema=schema)
    with pytest.raises(InvalidData, match="null in 'x'"):
        pack(batch, Layout.of(schema))
    kind = pa.list_(pa.field("item", pa.int8(), nullable=False), 2)
    items = pa.FixedSizeListArray.from_arrays(pa.array([1, None], pa.int8()), type=kind)
    with pytest.raises(InvalidData, match="an item of x"):
        pack(pa.record_batch({"x": items}), Layout.of(pa.schema([("x", kind)])))


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (pa.record_batch({"y": [1]}), "without 'x'"),
        (pa.record_batch({"x": ["a"]}), "must be of type int64; got string"),
    ],
)
def test_batches_of_another_schema_are_refused(batch, says):
    with pytest.raises(InvalidData, match=says):
        pack(batch, Layout.of(pa.schema([("x", pa.int64())])))


def test_wrong_out_and_wrong_names_are_refused():
    layout = Layout.of(pa.schema([("x", pa.int64())]))
    with pytest.raises(InvalidData, match="C-contiguous"):
        pack(pa.record_batch({"x": [1]}), layout, np.zeros((1, 3), np.uint8))
    with pytest.raises(InvalidData, match="there are: x"):
        layout.column("z")
    with pytest.raises(InvalidData, match="unique"):
        Layout.of(pa.schema([("x", pa.int64()), ("x", pa.int8())]))
