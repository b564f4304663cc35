"""float64 finds the same numbers as whole numbers do, or says that it cannot."""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from truebatch.training import normals
from truebatch.training.exact_normal import rounded_normal
from truebatch.training.normals import ROW, UNDECIDED, distance_from_zero, rounded_normals, undecided_rows

SCALE = math.nextafter(2.0**23, 0)  # the largest there is, where float64 is nearest to its limits


def drawn(words: np.ndarray, *, wide: bool = True) -> np.ndarray:
    options = {"xla_cpu_prefer_vector_width": "512" if wide else "128"}
    with jax.enable_x64(True):
        # A function of its own each time: JAX remembers what it has traced, and a test changes the margins.
        program = jax.jit(lambda words: rounded_normals(words, SCALE), compiler_options=options)
        return np.asarray(program(words))


@functools.cache
def words_near_boundaries() -> np.ndarray:
    """For each number, the words whose tails are nearest to the boundary beyond it."""
    rng = np.random.default_rng(1)
    numbers = np.floor(np.abs(rng.normal(size=2000)) * SCALE).astype(int)
    with mpmath.workprec(160):
        edges = [mpmath.erfc((n + mpmath.mpf(1) / 2) / SCALE / mpmath.sqrt(2)) for n in numbers.tolist()]
        words = [int(edge * 2**63) + offset for edge in edges for offset in (-1, 0, 1)]
    return np.array([2 * w + w % 2 for w in words], dtype=np.uint64)


def exact(word: int) -> int | None:
    """The number of a word, if every refinement agrees."""
    ends = {rounded_normal(word, r, scale=SCALE) for r in (0, 2**128 - 1)}
    return ends.pop() if len(ends) == 1 else None


def wrong(words: np.ndarray, numbers: np.ndarray) -> int:
    pairs = zip(words.tolist(), numbers.tolist(), strict=True)
    return sum(number not in (UNDECIDED, exact(word)) for word, number in pairs)


def test_the_distance_from_zero_is_within_its_stated_error():
    rng = np.random.default_rng(2)
    tails = np.concatenate(
        [np.exp2(-rng.uniform(0, 22, 1500)), 1 - np.exp2(-rng.uniform(0, 53, 500)), rng.uniform(0, 1, 500)]
    )
    tails = tails[(tails >= 2.0**-22) & (tails < 1)]
    with jax.enable_x64(True):
        got = np.asarray(jax.jit(distance_from_zero)(tails))

    def error(tail: float, z: float) -> float:
        """By one step of Newton's, from a float that is nearly right."""
        y = mpmath.mpf(z) / mpmath.sqrt(2)
        slope = 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-y * y)
        return float(mpmath.sqrt(2) * (mpmath.erfc(y) - mpmath.mpf(tail)) / slope)

    with mpmath.workprec(160):
        errors = np.abs([error(tail, z) for tail, z in zip(tails.tolist(), got.tolist(), strict=True)])
    assert errors.max() < 6e-15
    assert (errors < 6e-15 * np.maximum(got, 1e-3)).all()  # small numbers keep their digits


@pytest.mark.parametrize("wide", [True, False])
def test_random_words_are_right_or_undecided(wide):
    words = np.random.default_rng(3).integers(0, 2**64, 2000, dtype=np.uint64)
    numbers = drawn(words, wide=wide)
    assert wrong(words, numbers) == 0
    assert (numbers != UNDECIDED).all()


def test_words_beside_a_boundary_are_right_or_undecided():
    words = words_near_boundaries()
    numbers = drawn(words)
    assert wrong(words, numbers) == 0
    assert (numbers == UNDECIDED).mean() > 0.99


def test_without_the_margins_floats_would_be_wrong(monkeypatch):
    """The twin of the tests above: what they would see if a margin were too small."""
    monkeypatch.setattr(normals, "_NEAR_MARGIN", 0.0)
    monkeypatch.setattr(normals, "_FAR_MARGIN", 0.0)
    words = words_near_boundaries()
    assert wrong(words, drawn(words)) > len(words) / 10


def test_the_far_tail_is_left_to_whole_numbers():
    words = np.array([0, 1, 2**20, 2**41 - 1, 2**42, 2**64 - 1], dtype=np.uint64)
    assert [number == UNDECIDED for number in drawn(words)] == [True, True, True, True, False, False]


def test_few_words_are_undecided_and_their_rows_are_named():
    words = np.random.default_rng(4).integers(0, 2**64, (2**12, ROW), dtype=np.uint64)
    words[7, 5] = words[9, 0] = words[9, 1] = 0
    numbers = drawn(words)
    rows = np.asarray(undecided_rows(jnp.asarray(numbers)))
    assert rows[7]
    assert rows[9]
    assert np.array_equal(rows, (numbers == UNDECIDED).any(axis=1))
    assert rows.sum() < 20  # four are expected among four million
