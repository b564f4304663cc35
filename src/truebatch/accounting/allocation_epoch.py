"""E[(sum_s X_s - k)_+] and E[(k - sum_s X_s)_+] for S independent lognormal X_s, from above and from below.

X is put on a lattice (`allocation_lattice`) and its S-fold convolution taken by one FFT after weighting by
e^(tilt x). The tilt moves the sum to where the payoff is, so the FFT's rounding noise is relative to the
result and not to 1. A lognormal has no exponential moments, so it is capped, and the one big jump that the
cap cuts off comes back in closed form. With m = sum_s min(X_s, cap), C(cap) = E[(X - cap)_+],

    E[(m - k)_+] + S C(cap) P(m' >= k - cap)  <=  E[(sum_s X_s - k)_+]  <=  E[(m - k)_+] + S C(cap),

where m' is m without one of its terms: a convex function of m grows by at least the sum of what each excess
alone adds, and by at most the sum of the excesses. What a window of finite length folds over is bounded by
Chernoff, and the rounding of FFTs by norms; both are added to upper bounds and taken off lower bounds.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.fft import irfft, rfft
from scipy.special import log_ndtr

from truebatch.accounting.allocation_lattice import LatticeVariable, lattice_lower, lattice_upper
from truebatch.accounting.allocation_plan import FAR, Plan, make_plan
from truebatch.accounting.lognormal import Array, LogNormal, as_array, capped_moments

# One FFT of length 2^m has an error of at most m times this, relative to the sum of its input's moduli
# (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., Theorem 24.2; 4 units in the last place
# for a radix-2 stage, doubled for the mixed radices in use).
_FFT_STAGE = 8 * 2.0**-53
_HOPELESS = 20.0  # nats of tilt within a cell, which no FFT within reach resolves: nothing is said


@dataclass(frozen=True, kw_only=True)
class Tail:
    """Logarithms of certified lower and upper values, one pair for each strike."""

    log_low: Array
    log_high: Array


@dataclass(frozen=True, kw_only=True)
class TiltedSum:
    """The sum of `copies` independent lattice variables, tilted, on a window of the lattice."""

    step: LatticeVariable
    copies: int
    plan: Plan

    @cached_property
    def _first(self) -> int:
        """Index of the window's first point."""
        return math.ceil((self.plan.window[0] - self.copies * self.step.start) / self.step.spacing)

    @property
    def points(self) -> Array:
        """The values of the sum in the window."""
        start = self.copies * self.step.start
        return as_array(start + self.step.spacing * np.arange(self._first, self._first + self.plan.size))

    @cached_property
    def _mass_and_noise(self) -> tuple[Array, float]:
        """The tilted distribution folded onto the window, and a bound on the error of each of its values.

        The heaviest atom is taken out of the FFT: with one at 0 that carries nearly all the weight, the
        transform is 1 + f with f small, and its S-th power would otherwise raise the rounding of 1.
        """
        step, size = self.step, self.plan.size
        heaviest = int(step.weight.argmax())
        pivot = int(step.index[heaviest])
        rest = step.weight.copy()
        rest[heaviest] = 0.0
        folded = np.bincount((step.index - pivot) % size, weights=rest, minlength=size)
        moved = float(rest.sum())
        f = rfft(folded) - moved
        log_modulus = 0.5 * np.log1p(np.maximum(2 * f.real + f.real**2 + f.imag**2, -1 + 2.0**-50))
        angle = np.arctan2(f.imag, 1 + f.real)
        modulus = np.exp(np.maximum(self.copies * log_modulus, -745.0))
        stages = math.log2(size) + 1
        error_f = _FFT_STAGE * (stages * moved + np.abs(f))
        with np.errstate(over="ignore"):
            error_power = modulus * np.expm1(
                np.minimum(self.copies * (error_f * np.exp(-log_modulus) + 2.0**-50 * np.abs(angle)), 700.0)
            )
        noise = 2 * float(error_power.sum() + _FFT_STAGE * stages * modulus.sum()) / size
        mass = irfft(modulus * np.exp(1j * np.remainder(self.copies * angle, 2 * math.pi)), n=size)
        return np.roll(mass, (self.copies * pivot - self._first) % size), noise

    @cached_property
    def _log_outside(self) -> tuple[float, float]:
        """Chernoff bounds on the tilted probability of being below and above the window."""
        points = self.points
        down, up = self.plan.chernoff_down, self.plan.chernoff_up
        below = self.copies * self.step.log_mgf_change(-down) + down * float(points[0])
        above = self.copies * self.step.log_mgf_change(up) - up * float(points[-1])
        smallest = self.copies * (self.step.start + self.step.spacing * int(self.step.index[0]))
        return -math.inf if points[0] <= smallest else min(below, 0.0), min(above, 0.0)

    @cached_property
    def _dropped(self) -> float:
        """A bound on the tilted mass, relative to that on the lattice, of sums with a term off the lattice.

        (1 + w)^S - 1 <= S w e^(S w), with w what one step drops.
        """
        if self.step.log_dropped == -math.inf:
            return 0.0
        each = math.exp(min(math.log(self.copies) + self.step.log_dropped, 300.0))
        return each * math.exp(min(each, 300.0))

    def calls(self, strikes: Array) -> Tail:
        """log E[(sum - k)_+] for increasing strikes k; the tilt must be positive."""
        return self._tail(strikes, float(strikes[0]), 1.0)

    def puts(self, strikes: Array) -> Tail:
        """log E[(k - sum)_+] for increasing strikes k; the tilt must be negative."""
        return self._tail(strikes, float(strikes[-1]), -1.0)

    def _tail(self, strikes: Array, reference: float, sign: float) -> Tail:
        strength = sign * self.step.tilt
        mass, noise = self._mass_and_noise
        distance = sign * (self.points - reference)
        paying = distance > 0
        distance, mass = distance[paying], mass[paying]
        if sign < 0:
            distance, mass = distance[::-1], mass[::-1]
        damped = mass * np.exp(-strength * distance)
        count = np.append(np.cumsum(damped[::-1])[::-1], 0.0)
        moment = np.append(np.cumsum((damped * distance)[::-1])[::-1], 0.0)
        k = sign * (strikes - reference)
        position = np.searchsorted(distance, k, side="right")
        value = moment[position] - k * count[position]
        highest = np.exp(-strength * k - 1) / strength  # of e^(-strength d) (d - k)_+
        spread = noise * (np.exp(-strength * k) / (strength**2 * self.step.spacing) + highest)
        below, above = (math.exp(v) for v in self._log_outside)
        beyond = (above if sign > 0 else below) + self._dropped
        scale = self.copies * self.step.log_mgf - self.step.tilt * reference
        with np.errstate(divide="ignore"):
            log_low = scale + np.log(np.maximum(value - spread - highest * (below + above), 0.0))
            log_high = scale + np.log(np.maximum(value + spread + highest * beyond, 0.0))
        # e^(-strength d) (d - k)_+ is at most `highest`, so the whole is too: for strikes far from the first.
        log_high = np.maximum(
            log_high, np.where(highest < 1e-300, scale - strength * k - 1 - math.log(strength), -np.inf)
        )
        return Tail(log_low=log_low, log_high=log_high)


def log_calls(
    *, sigma: float, copies: int, epsilons: Array, upper: bool, accuracy: float
) -> tuple[Array, float]:
    """Bounds on log E[(M - e^eps)_+] for increasing eps, M the mean of S steps; and the tilt that was used.

    Tilt and spacing are chosen for the first strike, and the tilt is in its units.
    """
    variable = LogNormal.step(sigma=sigma, log_unit=math.log(copies) + float(epsilons[0]))
    strikes = np.exp(epsilons - epsilons[0])
    top = float(strikes[-1])
    plan = make_plan(
        variable, copies=copies, epsilon=float(epsilons[0]), top=top, call=True, accuracy=accuracy
    )
    if plan.tilt * plan.spacing > _HOPELESS:
        return as_array(np.full(epsilons.size, np.inf if upper else -np.inf)), plan.tilt
    put_on_lattice = lattice_upper if upper else lattice_lower
    step = put_on_lattice(variable, low=plan.low, cap=plan.cap, spacing=plan.spacing, tilt=plan.tilt)
    tail = TiltedSum(step=step, copies=copies, plan=plan).calls(strikes)
    cap = float(step.points[-1])
    jump = math.log(copies) + variable.log_call(cap)
    if upper:
        value = np.logaddexp(tail.log_high, jump)
    else:
        value = np.logaddexp(tail.log_low, jump + _log_rest_reaches(variable, copies, cap, strikes - cap))
    return value + float(epsilons[0]), plan.tilt


def log_puts_upper(*, sigma: float, copies: int, epsilons: Array, accuracy: float) -> Array:
    """Upper bounds on log E[(e^eps - M)_+] for increasing eps, as sharp as can be for the last one.

    A step above every strike pays nothing, and capping it lower can only raise the put.
    """
    last = float(epsilons[-1])
    variable = LogNormal.step(sigma=sigma, log_unit=math.log(copies) + last)
    z = (-math.log(copies) - variable.mu) / variable.tau
    if z < -FAR:  # one step must be below its share of the strike, which none hardly ever is
        return as_array(epsilons + math.log(copies) + log_ndtr(z))
    plan = make_plan(variable, copies=copies, epsilon=last, top=1.0, call=False, accuracy=accuracy)
    step = lattice_upper(variable, low=plan.low, cap=plan.cap, spacing=plan.spacing, tilt=plan.tilt)
    tail = TiltedSum(step=step, copies=copies, plan=plan).puts(np.exp(epsilons - last))
    return tail.log_high + last


def _log_rest_reaches(variable: LogNormal, copies: int, cap: float, level: Array) -> Array:
    """A lower bound on log P(sum of S - 1 capped steps >= level).

    For non-negative terms P(sum <= mean - t) <= e^(-t^2 / (2 sum of second moments)): Maurer (2003), A bound
    on the deviation probability for sums of non-negative random variables, Theorem 1.
    """
    mean, second = capped_moments(variable, cap)
    slack = np.maximum((copies - 1) * mean - level, 0.0)
    # Where the second moments vanish, nothing is known of the sum but that it is not negative.
    spread = np.full_like(slack, 2 * (copies - 1) * second)
    missed = np.exp(-np.divide(slack**2, spread, out=np.zeros_like(slack), where=spread > 0))
    with np.errstate(divide="ignore"):
        return np.where(level <= 0, 0.0, np.log1p(-missed))
