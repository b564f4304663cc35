"""A billion draws of the noise: its law by Kolmogorov and Smirnov, its tails by counting."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from truebatch.keys import Key
from truebatch.training.noise import Noise

CHUNK = 2**23
SCALE = 1.1 * 2**22
NOISE = Noise(Key.for_tests(21), sigma=1.1, clip_norm=1.0)
SHIFT = 12  # bins are 2^12 grid steps: a thousandth of a deviation
NUM_BINS = 2**16
REJECT = 1e-6

pytestmark = pytest.mark.slow


def ours(num_chunks: int) -> Iterator[np.ndarray]:
    sums = jnp.zeros(CHUNK, jnp.float32)
    for step in range(num_chunks):
        noised = np.asarray(NOISE.add(step, sums)) / np.float32(NOISE.grid)
        yield noised.astype(np.int32)


def float32(num_chunks: int) -> Iterator[np.ndarray]:
    """What a library draws: uniform float32, so 2^23 values, through the inverse of the error function."""
    draw = jax.jit(lambda i: jax.random.normal(jax.random.key(i), (CHUNK // 1024, 1024), jnp.float32) * SCALE)
    for i in range(num_chunks):
        yield np.asarray(jnp.round(draw(i)).astype(jnp.int32)).ravel()


def counts(draws: Iterator[np.ndarray]) -> np.ndarray:
    total = np.zeros(NUM_BINS, dtype=np.int64)
    for numbers in draws:
        total += np.bincount((numbers >> SHIFT) + NUM_BINS // 2, minlength=NUM_BINS)
    return total


def edges() -> np.ndarray:
    """The upper ends of the bins, in deviations: halfway between two numbers."""
    return ((np.arange(1, NUM_BINS + 1) - NUM_BINS // 2) * 2.0**SHIFT - 0.5) / SCALE


def ks_pvalue(total: np.ndarray, *, deviation: float = 1.0) -> float:
    """An upper bound: the distance is taken at the ends of bins only."""
    distance = np.abs(np.cumsum(total) / total.sum() - stats.norm.cdf(edges() / deviation)).max()
    return float(stats.kstwobign.sf(distance * np.sqrt(total.sum())))


def tail_pvalues(total: np.ndarray) -> list[float]:
    """For thresholds of 3 to 6 deviations, both sides: how unlikely so many or so few beyond them are."""
    found = []
    for threshold in np.arange(3, 6.01, 0.25):
        high = np.searchsorted(edges(), threshold)
        low = np.searchsorted(edges(), -threshold)
        count = total[high + 1 :].sum() + total[: low + 1].sum()
        mean = total.sum() * (stats.norm.sf(edges()[high]) + stats.norm.cdf(edges()[low]))
        found.append(2 * min(stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)))
    return found


@pytest.fixture(scope="module")
def billion() -> np.ndarray:
    total = counts(ours(120))
    assert total.sum() > 10**9
    return total


def test_the_law_of_a_billion_draws_is_normal(billion):
    assert ks_pvalue(billion) > REJECT
    assert ks_pvalue(billion, deviation=1.0005) < REJECT  # half a thousandth would be seen


def test_the_tails_of_a_billion_draws_have_what_they_should(billion):
    assert min(tail_pvalues(billion)) > REJECT / 13


def test_the_tails_of_a_float32_generator_do_not():
    """The twin: nothing beyond 5.42 deviations, where a billion draws have sixty."""
    assert min(tail_pvalues(counts(float32(120)))) < REJECT / 13
