"""Tests of hypotheses with their false alarms and their power: what the statistical checks share."""

import math

import numpy as np
import numpy.typing as npt
import scipy.stats

# A check rejects where truth would do so this rarely. Some laws are normal to a few digits only, so what is
# stated as the false alarm is a thousand times as much.
REJECT, FALSE_ALARM = 1e-9, 1e-6

# No power is stated as 1: the laws it is computed from are not known to more digits than this.
_MOST = 1 - 1e-12

Matrix = npt.NDArray[np.float64]


def two_sided(z: float) -> float:
    """How likely a standard normal number is as far out as this."""
    return float(2 * scipy.stats.norm.sf(abs(z)))


def power_at(z: float, *, deviation: float = 1.0) -> float:
    """How likely N(z, deviation^2) is rejected for N(0, 1).

    >>> round(power_at(0.0) / REJECT, 6), power_at(6.5) > 0.6, power_at(30.0)
    (1.0, True, 0.999999999999)
    """
    edge = scipy.stats.norm.isf(REJECT / 2)
    law = scipy.stats.norm(z, deviation)
    return min(_MOST, float(law.sf(edge) + law.cdf(-edge)))


def binomial_z(successes: int, trials: int, prob: float) -> float:
    """Distance of a count from what is expected of it, in standard deviations."""
    return (successes - trials * prob) / math.sqrt(trials * prob * (1 - prob))


def binomial_power(*, trials: int, said: float, done: float) -> float:
    """How likely a count with probability `done` is rejected for one with probability `said`."""
    z = (done - said) * math.sqrt(trials / (said * (1 - said)))
    return power_at(z, deviation=math.sqrt(done * (1 - done) / (said * (1 - said))))


def pairs_z(matrix: Matrix, q: float) -> float:
    """Null: entries are independent coins of probability q, so that no two lines are correlated.

    The sum over pairs of lines of their squared correlation, which for independent lines has mean 1 and
    variance 2 (up to a term in 1/length) for each pair, and pairs are uncorrelated.
    """
    lines, length = matrix.shape
    centred = (matrix - q) / math.sqrt(q * (1 - q))
    squares = np.square(centred @ centred.T / math.sqrt(length))[np.triu_indices(lines, k=1)]
    return float((squares.sum() - len(squares)) / _pairs_deviation(lines, length, q))


def pairs_power(*, lines: int, length: int, q: float, copies: int) -> float:
    """How likely `pairs_z` rejects where this many of the pairs are copies of each other."""
    return power_at(copies * (length - 1) / _pairs_deviation(lines, length, q))


def _pairs_deviation(lines: int, length: int, q: float) -> float:
    kurtosis = 1 / (q * (1 - q)) - 3
    variance = 2 + (kurtosis**2 + 4 * kurtosis) / length
    return math.sqrt(variance * lines * (lines - 1) / 2)
