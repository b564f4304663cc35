"""Rows join steps at the stated rate, from one half down to one in a thousand million."""

import math

import numpy as np
import pytest
import scipy.stats

from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.specs import Poisson, TruncatedPoisson

KEY = Key.for_tests(2024)
REJECT = 1e-6


def z_of(num_members: int, num_trials: int, q: float) -> float:
    """Null: num_members is Binomial(num_trials, q). Its distance from the mean in standard errors."""
    return (num_members - num_trials * q) / math.sqrt(num_trials * q * (1 - q))


def p_of(z: float) -> float:
    return float(2 * scipy.stats.norm.sf(abs(z)))


@pytest.mark.parametrize("q", [0.5, 0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9])
def test_inclusion_rate_is_within_three_standard_errors(q):
    # About four million memberships for each rate: a relative error of 0.05 %.
    b, T = 400_000, 10
    n = round(b / q)
    s = schedule(Poisson(num_examples=n, batch_size=b, num_steps=T), KEY)
    z = z_of(int(s.sizes().sum()), n * T, float(s.sampling_prob))
    assert abs(z) < 3
    assert p_of(z) > REJECT


def test_a_rate_above_one_half_is_met_too():
    s = schedule(Poisson(num_examples=10**6, batch_size=999_000, num_steps=400), KEY)
    assert abs(z_of(int(s.sizes().sum()), 400 * 10**6, 0.999)) < 3


def test_comparing_a_32_bit_float_with_a_tiny_rate_fails_the_same_test():
    """Twin: `rand(n) < q` in single precision, which can only be a multiple of 2^-24."""
    q, num_words = 1e-8, 2**28
    stream, members = KeyStream(KEY), 0
    for i in range(64):
        words = stream.draw(Purpose.TAG, 0, i, np.arange(num_words // 256)).view("<u4")
        members += int(np.count_nonzero((words >> 8).astype(np.float32) / np.float32(2**24) < np.float32(q)))
    z = z_of(members, num_words, q)
    assert p_of(z) < REJECT
    assert members / (num_words * q) == pytest.approx(5.96, rel=0.7)


def test_batch_sizes_follow_the_binomial_law():
    """Null: sizes are Binomial(n, b/n). Chi-square over 12 equally likely bins."""
    n, b, T = 50_000, 700, 20_000
    sizes = schedule(Poisson(num_examples=n, batch_size=b, num_steps=T), KEY).sizes()
    edges = scipy.stats.binom.ppf(np.linspace(0, 1, 13)[1:-1], n, b / n)
    cdf = scipy.stats.binom.cdf(edges, n, b / n)
    expected = np.diff(np.concatenate(([0], cdf, [1]))) * T
    observed = np.bincount(np.searchsorted(edges, sizes), minlength=12)
    assert scipy.stats.chisquare(observed, expected).pvalue > REJECT
    # Twin: sizes that never vary.
    constant = np.bincount(np.searchsorted(edges, np.full(T, b)), minlength=12)
    assert scipy.stats.chisquare(constant, expected).pvalue < REJECT


@pytest.mark.parametrize(("n", "b"), [(1000, 30), (5000, 900), (1000, 700)])
def test_every_row_is_taken_equally_often(n, b):
    """Null: a row's memberships are Binomial(T, b/n), rows independent. Chi-square over rows."""
    T, q = 4000, b / n
    s = schedule(TruncatedPoisson(num_examples=n, batch_size=b, num_steps=T, max_batch_size=n), KEY)
    times = np.bincount(np.concatenate(list(s.batches())), minlength=n)
    statistic = ((times - T * q) ** 2).sum() / (T * q * (1 - q))
    assert REJECT < scipy.stats.chi2.sf(statistic, n) < 1 - REJECT
    # Twin: one row in ten is taken a quarter less often.
    times[::10] = times[::10] * 3 // 4
    assert scipy.stats.chi2.sf(((times - T * q) ** 2).sum() / (T * q * (1 - q)), n) < REJECT
