"""The hash, held against a second implementation of its definition, and its buckets against chance."""

import datetime
import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from truebatch.data.hashing import buckets_of, hashes, seed_of

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word):
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def reference(value, column):
    """The definition in `truebatch.data.hashing`, one value at a time."""
    seed = mix((column + 1) * GOLDEN & MASK)
    if isinstance(value, int):
        return mix(seed ^ (value & MASK))
    data = value.encode() if isinstance(value, str) else value
    if len(data) > 256:
        data = hashlib.blake2b(data, digest_size=32).digest()
    word = seed ^ ((len(data) + 1) * GOLDEN & MASK)
    for at in range(0, len(data), 8):
        word = mix(word ^ int.from_bytes(data[at : at + 8], "little"))
    return word


@settings(deadline=None, max_examples=150)
@given(
    st.one_of(
        st.lists(st.none() | st.text(max_size=40)),
        st.lists(st.none() | st.binary(max_size=300)),
        st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)),
    ),
    st.integers(0, 40),
    st.integers(0, 3),
)
def test_every_value_has_the_hash_of_the_definition(values, column, skip):
    nothing = all(value is None for value in values)
    array = pa.array(values, pa.int64() if nothing else None)
    got = hashes(array.slice(skip), column)
    for value, word in zip(values[skip:], got.tolist(), strict=True):
        assert value is None or word == reference(value, column)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()])
def test_the_width_of_an_integer_does_not_matter(kind):
    assert hashes(pa.array([0, 5, 100], kind), 3).tolist() == [reference(v, 3) for v in (0, 5, 100)]


def test_every_kind_of_text_and_bytes_hashes_by_its_bytes():
    want = [reference("abcde", 1)]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary()):
        assert hashes(pa.array(["abcde"], kind), 1).tolist() == want
    assert hashes(pa.array([b"abcde"], pa.binary(5)), 1).tolist() == want


def test_truth_values_and_dates_hash_as_whole_numbers():
    assert hashes(pa.array([True, False]), 0).tolist() == [reference(1, 0), reference(0, 0)]
    days = pa.array([datetime.date(1970, 1, 11)])
    assert hashes(days, 0).tolist() == [reference(10, 0)]
    assert hashes(pa.array([datetime.datetime(1970, 1, 1, 0, 0, 1)], pa.timestamp("s")), 0).tolist() == [
        reference(1, 0)
    ]


def p_value(places, count):
    return stats.chisquare(np.bincount(places, minlength=count)).pvalue


@pytest.mark.parametrize(
    "values",
    [
        pa.array(np.arange(200_000)),
        pa.array(np.arange(200_000) << 40),
        pa.array([f"{i:08x}" for i in range(200_000)]),
        pa.array([f"user-{i}" for i in range(200_000)]),
    ],
    ids=["numbers", "high bits", "hex digits", "names"],
)
def test_buckets_of_orderly_values_look_drawn_at_random(values):
    # Null: uniform. The values and columns are fixed, and so is the outcome; rejected at 1e-6.
    for column in range(3):
        assert p_value(buckets_of(hashes(values, column), 1000), 1000) > 1e-6
    # Columns are hashed apart: the pair of buckets is uniform too.
    pair = buckets_of(hashes(values, 0), 31) * 31 + buckets_of(hashes(values, 1), 31)
    assert p_value(pair, 31 * 31) > 1e-6


def test_the_test_of_buckets_notices_a_poor_hash():
    orderly = np.arange(200_000, dtype=np.uint64) << np.uint64(40)
    assert p_value(buckets_of(orderly, 1000), 1000) < 1e-6
    same = buckets_of(hashes(pa.array(np.arange(200_000)), 0), 31)
    assert p_value(same * 31 + same, 31 * 31) < 1e-6


def test_buckets_reach_from_the_first_to_the_last():
    ends = np.array([0, 2**64 - 1], np.uint64)
    assert buckets_of(ends, 7).tolist() == [0, 6]
    assert buckets_of(ends, 2**31 - 1).tolist() == [0, 2**31 - 2]
    assert buckets_of(ends, 1).tolist() == [0, 0]


def test_seeds_of_columns_differ():
    assert len({int(seed_of(j)) for j in range(1000)}) == 1000
