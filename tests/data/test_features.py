"""Encoding: what each value becomes, that rows do not know of each other, and what is refused."""

import datetime
import decimal
import json
import math
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch.data import EncodedSource, Features, TextSource, open_source
from truebatch.data.hashing import buckets_of, hashes
from truebatch.data.text_format import criteo_format
from truebatch.errors import InvalidArgument, InvalidData


def batch(**columns):
    return pa.record_batch(columns)


def test_each_kind_of_column_becomes_what_is_said():
    rows = batch(
        y=pa.array([1, 0, 1], pa.int8()),
        n=pa.array([0, -7, None], pa.int32()),
        f=[0.5, math.nan, -math.inf],
        s=["a", None, "b"],
        k=[5, 6, None],
        v=["red", "mauve", None],
    )
    features = Features(
        label="y",
        numeric=("n", "f"),
        categorical=("s", "k", "v"),
        buckets=(100, 1000, 2),
        vocabularies={"v": ("blue", "red")},
    )
    assert features.num_buckets == (100, 1000, 4)
    got = features.encode(rows)
    got.validate(full=True)
    assert got.schema == features.schema
    assert [str(f) for f in got.schema] == [
        "pyarrow.Field<label: int8 not null>",
        "pyarrow.Field<i: fixed_size_list<item: float not null>[2] not null>",
        "pyarrow.Field<c: fixed_size_list<item: int32 not null>[3] not null>",
    ]
    assert got["label"].to_pylist() == [1, 0, 1]
    log = [[0, math.log1p(0.5)], [-math.log(8), 0], [0, 0]]
    assert np.array(got["i"].to_pylist()) == pytest.approx(np.array(log), rel=1e-7)
    s = 1 + buckets_of(hashes(rows["s"], 0), 99)
    k = 1 + buckets_of(hashes(rows["k"], 1), 999)
    assert got["c"].to_pylist() == [[s[0], k[0], 3], [0, k[1], 1], [s[2], 0, 0]]


def test_plain_numbers_stay_and_stay_finite():
    features = Features(label="y", numeric=("f", "d", "b"), numbers="plain")
    rows = batch(
        y=[True, False],
        f=[1e300, -2.5],
        d=[decimal.Decimal("1.25"), None],
        b=[True, False],
    )
    assert features.encode(rows)["i"].to_pylist() == [[0, 1.25, 1], [-2.5, 0, 0]]
    assert "c" not in features.schema.names


@pytest.mark.parametrize(
    ("values", "positive", "want"),
    [
        ([True, False], None, [1, 0]),
        ([0.0, 1.0], None, [0, 1]),
        (pa.array([0, 1], pa.uint64()), None, [0, 1]),
        ([decimal.Decimal(1), decimal.Decimal(0)], None, [1, 0]),
        (["yes", "no"], "yes", [1, 0]),
        ([-1, 1], 1, [0, 1]),
        (pa.array(["yes", "no"]).dictionary_encode(), "no", [0, 1]),
    ],
)
def test_labels_of_every_kind(values, positive, want):
    rows = batch(y=values, x=[1, 2])
    features = Features(label="y", numeric=("x",), positive=positive)
    features.require(rows.schema)
    assert features.encode(rows)["label"].to_pylist() == want


@pytest.mark.parametrize("values", [[0, 1, 2], [0, 1, -1], [0.0, 1.0, 0.5], [0.0, 1.0, math.nan]])
def test_another_label_is_refused_by_its_row_and_not_its_value(values):
    source = EncodedSource(
        open_source({"y": values * 50_000, "x": range(150_000)}), Features(label="y", numeric=("x",))
    )
    with pytest.raises(
        InvalidData, match=r"must be 0 or 1; got another number in column 'y' of row 100001\."
    ):
        list(source.read(100_000, 150_000))


def test_a_missing_label_is_refused_by_its_row():
    features = Features(label="y", numeric=("x",))
    with pytest.raises(InvalidData, match="row 12"):
        features.encode(batch(y=[1, 0, None], x=[1, 2, 3]), first_row=10)


def test_rows_without_a_column_are_refused():
    with pytest.raises(InvalidData, match="without 'x'"):
        Features(label="y", numeric=("x",)).encode(batch(y=[1, 0]))


TEXT = st.none() | st.text(max_size=12)
NUMBER = st.none() | st.floats() | st.integers(-(10**6), 10**6).map(float)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), NUMBER, TEXT, TEXT), min_size=1, max_size=60), st.data())
def test_a_row_is_encoded_by_itself(rows, data):
    schema = pa.schema([("y", pa.int8()), ("n", pa.float64()), ("s", pa.string()), ("t", pa.string())])
    columns = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    whole = pa.RecordBatch.from_arrays(columns, schema=schema)
    features = Features(label="y", numeric=("n",), categorical=("s", "t"), buckets=(7, 50))
    encoded = features.encode(whole)
    values = np.array(encoded["i"].to_pylist())
    places = np.array(encoded["c"].to_pylist())
    assert np.isfinite(values).all()
    assert (places >= 0).all()
    assert (places < [7, 50]).all()
    assert ((places == 0) == [[s is None, t is None] for _, _, s, t in rows]).all()
    order = data.draw(st.permutations(range(len(rows))))
    assert features.encode(whole.take(pa.array(order))).equals(encoded.take(pa.array(order)))
    start = data.draw(st.integers(0, len(rows) - 1))
    assert features.encode(whole.slice(start, 5)).equals(encoded.slice(start, 5))


def test_chunks_have_no_seams():
    k = 50_001
    rows = batch(y=np.arange(k) % 2, n=np.arange(k), s=pa.array(np.arange(k)).cast(pa.string()))
    features = Features(label="y", numeric=("n",), categorical=("s",))
    whole = pa.Table.from_batches([features.encode(rows)])
    parts = [features.encode(rows.slice(a, 777)) for a in range(0, k, 777)]
    assert pa.Table.from_batches(parts).combine_chunks().equals(whole)


def test_criteo_columns_are_recognized_whatever_their_type():
    text = criteo_format().schema
    digits = pa.schema([pa.field(f.name, pa.string() if f.name[0] == "C" else f.type) for f in text])
    for schema in (text, digits):
        features = Features.infer(schema)
        assert features.numeric == tuple(f"I{i}" for i in range(1, 14))
        assert features.categorical == tuple(f"C{i}" for i in range(1, 27))


def test_numbers_and_text_are_told_apart_and_the_rest_is_asked_for():
    schema = pa.schema(
        [
            ("click", pa.bool_()),
            ("age", pa.int64()),
            ("town", pa.dictionary(pa.int8(), pa.string())),
            ("paid", pa.decimal128(9, 2)),
            ("day", pa.date32()),
        ]
    )
    with pytest.raises(InvalidArgument, match=r"column 'day' of type date32(.|\n)*leave_out=\['day'\]"):
        Features.infer(schema, label="click")
    found = Features.infer(schema, label="click", leave_out=["day"], buckets=10)
    assert found == Features(label="click", numeric=("age", "paid"), categorical=("town",), buckets=10)


def test_dates_and_times_can_be_categories():
    rows = batch(y=[1, 0], d=[datetime.date(2020, 1, 1), None], t=pa.array([5, 6], pa.time32("s")))
    features = Features(label="y", categorical=("d", "t"), buckets=50)
    features.require(rows.schema)
    (first, second) = features.encode(rows)["c"].to_pylist()
    assert second[0] == 0 < first[0]
    assert first[1] != second[1]


def test_a_record_gives_the_same_features_back():
    features = Features(
        label="y",
        numeric=("n",),
        categorical=("s", "k"),
        buckets=(5, 9),
        positive=3,
        vocabularies={"k": (1, 2)},
    )
    record = json.loads(json.dumps(features.as_dict()))
    assert Features.from_dict(record) == features
    assert pickle.loads(pickle.dumps(features)) == features
    assert Features.from_dict(record).as_dict() == features.as_dict()
    with pytest.raises(InvalidData, match="hashed by"):
        Features.from_dict(record | {"hash": "other"})
    with pytest.raises(InvalidData, match="as as_dict does"):
        Features.from_dict(record | {"more": 1})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"numeric": ("y",)}, "'y' twice"),
        ({"numeric": ("n", "n")}, "'n' twice"),
        ({"numeric": "n"}, "list of column names"),
        ({}, "a label alone"),
        ({"categorical": ("s",), "buckets": 1}, "from 2 to 2"),
        ({"categorical": ("s",), "buckets": (5, 5)}, "got 2"),
        ({"numeric": ("n",), "numbers": "sqrt"}, "'log' or 'plain'"),
        ({"categorical": ("s",), "vocabularies": {"t": ("a",)}}, "one for 't'"),
        ({"categorical": ("s",), "vocabularies": {"s": ("a", "a")}}, "distinct"),
        ({"categorical": ("s",), "vocabularies": {"s": ()}}, "distinct"),
    ],
)
def test_features_that_cannot_be_are_refused(given, says):
    with pytest.raises(InvalidArgument, match=says):
        Features(label="y", **given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"label": "lable"}, "did you mean 'label'"),
        ({"numeric": ("price",)}, "there are: label, n, s, k, l"),
        ({"numeric": ("s",)}, "must hold numbers; got 's' of type string"),
        ({"categorical": ("l",)}, "got 'l' of type list"),
        ({"label": "s", "numeric": ("n",)}, "truth value, 0 or 1; got 's'(.|\n)*positive="),
        ({"numeric": ("n",), "positive": "yes"}, "of its type; got others for 'label', which is int64"),
        ({"categorical": ("k",), "vocabularies": {"k": ("a",)}}, "of its type; got others for 'k'"),
    ],
)
def test_columns_that_cannot_be_are_refused_before_a_row_is_read(given, says):
    source = open_source({"label": [1], "n": [1.5], "s": ["a"], "k": [7], "l": pa.array([[1]])})
    with pytest.raises(InvalidArgument, match=says):
        EncodedSource(source, Features(**({"label": "label", "numeric": ("n",)} | given | fixed(given))))


def fixed(given):
    return {} if "numeric" in given else {"numeric": () if "categorical" in given else ("n",)}


def test_an_encoded_source_is_the_slice_of_its_rows(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("label,n,s\n" + "".join(f"{i % 2},{i},s{i}\n" for i in range(500)))
    plain = TextSource(path)
    source = EncodedSource(plain, Features.infer(plain.schema, buckets=100))
    whole = pa.Table.from_batches(list(source.read(0, 500)), source.schema)
    assert pickle.loads(pickle.dumps(source)).identity() == source.identity()
    assert json.loads(json.dumps(source.identity()))["features"]["buckets"] == [100]
    for start, stop in [(0, 1), (3, 77), (499, 500), (5, 5)]:
        part = pa.Table.from_batches(list(source.read(start, stop)), source.schema)
        assert part.equals(whole.slice(start, stop - start))


def test_a_range_places_numbers_between_its_ends_and_what_is_missing_in_the_middle() -> None:
    schema = pa.schema([("label", pa.int8()), ("x", pa.float64()), ("y", pa.int64())])
    nan, inf = float("nan"), float("inf")
    columns = [[0] * 7, [-10.0, 0.0, 5.0, 10.0, 99.0, None, nan], [-1, 0, 5, 10, 11, None, 2]]
    batch = pa.record_batch(columns, schema=schema)
    features = Features(label="label", numeric=("x", "y"), ranges={"x": (0, 10), "y": (0, 10)})
    found = np.array(features.encode(batch).column("i").to_pylist())
    assert found[:, 0].tolist() == [-1, -1, 0, 1, 1, 0, 0]
    assert found[:, 1].tolist() == [-1, -1, 0, 1, 1, 0, np.float32(-0.6)]
    assert Features.from_dict(features.as_dict()) == features
    with pytest.raises(InvalidArgument, match="for 'z'"):
        Features(label="label", numeric=("x",), ranges={"z": (0, 1)})
    for ends in [(1, 0), (0, inf), (0, 0), (nan, 1)]:
        with pytest.raises(InvalidArgument, match="the lower first"):
            Features(label="label", numeric=("x",), ranges={"x": ends})
