"""Inverse distribution functions, against sums of exact fractions."""

import bisect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats

from truebatch.keys import Key
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.sampling.tables import binomial_table, poisson_table

GRID = 2**128


def rounded(value: Fraction) -> int:
    return math.floor(value * GRID + Fraction(1, 2))


def exact_thresholds(trials: int, prob: Fraction) -> tuple[int, list[int]]:
    total, thresholds = Fraction(0), []
    for c in range(trials + 1):
        total += math.comb(trials, c) * prob**c * (1 - prob) ** (trials - c)
        thresholds.append(rounded(total))
    return thresholds.count(0), [f for f in thresholds if 0 < f < GRID]


@pytest.mark.parametrize(
    ("trials", "prob"),
    [
        (1, Fraction(1, 2)),
        (5, Fraction(1, 3)),
        (40, Fraction(7, 2**64)),
        (256, Fraction(1, 2)),
        (150, Fraction(2**63 - 1, 2**64)),
        (150, Fraction(2**64 - 1, 2**64)),
        (700, Fraction(1, 37)),
        (7, Fraction(0)),
        (7, Fraction(1)),
        (0, Fraction(1, 2)),
    ],
)
def test_binomial_thresholds_are_the_correctly_rounded_sums(trials, prob):
    table = binomial_table(trials=trials, prob=prob)
    assert (table.first, table._thresholds) == exact_thresholds(trials, prob)


@pytest.mark.parametrize("mean", [1, 5, 60])
def test_poisson_thresholds_are_the_correctly_rounded_sums(mean):
    table = poisson_table(mean=mean)
    terms = [Fraction(mean**c, math.factorial(c)) for c in range(400)]
    # The sum of all terms is e^mean up to less than 2^-200 of it.
    total, sums = sum(terms), []
    for term in terms:
        sums.append((sums[-1] if sums else 0) + term)
    expected = [rounded(s / total) for s in sums]
    assert table.first == expected.count(0)
    assert table._thresholds == [f for f in expected if 0 < f < GRID]


@pytest.mark.parametrize(
    ("trials", "prob"), [(2**20, Fraction(1, 2)), (2**40, Fraction(1, 2**30)), (2**61, Fraction(5, 2**61))]
)
def test_large_tables_agree_with_scipy(trials, prob):
    table = binomial_table(trials=trials, prob=prob)
    counts = np.arange(table.first, table.last)
    expected = scipy.stats.binom.cdf(counts, trials, float(prob))
    np.testing.assert_allclose([f / GRID for f in table._thresholds], expected, atol=1e-9)


def as_blocks(values: list[int]) -> np.ndarray:
    return np.array([[v % 2**64, v >> 64] for v in values], dtype="<u8")


@pytest.mark.parametrize("prob", [Fraction(1, 3), Fraction(1, 2**20), Fraction(1, 2)])
def test_lookup_counts_the_thresholds_at_or_below_every_block(prob):
    table = binomial_table(trials=50, prob=prob)
    edges = [0, GRID - 1, *table._thresholds]
    near = sorted({min(max(e + d, 0), GRID - 1) for e in edges for d in (-(2**64), -1, 0, 1, 2**64)})
    expected = [table.first + bisect.bisect_right(table._thresholds, value) for value in near]
    assert table.lookup(as_blocks(near)).tolist() == expected


def test_lookup_of_random_blocks_agrees_with_bisection_and_keeps_shape():
    table = binomial_table(trials=2**17, prob=Fraction(1, 700))
    blocks = KeyStream(Key.for_tests(5)).draw(Purpose.COUNT, np.arange(40)[:, None], np.arange(50), 0)
    flat = [int(low) | int(high) << 64 for low, high in blocks.reshape(-1, 2)]
    expected = [table.first + bisect.bisect_right(table._thresholds, value) for value in flat]
    counts = table.lookup(blocks)
    assert counts.shape == (40, 50)
    assert counts.ravel().tolist() == expected


def test_certain_outcomes_have_no_thresholds():
    blocks = as_blocks([0, 5, GRID - 1])
    assert binomial_table(trials=9, prob=Fraction(1)).lookup(blocks).tolist() == [9, 9, 9]
    assert binomial_table(trials=9, prob=Fraction(0)).lookup(blocks).tolist() == [0, 0, 0]


def test_distance_covers_the_rounding_of_every_probability():
    trials, prob = 30, Fraction(1, 3)
    table = binomial_table(trials=trials, prob=prob)
    edges = [0, *table._thresholds, GRID]
    drawn = {table.first + i: Fraction(b - a, GRID) for i, (a, b) in enumerate(itertools.pairwise(edges))}
    exact = [math.comb(trials, c) * prob**c * (1 - prob) ** (trials - c) for c in range(trials + 1)]
    distance = sum(abs(drawn.get(c, 0) - p) for c, p in enumerate(exact)) / 2
    assert 0 < distance <= table.distance
