"""From delta curves to sigma, epsilon and delta: the searches that all samplers share."""

import math
from collections.abc import Callable

from scipy.optimize import brentq, minimize_scalar

from truebatch.accounting.bounds import DeltaCurve, Direction
from truebatch.errors import CalibrationFailed

SIGMA_RANGE = (1e-2, 1e6)
EPSILON_RANGE = (0.0, 1e4)
_REL_TOLERANCE = 1e-10
_FLOOR = -1e7  # log(delta) below which curves are only compared


def tightest(
    curves: tuple[DeltaCurve, ...],
    *,
    upward: bool,
    solve: Callable[[DeltaCurve], float],
    improves: Callable[[DeltaCurve, float], bool],
) -> tuple[float, str] | None:
    """The best of the bounds on one side, and its source; None where there is none.

    `improves(curve, best)` says with one evaluation whether solving for a curve can better what is there.
    """
    side = Direction.UPPER if upward else Direction.LOWER
    best: tuple[float, str] | None = None
    failure: CalibrationFailed | None = None
    for curve in curves:
        if curve.direction in (side, Direction.EXACT) and (best is None or improves(curve, best[0])):
            try:
                value = solve(curve)
            except CalibrationFailed as error:  # another bound may still be met
                failure = error
                continue
            if best is None or (value < best[0] if upward else value > best[0]):
                best = (value, curve.source)
    if best is None and failure is not None:
        raise failure
    return best


def solve_sigma(curve: DeltaCurve, *, epsilon: float, log_delta: float, upward: bool, guess: float) -> float:
    """The sigma at which the curve, rounded outward, meets delta.

    Upward: a sigma that suffices. Downward: a sigma that is at least needed. The end of the bracket that
    keeps the promise is returned.
    """

    def excess(log_sigma: float) -> float:
        return max(curve.rounded(math.exp(log_sigma), epsilon, upward=upward), _FLOOR) - log_delta

    low, high = (math.log(x) for x in SIGMA_RANGE)
    a, b = _bracket(excess, math.log(guess), low, high, 0.2)
    if a is None:  # even the least noise of the range is enough
        return 0.0 if not upward else SIGMA_RANGE[0]
    if b is None:
        if not upward:
            return math.inf
        most = SIGMA_RANGE[1]
        reached = math.exp(excess(high) + log_delta)
        raise CalibrationFailed(
            f"no sigma in [{SIGMA_RANGE[0]:g}, {most:g}] gives epsilon={epsilon:g} at "
            f"delta={math.exp(log_delta):g} ({curve.source}); at sigma={most:g} delta is {reached:.3g}.",
            hint="ask for a larger epsilon or delta, or for fewer steps.",
        )
    return math.exp(_end(excess, a, b, _REL_TOLERANCE, upward))


def solve_epsilon(curve: DeltaCurve, *, sigma: float, log_delta: float, upward: bool) -> float:
    """The epsilon >= 0 at which the curve, rounded outward, meets delta; infinity when none within range.

    The smallest one where, as with a deviation, the curve falls below delta and rises again.
    """

    def excess(epsilon: float) -> float:
        return max(curve.rounded(sigma, epsilon, upward=upward), _FLOOR) - log_delta

    low, high = EPSILON_RANGE
    at_a = excess(low)
    if at_a <= 0:
        return 0.0
    before, a, b = low, low, 1.0
    while (at_b := excess(b)) > 0:
        if upward and at_b > at_a:
            # What a deviation adds to delta grows with epsilon: the curve has a least value, passed by now.
            b = float(minimize_scalar(excess, bounds=(before, b), method="bounded").x)
            if excess(b) > 0:
                return math.inf
            a = a if a < b else before
            break
        if b >= high:
            return math.inf if upward else b
        before, a, b, at_a = a, b, min(4 * b, high), at_b
    return _end(excess, a, b, _REL_TOLERANCE * b, upward)


def _bracket(
    excess: Callable[[float], float], guess: float, low: float, high: float, step: float
) -> tuple[float | None, float | None]:
    """a and b around the root of a decreasing function, walking outward from the guess."""
    a = b = min(max(guess, low), high)
    if excess(a) > 0:
        while True:
            if b >= high:
                return high, None
            a, b = b, min(b + step, high)
            if excess(b) <= 0:
                return a, b
            step *= 2
    while True:
        if a <= low:
            return None, low
        a, b = max(a - step, low), a
        if excess(a) > 0:
            return a, b
        step *= 2


def _end(excess: Callable[[float], float], a: float, b: float, tolerance: float, upward: bool) -> float:
    """The end of a bracket of this width around the root: where the excess is <= 0 (upward) or >= 0.

    That may be where one of the two began: the root finder returns the other, whose excess is on the wrong
    side, when it is within its tolerance.
    """
    root = float(brentq(excess, a, b, xtol=tolerance / 4, rtol=8.9e-16))
    keeps = b if upward else a
    step = 0.0
    while True:
        candidate = min(root + step, b) if upward else max(root - step, a)
        value = excess(candidate)
        if (value <= 0 if upward else value >= 0) or candidate == keeps:
            return candidate
        step = 2 * step + tolerance / 2
