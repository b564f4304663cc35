"""Rounded normals by whole numbers, held against arbitrary precision."""

import math
import random

import mpmath
import pytest

from truebatch.training.exact_normal import rounded_normal

SCALES = (1.0, 1000.5, 0.55 * 2**23, math.nextafter(2.0**23, 0))
LAST = 2**64 - 1, 2**128 - 1


def tail_beyond(number: mpmath.mpf, scale: float) -> mpmath.mpf:
    return mpmath.erfc(number / mpmath.mpf(scale) / mpmath.sqrt(2))


def assert_is_right(word: int, refinement: int, scale: float) -> None:
    """The definition: U lies between the tails half a number further out and half a number further in."""
    got = rounded_normal(word, refinement, scale=scale)
    n = abs(got)
    with mpmath.workprec(700):
        u = (mpmath.mpf((word >> 1 << 128) + refinement) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 191
        assert tail_beyond(n + mpmath.mpf(1) / 2, scale) < u
        assert n == 0 or u <= tail_beyond(n - mpmath.mpf(1) / 2, scale)
    assert got <= 0 if word & 1 else got >= 0


@pytest.mark.parametrize("scale", SCALES)
def test_random_bits_give_the_number_that_their_tail_defines(scale):
    rng = random.Random(1)
    for _ in range(60):
        assert_is_right(rng.getrandbits(rng.randrange(1, 65)), rng.getrandbits(128), scale)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("word", [0, 1, 2, 3, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1])
@pytest.mark.parametrize("refinement", [0, 1, 2**127, 2**128 - 1])
def test_extreme_bits_give_the_number_that_their_tail_defines(scale, word, refinement):
    assert_is_right(word, refinement, scale)


def test_the_refinement_decides_where_the_word_alone_cannot():
    """In the last word, nine deviations out, the numbers of one word are millions apart."""
    scale = 2.0**23
    assert rounded_normal(0, 2**128 - 1, scale=scale) / scale == pytest.approx(9.0, abs=0.1)
    assert rounded_normal(0, 0, scale=scale) / scale == pytest.approx(16.1, abs=0.1)


def test_a_boundary_falls_where_it_should():
    """The two numbers of 192 bits around T(n - 1/2) give n - 1 and n."""
    scale, n = 2.0**22, 5_000_000
    with mpmath.workprec(700):
        u = int(
            mpmath.floor(tail_beyond(mpmath.mpf(n) - mpmath.mpf(1) / 2, scale) * mpmath.mpf(2) ** 191 - 0.5)
        )
    for below, expected in ((u, n), (u + 1, n - 1)):
        assert rounded_normal(below >> 128 << 1, below & LAST[1], scale=scale) == expected


def test_the_largest_bits_are_zero_and_the_sign_is_the_lowest_bit():
    assert rounded_normal(*LAST, scale=2.0**20) == 0
    assert rounded_normal(2**63, 0, scale=2.0**20) == -rounded_normal(2**63 + 1, 0, scale=2.0**20) == 707254
