import numpy as np
import pyarrow as pa
import pytest
from small_runs import KEY, SPEC, gathered, rows

from truebatch.batching import Batch, GatherBatches
from truebatch.data import open_source
from truebatch.errors import InvalidArgument, InvalidData
from truebatch.specs import Poisson
from truebatch.training.feed import as_columns, batches_from, first_batch, spec_of


def test_batches_of_a_source_and_columns_of_ones_own_are_the_same_arrays() -> None:
    source = open_source(rows())
    mapped = GatherBatches(source, SPEC, KEY)
    like = first_batch(mapped, SPEC)
    assert spec_of(mapped, None) == SPEC
    for start in (0, 17):
        ours = list(batches_from(gathered(), start, SPEC, like=first_batch(gathered(), SPEC)))
        theirs = list(batches_from(mapped, start, SPEC, like=like))
        assert len(ours) == len(theirs) == SPEC.num_steps - start
        for mine, other in zip(ours, theirs, strict=True):
            assert np.array_equal(mine.weights, other.weights)
            assert mine.examples.keys() == other.examples.keys()
            assert all(np.array_equal(x, other.examples[name]) for name, x in mine.examples.items())


def test_types_that_the_compiler_lacks_are_narrowed_without_wrapping_around() -> None:
    big = np.array([0, 5, 2**40, -(2**40)])
    found = as_columns(
        {"id": big, "unsigned": big[:3].astype(np.uint64), "x": np.array([1.5]), "on": big > 0}
    )
    assert found["id"].dtype == np.int32
    assert found["id"].tolist() == [0, 5, 2**31 - 1, -(2**31)]
    assert found["unsigned"].tolist() == [0, 5, 2**31 - 1]
    assert found["x"].dtype == np.float32
    assert found["on"].dtype == np.bool_


def test_columns_that_are_no_numbers_are_left_out() -> None:
    record = pa.record_batch({"name": ["a", "b"], "x": [1.0, 2.0], "day": pa.array([1, 2], pa.date32())})
    assert "name" not in as_columns(Batch(0, record))
    assert "x" in as_columns(Batch(0, record))
    assert "name" not in as_columns({"name": np.array(["a"]), "x": np.zeros(1)})


def test_a_spec_that_contradicts_the_batches_is_refused() -> None:
    mapped = GatherBatches(open_source(rows()), SPEC, KEY)
    with pytest.raises(InvalidArgument, match="spec is known from the batches"):
        spec_of(mapped, Poisson(num_examples=900, batch_size=30, num_steps=40))


def test_what_reading_raises_is_raised_where_batches_are_used() -> None:
    class Broken:
        def __iter__(self):  # type: ignore[no-untyped-def]
            yield from list(gathered())[:2]
            raise InvalidData("a disk is gone")

    arrays = batches_from(Broken(), 0, SPEC, like=first_batch(Broken(), SPEC))
    next(arrays)
    next(arrays)
    with pytest.raises(InvalidData, match="a disk is gone"):
        next(arrays)
