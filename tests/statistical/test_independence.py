"""No two rows, steps, tiles or workers share a stream."""

import math
import pickle

import numpy as np
import pytest
import scipy.stats

from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import FixedSizeSampling, Poisson

KEY = Key.for_tests(2026)
REJECT = 1e-6


def memberships(spec, *, workers: int) -> np.ndarray:
    """The yes/no matrix (row, step), read by as many workers, each with its own ranges of rows."""
    matrix = np.zeros((spec.num_examples, spec.num_steps))
    for rows in np.array_split(np.arange(spec.num_examples), workers):
        worker = schedule(spec, Key.from_bytes(KEY.to_bytes()))
        step, _, row = worker.placements(int(rows[0]), int(rows[-1]) + 1)
        matrix[row, step] = 1
    return matrix


def pair_p_value(matrix: np.ndarray, q: float) -> float:
    """Null: entries are independent coins of probability q.

    The sum over pairs of lines of their squared correlation, which for independent lines has mean 1 and
    variance 2 (up to a term in 1/length) for each pair, and pairs are uncorrelated.
    """
    lines, length = matrix.shape
    centred = (matrix - q) / math.sqrt(q * (1 - q))
    correlation = centred @ centred.T / math.sqrt(length)
    squares = correlation[np.triu_indices(lines, k=1)] ** 2
    kurtosis = 1 / (q * (1 - q)) - 3
    variance = 2 + (kurtosis**2 + 4 * kurtosis) / length
    z = (squares.sum() - len(squares)) / math.sqrt(variance * len(squares))
    return float(2 * scipy.stats.norm.sf(abs(z)))


@pytest.mark.parametrize("workers", [1, 3, 8])
@pytest.mark.parametrize(("n", "b"), [(600, 180), (1500, 500), (600, 30), (600, 420)])
def test_rows_are_pairwise_independent(n, b, workers):
    spec = Poisson(num_examples=n, batch_size=b, num_steps=800)
    assert pair_p_value(memberships(spec, workers=workers), b / n) > REJECT


@pytest.mark.parametrize(("n", "b"), [(2000, 700), (1500, 60)])
def test_steps_are_pairwise_independent(n, b):
    spec = Poisson(num_examples=n, batch_size=b, num_steps=500)
    assert pair_p_value(memberships(spec, workers=1).T, b / n) > REJECT


def test_neighbouring_rows_and_steps_are_independent_at_every_lag():
    """Null: the product of two entries some rows or steps apart has mean q^2. Also across tile borders."""
    n, b, T = 3000, 1200, 600
    q = b / n
    spec = Poisson(num_examples=n, batch_size=b, num_steps=T)
    assert 10 * schedule(spec, KEY).tile_rows < n
    centred = (memberships(spec, workers=1) - q) / math.sqrt(q * (1 - q))
    for lag in (1, 2, 3, 4, 8, 64, 128, 256, 512):
        for product in (centred[lag:] * centred[:-lag], centred[:, lag:] * centred[:, :-lag]):
            z = product.sum() / math.sqrt(product.size)
            assert 2 * scipy.stats.norm.sf(abs(z)) > REJECT


class PrintedTransform:
    """The sampling part of the Beam code in Appendix A: its generator is pickled to workers with it."""

    def __init__(self, num_batches: int, subsampling_probability: float, sample_size: int) -> None:
        self._num_batches = num_batches
        self._subsampling_probability = subsampling_probability
        self._sample_size = sample_size
        self._rng = np.random.default_rng(7)

    def get_batch_indices(self) -> np.ndarray:
        largest, indices = 0, np.array([])
        while largest < self._num_batches:
            gaps = self._rng.geometric(p=self._subsampling_probability, size=self._sample_size)
            indices = np.concatenate((indices, largest + np.cumsum(gaps)))
            largest = indices[-1]
        return indices[indices <= self._num_batches]


def printed_memberships(num_rows: int, num_steps: int, q: float, bundles: int) -> np.ndarray:
    """Twin: each bundle of rows unpickles its own copy of the transform, as a runner's workers do."""
    frozen = pickle.dumps(PrintedTransform(num_steps, q, 30))
    matrix = np.zeros((num_rows, num_steps))
    for bundle in np.array_split(np.arange(num_rows), bundles):
        transform = pickle.loads(frozen)
        for row in bundle:
            matrix[row, transform.get_batch_indices().astype(int) - 1] = 1
    return matrix


def test_the_printed_beam_code_repeats_its_coins_and_fails_the_same_test():
    n, T, q, bundles = 2000, 500, 0.05, 4
    printed = printed_memberships(n, T, q, bundles)
    ours = memberships(Poisson(num_examples=n, batch_size=100, num_steps=T), workers=bundles)
    assert len(np.unique(printed, axis=0)) == n // bundles
    assert len(np.unique(ours, axis=0)) == n
    assert pair_p_value(printed, q) < REJECT < pair_p_value(ours, q)


def test_fixed_size_batches_are_independent_of_each_other():
    """Null: two batches of b out of n share Hypergeometric(n, b, b) rows."""
    n, b, T = 2000, 300, 400
    matrix = memberships(FixedSizeSampling(num_examples=n, batch_size=b, num_steps=T), workers=2)
    shared = (matrix.T @ matrix)[np.triu_indices(T, k=1)]
    mean = b * b / n
    variance = mean * (1 - b / n) * (n - b) / (n - 1)
    z = (shared.sum() - mean * len(shared)) / math.sqrt(variance * len(shared))
    assert 2 * scipy.stats.norm.sf(abs(z)) > REJECT
    assert shared.var() == pytest.approx(variance, rel=0.03)
