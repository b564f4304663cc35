"""Tables and dicts of arrays as sources."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import tables

from truebatch.data import Source, open_source
from truebatch.errors import InvalidArgument, InvalidData


@settings(deadline=None, max_examples=150)
@given(tables(least=1), st.data())
def test_any_range_of_a_table_is_that_slice(table, data):
    source = open_source(table)
    assert isinstance(source, Source)
    start = data.draw(st.integers(0, len(table)))
    stop = data.draw(st.integers(start, len(table)))
    batches = list(source.read(start, stop))
    assert all(len(b) and b.schema == source.schema for b in batches)
    got = pa.Table.from_batches(batches, source.schema)
    assert got.equals(table.slice(start, stop - start))
    sent = pickle.loads(pickle.dumps(source))
    assert pa.Table.from_batches(list(sent.read(start, stop)), sent.schema).equals(got)


@settings(deadline=None, max_examples=100)
@given(tables(least=1))
def test_identity_depends_on_values_and_not_on_chunks(table):
    again = pa.concat_tables([table.slice(i, 3) for i in range(0, len(table), 3)] or [table])
    assert open_source(table).identity() == open_source(again.combine_chunks()).identity()


def test_identity_sees_one_changed_value_of_any_kind():
    base = {"a": [1, 2, None], "s": ["x", "yz", ""], "l": [[1], [], [2, 3]], "m": np.ones((3, 2))}
    changes = [
        {"a": [1, 2, 0]},
        {"s": ["xy", "z", ""]},
        {"s": ["x", "yz", None]},
        {"l": [[1], [2], [3]]},
        {"m": np.array([[1, 1], [1, 1], [1, 2.0]])},
    ]
    seen = {str(open_source(base | change).identity()) for change in [{}, *changes]}
    assert len(seen) == len(changes) + 1


def test_a_matrix_becomes_a_fixed_size_list():
    source = open_source(
        {"i": np.arange(6, dtype=np.float32).reshape(2, 3), "label": np.array([0, 1], np.int8)}
    )
    assert source.schema.field("i").type.list_size == 3
    (batch,) = source.read(0, 2)
    assert batch.to_pylist() == [{"i": [0, 1, 2], "label": 0}, {"i": [3, 4, 5], "label": 1}]


def test_dictionary_columns_are_read_as_what_they_stand_for():
    coded = pa.table({"c": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    source = open_source(coded)
    assert source.schema.field("c").type == pa.string()
    (batch,) = source.read(1, 4)
    assert batch.column("c").to_pylist() == ["b", None, "a"]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({"a": [1, 2], "b": [1]}, "'a' with 2 rows and 'b' with 1"),
        ({}, "at least one column"),
        ({"a": [[1], 2]}, "one plain type; got 'a'"),
        ({1: [1]}, "must be a string"),
        ({"a": np.zeros((2, 2, 2))}, "one or two dimensions"),
        ({"a": object()}, "one plain type; got 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "unique"),
        (7, "type int"),
    ],
)
def test_what_is_no_table_is_refused(where, says):
    with pytest.raises(InvalidData, match=says):
        open_source(where)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (2, 1), (0, 4)])
def test_ranges_outside_are_refused(start, stop):
    with pytest.raises(InvalidArgument, match="0 <= start <= stop <= 3"):
        list(open_source({"a": [1, 2, 3]}).read(start, stop))
