"""The likelihood ratio of one step of a random allocation: a lognormal, integrated over narrow cells."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, logsumexp

Array = npt.NDArray[np.float64]

_RULE = np.polynomial.legendre.leggauss(5)
_NODES, _WEIGHTS = (_RULE[0] + 1) / 2, _RULE[1] / 2
# A cell on which the log-density moves by less than this is left to 5-point Gauss-Legendre, whose relative
# error is below 4e-13 times its 10th power; a wider one to differences of Phi, where nothing cancels.
_SMOOTH = 0.5
_FAR_FROM_ZERO = 12  # in cells: the singularity of the density at 0 costs the rule (4 * 12 + 2)^-10
_BELOW = (
    400  # cells below the lattice; the first ones cost one nat each, as they grow probability falls faster
)
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """e^(mu + tau Z) with Z standard normal: one step's likelihood ratio in units of the strike."""

    mu: float
    tau: float

    @classmethod
    def step(cls, *, sigma: float, log_unit: float) -> Self:
        """e^((2w - 1) / (2 sigma^2)) with w ~ N(0, sigma^2), of mean 1, in units of e^log_unit."""
        return cls(mu=-0.5 / sigma**2 - log_unit, tau=1 / sigma)

    @property
    def log_mean(self) -> float:
        """Logarithm of the mean."""
        return self.mu + 0.5 * self.tau**2

    def z(self, x: Array) -> Array:
        """The standard normal variable at which the value is x."""
        with np.errstate(divide="ignore"):
            return np.asarray((np.log(x) - self.mu) / self.tau)

    def log_call(self, k: float) -> float:
        """log E[(X - k)_+] for k > 0."""
        z = (math.log(k) - self.mu) / self.tau
        first = self.log_mean + float(log_ndtr(self.tau - z))
        second = math.log(k) + float(log_ndtr(-z))
        return log_difference(first, second)

    def log_put(self, k: float) -> float:
        """log E[(k - X)_+] for k > 0."""
        z = (math.log(k) - self.mu) / self.tau
        first = math.log(k) + float(log_ndtr(z))
        second = self.log_mean + float(log_ndtr(z - self.tau))
        return log_difference(first, second)

    def log_tilted_below(self, x: float, tilt: float) -> float:
        """An upper bound on log E[e^(tilt X); X < x]: e^(tilt X) at its largest in each of some cells."""
        edges = x - 20 * min(1 / max(-tilt, 1e-300), x) * np.expm1(0.05 * np.arange(_BELOW))
        edges = as_array(np.append(edges[edges > 0], 0.0))
        log_at_most = log_ndtr(self.z(edges[:-1]))
        return float(logsumexp(log_at_most + tilt * (edges[1:] if tilt < 0 else edges[:-1])))

    def log_density(self, x: Array) -> Array:
        """Logarithm of the density."""
        return np.asarray(-0.5 * self.z(x) ** 2 - np.log(x) - math.log(self.tau) - _HALF_LOG_2PI)

    def cells(self, edges: Array) -> tuple[Array, Array]:
        """For each cell between two edges: log-probability, and the mean's place in it from 0 to 1."""
        z = self.z(edges)
        width = np.diff(edges)
        with np.errstate(invalid="ignore", over="ignore"):
            roughness = np.diff(z) * (np.maximum(np.abs(z[:-1]), np.abs(z[1:])) + self.tau + 1)
        wide = ~(roughness < _SMOOTH) | (edges[:-1] < _FAR_FROM_ZERO * width)
        log_prob, place = np.empty(width.size), np.empty(width.size)
        log_prob[wide], place[wide] = self._wide_cells(
            edges[:-1][wide], width[wide], z[:-1][wide], z[1:][wide]
        )
        fine = ~wide
        log_prob[fine], place[fine] = self._fine_cells(edges[:-1][fine], width[fine])
        return log_prob, place

    def _fine_cells(self, left: Array, width: Array) -> tuple[Array, Array]:
        middle = self.log_density(left + 0.5 * width)
        total, moment = np.zeros(left.size), np.zeros(left.size)
        for node, weight in zip(_NODES, _WEIGHTS, strict=True):
            mass = weight * np.exp(self.log_density(left + node * width) - middle)
            total += mass
            moment += node * mass
        return middle + np.log(width * total), moment / total

    def _wide_cells(self, left: Array, width: Array, z0: Array, z1: Array) -> tuple[Array, Array]:
        log_prob = _log_normal_interval(z0, z1)
        log_part = self.log_mean + _log_normal_interval(z0 - self.tau, z1 - self.tau)
        with np.errstate(invalid="ignore"):
            place = (np.exp(log_part - log_prob) - left) / width
        return log_prob, np.clip(np.nan_to_num(place, nan=0.5), 0.0, 1.0)


def as_array(values: npt.NDArray[Any]) -> Array:
    """As an array of float64, for the type checker too."""
    return np.asarray(values, dtype=np.float64)


def log_difference(first: float, second: float) -> float:
    """log(e^first - e^second); rounding may leave nothing, which is -inf."""
    return first + math.log(-math.expm1(second - first)) if second < first else -math.inf


def _log_normal_interval(a: Array, b: Array) -> Array:
    """log P(a < Z < b), from the tail that is smaller."""
    upper = a > 0
    near = np.where(upper, log_ndtr(-a), log_ndtr(b))
    far = np.where(upper, log_ndtr(-b), log_ndtr(a))
    with np.errstate(divide="ignore", invalid="ignore"):
        value = near + np.log(-np.expm1(np.minimum(far - near, 0.0)))
    return np.asarray(np.where(np.isneginf(near), -np.inf, value))


def capped_moments(variable: LogNormal, cap: float) -> tuple[float, float]:
    """Mean and second moment of min(X, cap)."""
    z = (math.log(cap) - variable.mu) / variable.tau
    below, above = float(log_ndtr(z - 2 * variable.tau)), float(log_ndtr(-z))
    second = math.exp(2 * variable.mu + 2 * variable.tau**2 + below) + math.exp(2 * math.log(cap) + above)
    return math.exp(variable.log_mean) - math.exp(variable.log_call(cap)), second
