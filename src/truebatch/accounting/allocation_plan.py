"""Where to look when S lognormals are added up: how much to tilt, where to cap, how fine a lattice.

Nothing here is part of a bound. A poor plan gives bounds that are far apart, never wrong ones.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.fft import next_fast_len
from scipy.optimize import brentq
from scipy.special import log_ndtr

from truebatch.accounting.lattice import log_sum_exp
from truebatch.accounting.lognormal import Array, LogNormal, capped_moments

_MAX_SIZE = 1 << 20  # of an FFT and of a lattice: beyond, the bounds move apart, and stay bounds
_TAIL = 30.0  # nats: what the window leaves out of the tilted sum is about e^-30
_NEGLIGIBLE = 30.0  # nats below the result at which a single step's tail is not resolved
_JUMP = 16.0  # nats below the result at which the one big jump may be bounded roughly; more blurs the tilt
FAR = 35.0  # standard deviations
_REACH = 38.0  # standard deviations beyond which Phi underflows


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Where to look: the tilt, the range of one step that matters, the window of the sum, the lattice."""

    tilt: float
    low: float
    cap: float
    window: tuple[float, float]
    spacing: float
    size: int
    chernoff_up: float
    chernoff_down: float


class CappedSum:
    """min(X, cap) as a few thousand atoms: good enough to plan, never used in a bound."""

    def __init__(self, variable: LogNormal, cap: float, copies: int) -> None:
        top = (math.log(cap) - variable.mu) / variable.tau
        step = min(1 / 16, 0.4 / variable.tau)
        z = np.arange(-_REACH, min(_REACH + variable.tau, top), step)
        self.x = np.append(np.exp(variable.mu + variable.tau * z), cap)
        self.log_weight = np.append(-0.5 * z**2 + math.log(step / math.sqrt(2 * math.pi)), log_ndtr(-top))
        self.log_weight -= log_sum_exp(self.log_weight)
        self.copies = copies

    def log_mgf(self, tilt: Array) -> Array:
        """log E[e^(tilt x)] for each tilt."""
        return np.asarray([log_sum_exp(self.log_weight + t * self.x) for t in tilt])

    def tilted(self, tilt: float) -> Array:
        """The atoms' weights after tilting."""
        log_weight = self.log_weight + tilt * self.x
        weight = np.exp(log_weight - log_weight.max())
        return np.asarray(weight / weight.sum())

    def saddle(self, *, call: bool) -> float:
        """The tilt at which e^(S K(z) - z) / z^2, the transform of the payoff with strike 1, is smallest."""
        sign = 1.0 if call else -1.0

        def slope(log_tilt: float) -> float:
            tilt = sign * math.exp(log_tilt)
            return self.copies * float(self.tilted(tilt) @ self.x) - 1.0 - 2 / tilt

        low, high = -3.0, 3.0
        while sign * slope(low) > 0:
            low -= 3.0
        while sign * slope(high) < 0:
            high += 3.0
        return sign * math.exp(float(brentq(slope, low, high, rtol=1e-3)))

    def window(self, tilt: float) -> tuple[tuple[float, float], float, float]:
        """Where the tilted sum is but for about e^-30, and the shifts that show it, downward and upward."""
        weight = self.tilted(tilt)
        deviation = math.sqrt(self.copies * float(weight @ (self.x - weight @ self.x) ** 2))
        shifts = np.geomspace(0.1, 100.0, 31) / deviation
        log_mgf = self.log_mgf(np.asarray([tilt]))[0]
        highs = (self.copies * (self.log_mgf(tilt + shifts) - log_mgf) + _TAIL) / shifts
        lows = -(self.copies * (self.log_mgf(tilt - shifts) - log_mgf) + _TAIL) / shifts
        down, up = int(lows.argmax()), int(highs.argmin())
        return (max(0.0, float(lows[down])), float(highs[up])), float(shifts[down]), float(shifts[up])


def make_plan(
    variable: LogNormal, *, copies: int, epsilon: float, top: float, call: bool, accuracy: float
) -> Plan:
    """Tilt, range, window and spacing for strikes around 1 and up to `top`.

    `variable` is in units of the strike S e^epsilon. The spacing is such that the bounds are about `accuracy`
    from the truth in epsilon (relative to min(1, epsilon), where the lattice may be that fine).
    """
    coarse, tilt = _capped(variable, copies, top) if call else _uncapped(variable, copies, top)
    weight, x = coarse.tilted(tilt), coarse.x
    negligible = math.exp(-_NEGLIGIBLE) / copies
    low = float(x[max(0, int(np.argmax(np.cumsum(weight) > negligible)) - 1)])
    cap = float(x[-1])
    if not call:  # a step so large pays nothing
        cap = float(x[np.flatnonzero(np.cumsum(weight[::-1])[::-1] > negligible)[-1]])
    window, chernoff_down, chernoff_up = coarse.window(tilt)
    length = window[1] - window[0]

    strength = abs(tilt)
    allowed = accuracy * min(strength, strength * abs(epsilon) + 1)

    def excess(spacing: float) -> float:
        added = np.where(x < spacing, x * (spacing - x), spacing**2 / 6)
        return 0.5 * tilt**2 * copies * float(weight @ added)

    finest = max(length, cap - low) / _MAX_SIZE
    spacing = max(min(length / 512, 0.3 / strength, cap / 8), finest)
    while spacing > finest and excess(spacing) > allowed:
        spacing = max(0.9 * spacing, finest)
    return Plan(
        tilt=tilt,
        low=low,
        cap=cap,
        window=window,
        spacing=spacing,
        size=int(next_fast_len(math.ceil(length / spacing) + 2, real=True)),
        chernoff_up=chernoff_up,
        chernoff_down=chernoff_down,
    )


def _uncapped(variable: LogNormal, copies: int, top: float) -> tuple[CappedSum, float]:
    coarse = CappedSum(variable, top, copies)
    return coarse, coarse.saddle(call=False)


def _capped(variable: LogNormal, copies: int, top: float) -> tuple[CappedSum, float]:
    """The smallest cap whose closed-form remainder does not blur the result, and the tilt for it.

    `_exact_cap` never does. A smaller one serves when the sum gets to the strike by many small steps: the
    capped call R(cap) grows with the cap, the remainder J(cap) falls, and where they cross the result is
    about as large; the cap is taken where J is e^-16 of that.
    """
    high = math.log(_exact_cap(variable, copies, top))

    def estimate(log_cap: float) -> tuple[CappedSum, float, float]:
        coarse = CappedSum(variable, math.exp(log_cap), copies)
        tilt = coarse.saddle(call=True)
        log_mgf = float(coarse.log_mgf(np.asarray([tilt]))[0])
        return coarse, tilt, copies * log_mgf - tilt - 2 * math.log(tilt) - 1

    def remainder(log_cap: float) -> float:
        return math.log(copies) + variable.log_call(math.exp(log_cap))

    coarse, tilt, result = estimate(high)
    if remainder(high) > result - _JUMP:
        return coarse, tilt
    low, above = min(0.4, 0.5 * variable.tau) - math.log(copies), high
    for _ in range(12):
        middle = 0.5 * (low + above)
        result = estimate(middle)[2]
        low, above = (middle, above) if remainder(middle) > result else (low, middle)
    target = result - _JUMP
    if remainder(high) > target:
        return coarse, tilt
    low, above = above, high
    while above - low > 1e-3 * (1e-3 + variable.tau):
        middle = 0.5 * (low + above)
        low, above = (middle, above) if remainder(middle) > target else (low, middle)
    coarse, tilt, _ = estimate(above)
    return coarse, tilt


def _exact_cap(variable: LogNormal, copies: int, top: float) -> float:
    """A cap that, with the other steps at the low end of what they add up to, reaches the highest strike."""
    mean, second = capped_moments(variable, top)
    rest = (copies - 1) * mean - math.sqrt(2 * _TAIL * (copies - 1) * second)
    return max(top - max(rest, 0.0), math.exp(min(0.7, 12 * variable.tau)) / copies)


def log_put_estimate(*, sigma: float, copies: int, epsilon: float) -> float:
    """About log of a Chernoff bound on E[(e^eps - M)_+]: to decide whether the put is worth computing."""
    variable = LogNormal.step(sigma=sigma, log_unit=math.log(copies) + epsilon)
    if -math.log(copies) - variable.mu < -FAR * variable.tau:
        return -math.inf
    coarse, tilt = _uncapped(variable, copies, 1.0)
    log_mgf = float(coarse.log_mgf(np.asarray([tilt]))[0])
    return epsilon + copies * log_mgf - tilt - 1 - math.log(-tilt)
