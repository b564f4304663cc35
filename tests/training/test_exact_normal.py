"""Pairs of rounded normals to many digits, held against arbitrary precision by another road."""

import math
import random

import mpmath
import pytest

from truebatch.training.exact_normal import rounded_pair

SCALES = (1.0, 1000.5, 0.55 * 2**23, math.nextafter(2.0**23, 0))
MORE = (0, 1, 2**127, 2**128 - 1)


def unrounded(radius: int, angle: int, radius_more: int, angle_more: int) -> tuple[mpmath.mpf, mpmath.mpf]:
    """The definition once more: the point of the unit circle as a power of the imaginary unit."""
    u = (mpmath.mpf((radius // 4) * 2**128 + radius_more) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 190
    theta = (mpmath.mpf(angle * 2**128 + angle_more) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 192
    turned = mpmath.frac(theta + mpmath.mpf(1) / 2)  # a signed word counts from the middle
    point = mpmath.sqrt(mpmath.log(1 / u) * 2) * mpmath.expjpi(turned / 2)
    return point.real * (1 - 2 * (radius & 1)), point.imag * (1 - (radius & 2))


def assert_is_right(bits: tuple[int, int, int, int], scale: float) -> None:
    with mpmath.workprec(700):
        for got, value in zip(rounded_pair(*bits, scale=scale), unrounded(*bits), strict=True):
            assert abs(got - value * mpmath.mpf(scale)) <= mpmath.mpf(1) / 2


@pytest.mark.parametrize("scale", SCALES)
def test_random_bits_give_the_numbers_that_they_name(scale: float) -> None:
    rng = random.Random(1)
    for _ in range(100):
        words = rng.getrandbits(rng.randrange(1, 65)), rng.getrandbits(64)
        assert_is_right((*words, rng.getrandbits(128), rng.getrandbits(128)), scale)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("radius", [0, 1, 2, 3, 2**63, 2**64 - 4, 2**64 - 1])
@pytest.mark.parametrize("angle", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_extreme_bits_give_the_numbers_that_they_name(scale: float, radius: int, angle: int) -> None:
    for more in MORE:
        for angle_more in MORE:
            assert_is_right((radius, angle, more, angle_more), scale)


def test_the_refinement_decides_where_the_word_alone_cannot() -> None:
    """In the last radius word, nine deviations out, the numbers of one word are millions apart."""
    scale = 2.0**23
    for more, reach in ((2**128 - 1, 9.0), (0, 16.3)):
        x, y = rounded_pair(0, 0, more, 0, scale=scale)
        assert math.hypot(x, y) / scale == pytest.approx(reach, abs=0.3)


@pytest.mark.parametrize("which", ["radius", "angle"])
def test_a_boundary_falls_where_it_should(which: str) -> None:
    """Of two neighbouring values of all 192 bits around n + 1/2, one gives n and the other n + 1."""
    scale, n = 2.0**22, 1_234_567
    radius, angle = 5 * 2**60, 2**61
    with mpmath.workprec(700):
        goal = (mpmath.mpf(n) + mpmath.mpf(1) / 2) / mpmath.mpf(scale)
        if which == "radius":
            phi = (mpmath.mpf(angle * 2**128) / mpmath.mpf(2) ** 192 + mpmath.mpf(1) / 2) * mpmath.pi / 2
            u = mpmath.exp(-((goal / mpmath.cos(phi + mpmath.pi * mpmath.mpf(2) ** -194)) ** 2) / 2)
            units = int(mpmath.floor(u * mpmath.mpf(2) ** 190 - mpmath.mpf(1) / 2))
            bits = [(v >> 128 << 2, angle, v % 2**128, 0) for v in (units + 1, units)]
        else:
            u = (mpmath.mpf((radius // 4) * 2**128) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 190
            phi = mpmath.acos(goal / mpmath.sqrt(-2 * mpmath.log(u)))
            theta = phi * 2 / mpmath.pi - mpmath.mpf(1) / 2
            units = int(mpmath.floor(theta * mpmath.mpf(2) ** 192 - mpmath.mpf(1) / 2)) % 2**192
            bits = [(radius, v >> 128, 0, v % 2**128) for v in (units + 1, units)]
    assert [rounded_pair(*b, scale=scale)[0] for b in bits] == [n, n + 1]


def test_signs_are_the_two_lowest_bits_of_the_radius_word() -> None:
    x, y = rounded_pair(2**62, 2**60, 0, 0, scale=2.0**20)
    assert 0 < x < y
    signs = [rounded_pair(2**62 + k, 2**60, 0, 0, scale=2.0**20) for k in range(4)]
    assert signs == [(x, y), (-x, y), (x, -y), (-x, -y)]
