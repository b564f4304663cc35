"""What rounding to a grid costs: never less than it can, and hardly more."""

import math
from fractions import Fraction

import numpy as np
import pytest

from truebatch.accounting.rounding import effective_sigma, grid_step, sigma_to_add
from truebatch.errors import InvalidArgument

SIGMAS = (0.01, 0.3, 0.55, 1.0, 1.999999999, 2.0, 7.3)
COUNTS = (1, 598, 1_000_000, 78_000_000, 10**9)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("clip_norm", [1.0, 0.1, 3.7e-5, 1e6])
def test_the_grid_is_a_power_of_two_with_2_to_the_22_steps_in_a_deviation(sigma, clip_norm):
    step = grid_step(sigma=sigma, clip_norm=clip_norm)
    assert math.frexp(step)[0] == 0.5
    assert 2**22 <= sigma * clip_norm / step < 2**23


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("clip_norm", [1.0, 0.1])
def test_what_is_added_for_an_effective_sigma_has_it_and_hardly_more(sigma, count, clip_norm):
    added = sigma_to_add(effective=sigma, clip_norm=clip_norm, num_coordinates=count)
    assert sigma < added < sigma * (1 + 2.0**-21 * sigma * math.sqrt(count) + 1e-12)
    got = effective_sigma(sigma=added, clip_norm=clip_norm, num_coordinates=count)
    assert sigma <= got <= sigma * (1 + 2.0**-22 * sigma * math.sqrt(count) + 1e-12)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("count", COUNTS)
def test_the_effective_sigma_is_below_its_exact_value(sigma, count):
    step = Fraction(grid_step(sigma=sigma, clip_norm=0.3))
    root = Fraction(math.isqrt(count << 200) + 1, 2**100)
    exact = Fraction(sigma * 0.3) / (Fraction(0.3) + step * root)
    got = Fraction(effective_sigma(sigma=sigma, clip_norm=0.3, num_coordinates=count))
    assert exact * (1 - Fraction(1, 2**48)) < got < exact


def test_no_rounded_example_moves_a_sum_further_than_is_accounted():
    """Sums a hair under and over the ties, so that an example's half steps all go its own way."""
    d, clip_norm, sigma = 10_000, 1.0, 4.0
    h = grid_step(sigma=sigma, clip_norm=clip_norm)
    example = np.full(d, clip_norm / math.sqrt(d) // h * h + 0.002 * h)
    without = np.full(d, 0.499 * h)
    moved = np.linalg.norm((np.round((without + example) / h) - np.round(without / h)) * h)
    accounted = sigma * clip_norm / effective_sigma(sigma=sigma, clip_norm=clip_norm, num_coordinates=d)
    assert clip_norm < moved <= accounted  # so the clip norm alone would have been too little
    assert moved > np.linalg.norm(example) + 0.99 * h * math.sqrt(d)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_no_noise_has_no_grid(sigma):
    with pytest.raises(InvalidArgument, match="sigma"):
        grid_step(sigma=sigma, clip_norm=1.0)


@pytest.mark.parametrize("clip_norm", [0.0, math.nan, math.inf, 1e-40, 1e38])
def test_scales_that_float32_cannot_hold_are_refused(clip_norm):
    with pytest.raises(InvalidArgument, match="clip_norm"):
        grid_step(sigma=1.0, clip_norm=clip_norm)


@pytest.mark.parametrize("count", [0, -1, 1.5, True])
def test_coordinates_are_counted_in_whole_numbers(count):
    with pytest.raises(InvalidArgument, match="num_coordinates"):
        effective_sigma(sigma=1.0, clip_norm=1.0, num_coordinates=count)


def test_noise_that_rounding_would_outweigh_is_refused():
    with pytest.raises(InvalidArgument, match="num_coordinates=10000000000000000 at sigma=20"):
        sigma_to_add(effective=20.0, clip_norm=1.0, num_coordinates=10**16)
