"""Subsets: the definition read word by word, and what is promised about rows of the result."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch.keys import Key
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.sampling.subsets import Cells, absent, choose, uniform_words, values

STREAM = KeyStream(Key.for_tests(21))


def legal_words(step: int, unit: int, limit: int):
    bits = (limit - 1).bit_length()
    counter = 0
    while True:
        low, high = (int(w) for w in STREAM.draw(Purpose.MEMBER, step, unit, counter))
        block, size = low | high << 64, 32 if limit <= 2**31 else 64
        for i in range(128 // size):
            word = block >> i * size & ((1 << bits) - 1)
            if word < limit:
                yield word
        counter += 1


def defined(step: int, unit: int, limit: int, size: int) -> list[int]:
    chosen: set[int] = set()
    words = legal_words(step, unit, limit)
    while len(chosen) < size:
        chosen.add(next(words))
    return sorted(chosen)


@st.composite
def cells(draw):
    limit = st.one_of(
        st.integers(1, 12),
        st.integers(1, 400),
        st.sampled_from([2**31 - 1, 2**31, 2**31 + 1, 2**62, 3 * 2**40]),
    )
    pairs = []
    for _ in range(draw(st.integers(1, 6))):
        n = draw(limit)
        pairs.append((draw(st.integers(0, 3)), draw(st.integers(0, 9)), n, draw(st.integers(0, min(n, 60)))))
    return pairs


@settings(deadline=None, max_examples=150)
@given(cells())
def test_subsets_are_the_first_distinct_legal_words(requests):
    fields = np.array(requests)
    request = Cells(steps=fields[:, 0], units=fields[:, 1], limits=fields[:, 2], sizes=fields[:, 3])
    words = choose(STREAM, Purpose.MEMBER, request)
    for row, (step, unit, limit, size) in zip(words, requests, strict=True):
        assert row[:size].tolist() == defined(step, unit, limit, size)
        assert (row[size:] == absent(words)).all()


@pytest.mark.parametrize("limit", [1, 2, 3, 64, 100, 255, 256, 257])
def test_the_whole_range_can_be_chosen(limit):
    one = Cells(steps=np.array([1]), units=np.array([2]), limits=np.array([limit]), sizes=np.array([limit]))
    assert choose(STREAM, Purpose.MEMBER, one)[0, :limit].tolist() == list(range(limit))


def test_cells_do_not_depend_on_their_neighbours():
    many = Cells(
        steps=np.arange(50), units=np.arange(50) % 7, limits=np.full(50, 1000), sizes=np.arange(50) * 10
    )
    together = choose(STREAM, Purpose.MEMBER, many)
    for i in range(50):
        alone = choose(STREAM, Purpose.MEMBER, many.take(np.array([i])))
        assert alone[0, : i * 10].tolist() == together[i, : i * 10].tolist()


@pytest.mark.parametrize("width", [3, 40_000])
def test_values_are_listed_cell_by_cell(width):
    words = np.full((3, width), 9, dtype=np.uint32)
    words[0, :2], words[2, 0] = (1, 2), 4
    assert values(words, np.array([2, 0, 1])).tolist() == [1, 2, 4]


@pytest.mark.parametrize("limit", [1, 5, 64, 2**31 + 1])
def test_uniform_words_are_the_legal_words_with_repetition(limit):
    words = legal_words(3, 4, limit)
    expected = [next(words) for _ in range(200)]
    assert uniform_words(STREAM, Purpose.MEMBER, step=3, unit=4, limit=limit, size=200).tolist() == expected
