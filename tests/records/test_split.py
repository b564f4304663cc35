"""Splits: which rows each gives, in pieces of any size, and what is no split."""

import datetime
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch import Key
from truebatch.data import Features, RowRange, TableSource, open_source
from truebatch.errors import InvalidArgument, InvalidData, TruebatchError
from truebatch.records import Record, RunConfig, RunPlan, Split, SplitBy, run, verify
from truebatch.records.split import split_as_dict, split_from_dict
from truebatch.records.verify import FAILED

KEY = Key.for_tests(4)


class InPieces:
    """A source that reads a few rows at a time."""

    def __init__(self, table: pa.Table, size: int) -> None:
        self._source, self._size = TableSource(table), size
        self.schema, self.num_rows = self._source.schema, self._source.num_rows

    def read(self, start: int, stop: int):
        for first in range(start, stop, self._size):
            yield from self._source.read(first, min(first + self._size, stop))

    def identity(self):
        return self._source.identity()


def parts(values, split: SplitBy, *, size: int = 1000, kind: pa.DataType | None = None):
    return split.parts(InPieces(pa.table({"at": pa.array(values, kind)}), size))


@settings(deadline=None)  # what Arrow loads, it loads in the first example
@given(
    lengths=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    order=st.permutations(["train", "valid", "test"]),
    size=st.integers(1, 30),
)
def test_named_parts_are_found_in_any_order_and_in_pieces_of_any_size(lengths, order, size) -> None:
    values = [name for name, length in zip(order, lengths, strict=True) for _ in range(length)]
    found = parts(values, SplitBy(column="at"), size=size)
    for name, (start, stop) in zip(("train", "valid", "test"), found, strict=True):
        assert values[start:stop] == [name] * values.count(name)


@settings(deadline=None)
@given(
    values=st.lists(st.integers(-5, 5), min_size=1, max_size=40).map(sorted),
    edges=st.tuples(st.integers(-4, 4), st.integers(1, 4)),
    size=st.integers(1, 30),
)
def test_parts_begin_where_values_say_and_empty_ones_are_refused(values, edges, size) -> None:
    low, high = edges[0], edges[0] + edges[1]
    counts = [
        sum(v < low for v in values),
        sum(low <= v < high for v in values),
        sum(v >= high for v in values),
    ]
    split = SplitBy(column="at", valid_from=str(low), test_from=str(high))
    if 0 in counts:
        with pytest.raises(InvalidData, match="must leave rows for every part that it names"):
            parts(values, split, size=size, kind=pa.int16())
        return
    a, v = counts[0], counts[0] + counts[1]
    assert parts(values, split, size=size, kind=pa.int16()) == ((0, a), (a, v), (v, len(values)))


TIMES = [datetime.datetime(2013, month, 1, tzinfo=datetime.UTC) for month in (1, 5, 10, 11, 12)]


@pytest.mark.parametrize(
    ("values", "kind", "valid_from", "test_from"),
    [
        (TIMES, pa.timestamp("us", "UTC"), "2013-10-01T00:00Z", "2013-11-15 12:00:00+02:00"),
        (TIMES, pa.date32(), "2013-10-01", "2013-12-01"),
        ([t.isoformat() for t in TIMES], pa.large_string(), "2013-10", "2013-12"),
        ([0.5, 1.5, 2.5, 2.75, 3.5], pa.float32(), "2", "3"),
    ],
)
def test_values_are_read_in_the_columns_own_type(values, kind, valid_from, test_from) -> None:
    split = SplitBy(column="at", valid_from=valid_from, test_from=test_from)
    assert parts(values, split, kind=kind) == ((0, 2), (2, 4), (4, 5))
    assert parts(values, SplitBy(column="at", test_from=test_from), kind=kind) == ((0, 4), None, (4, 5))
    assert parts(values, SplitBy(column="at", valid_from=valid_from), kind=kind) == ((0, 2), (2, 5), None)


REFUSED = [
    (["train", "valid", "train"], {}, "must follow each other.*row 2 goes back to 'train'"),
    (["train", "Valid"], {}, "one of train, valid, test.*row 1 is not"),
    (["train", None], {}, "row 1 is not"),
    (["valid", "test"], {}, "none is of 'train'"),
    ([1, 2], {}, "it is of type int64"),
    ([1, 5, 2], {"valid_from": "3"}, "in order of 'at'.*row 2 is of 'train'"),
    ([1, 5, 9, 5], {"valid_from": "3", "test_from": "7"}, "row 3 is of 'valid'"),
    ([1, None, 5], {"valid_from": "3"}, "row 1 has none"),
    ([1.0, float("nan")], {"valid_from": "3"}, "row 1 has none"),
    ([1, 5], {"valid_from": "x"}, "which is of type int64; got 'x'"),
    ([1.0, 5.0], {"valid_from": "nan"}, "got 'nan'"),
    ([TIMES[0]], {"valid_from": "2013-10-01"}, "as in 2013-10-19T18:00Z"),
    ([[1], [2]], {"valid_from": "1"}, "list"),
    ([1, 5], {"valid_from": "4", "test_from": "4"}, "valid_from must be before test_from"),
    ([5, 6], {"valid_from": "4"}, "none is of 'train'"),
]


@pytest.mark.parametrize(("values", "edges", "says"), REFUSED)
def test_what_is_no_split_is_refused_by_row_and_rule(values, edges, says) -> None:
    with pytest.raises(TruebatchError, match=says):
        parts(values, SplitBy(column="at", **edges))


def test_a_column_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(InvalidArgument) as error:
        parts(["train"], SplitBy(column="att"))
    assert error.value.hint == "did you mean 'at'?"


def test_shares_give_positions_and_train_must_not_be_empty() -> None:
    source = TableSource(pa.table({"x": range(10)}))
    assert Split().parts(source) == ((0, 8), (8, 9), (9, 10))
    assert Split(train=1.0, valid=0.0).parts(source) == ((0, 10), None, None)
    with pytest.raises(InvalidData, match=r"10 rows and train=0\.01"):
        Split(train=0.01).parts(source)
    with pytest.raises(InvalidArgument, match="must be a number"):
        Split(train="0.5")  # type: ignore[arg-type]


@pytest.mark.parametrize("split", [Split(train=0.5), SplitBy(column="at", valid_from="3")])
def test_a_split_is_written_and_read_back(split) -> None:
    assert split_from_dict(split_as_dict(split)) == split


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run on rows of which the test part comes first, and training rows that b does not divide."""
    place = tmp_path_factory.mktemp("split")
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    label = (x + rng.normal(size=1000) > 0).astype(np.int8)
    at = ["test"] * 150 + ["train"] * 750 + ["valid"] * 100
    pq.write_table(pa.table({"label": label, "x": x, "part": at}), place / "rows.parquet")
    source = open_source(place / "rows.parquet")
    config = RunConfig(
        batch_size=100, epochs=1, sampler="deterministic", epsilon=5.0, delta=1e-5, model="linear"
    )
    plan = RunPlan.of(source, Features(label="label", numeric=("x",)), config, SplitBy(column="part"))
    assert plan.train == RowRange(source, 150, 850)
    run(plan, place / "run", KEY)
    return place


@pytest.fixture
def done(original, tmp_path):
    """A copy to edit."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path


def failed(place, **more) -> list[str]:
    checks = verify(place / "run", KEY, data=open_source(place / "rows.parquet"), **more)
    return [check.detail for check in checks if check.outcome == FAILED]


def test_a_run_on_a_split_by_a_column_verifies(done) -> None:
    assert failed(done, full=True) == []


@pytest.mark.parametrize("part", ["train", "test"])
def test_rows_that_the_split_does_not_give_are_caught_even_when_sealed_again(done, part) -> None:
    record = Record.load(done / "run")
    rows = record.fields["data"][part]["rows"]
    rows[:] = [rows[0] + 1, rows[1] + 1] if part == "train" else [rows[0], rows[1] - 1]
    record.sealed(KEY).save(done / "run")
    assert any("the rows of the parts are" in detail for detail in failed(done))


def test_another_split_in_the_record_is_caught_even_when_sealed_again(done) -> None:
    record = Record.load(done / "run")
    record.fields["split"] = split_as_dict(Split())
    record.sealed(KEY).save(done / "run")
    assert any("the rows of the parts are" in detail for detail in failed(done))
