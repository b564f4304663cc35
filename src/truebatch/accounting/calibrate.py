"""The three questions of the accountant: sigma, epsilon and delta, each as an interval of bounds."""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from truebatch.accounting.bounds import Adjacency, Bound, DeltaCurve, Direction, Interval, Number
from truebatch.accounting.catalogue import known_curves
from truebatch.accounting.deviation import with_deviation
from truebatch.accounting.solve import EPSILON_RANGE, SIGMA_RANGE, solve_epsilon, solve_sigma, tightest
from truebatch.errors import InvalidArgument
from truebatch.specs import Sampler

Values = float | npt.ArrayLike
_TINY = 5e-324  # the smallest float: an upper bound never rounds to 0


def sigma(
    spec: Sampler,
    *,
    epsilon: Values,
    delta: Values,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    statistical_distance: float = 0.0,
    dear: bool = False,
) -> Interval:
    """The noise multiplier that suffices for (epsilon, delta), and the one that is at least needed.

    `upper` may be used for training; below `lower`, (epsilon, delta) is provably not met. Arrays of
    epsilons or deltas give arrays. `dear=True` adds the bounds that take longer than about a second;
    `statistical_distance` is that of the schedule that draws the batches from the ideal sampler.

    >>> from truebatch import Poisson
    >>> spec = Poisson(num_examples=36672494, batch_size=65536, num_steps=560)
    >>> ends = sigma(spec, epsilon=5.0, delta=2.7e-8)
    >>> f"{ends.lower.value:.6f} {ends.upper.value:.6f}"
    '0.547116 0.547116'
    """
    relation = _adjacency(adjacency)
    curves = with_deviation(known_curves(spec=spec, adjacency=relation, dear=dear), statistical_distance)

    def one(eps: float, dlt: float) -> "_Ends":
        _require_epsilon(eps)
        _require_delta(dlt)
        log_delta = math.log(dlt)
        guess = max(1.0, math.sqrt(-2 * log_delta)) * math.sqrt(max(1.0, spec.num_epochs)) / max(eps, 0.1) / 2

        def solve(curve: DeltaCurve, upward: bool) -> float:
            start = found[0] if found else guess
            value = solve_sigma(curve, epsilon=eps, log_delta=log_delta, upward=upward, guess=start)
            found[:] = [value] if 0 < value < math.inf else found
            return value

        def excess(curve: DeltaCurve, best: float, upward: bool) -> float:
            return curve.rounded(best, eps, upward=upward) - log_delta if 0 < best < math.inf else 0.0

        found: list[float] = []
        return (
            tightest(
                curves,
                upward=False,
                solve=lambda c: solve(c, False),
                improves=lambda c, s: excess(c, s, False) > 0,
            ),
            tightest(
                curves,
                upward=True,
                solve=lambda c: solve(c, True),
                improves=lambda c, s: excess(c, s, True) < 0,
            ),
        )

    return _over_grid(one, epsilon, delta, spec=spec, adjacency=relation)


def epsilon(
    spec: Sampler,
    *,
    sigma: Values,
    delta: Values,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    statistical_distance: float = 0.0,
    dear: bool = False,
) -> Interval:
    """The epsilon that may be claimed at delta, and the one that can be proved against.

    >>> from truebatch import Deterministic
    >>> spec = Deterministic(num_examples=1000, batch_size=10, num_steps=100)
    >>> round(epsilon(spec, sigma=1.106383, delta=2.7e-8).upper.value, 4)
    5.0
    """
    relation = _adjacency(adjacency)
    curves = with_deviation(known_curves(spec=spec, adjacency=relation, dear=dear), statistical_distance)

    def one(sgm: float, dlt: float) -> "_Ends":
        _require_sigma(sgm)
        _require_delta(dlt)
        log_delta = math.log(dlt)

        def side(upward: bool) -> "tuple[float, str] | None":
            def improves(curve: DeltaCurve, best: float) -> bool:
                if not math.isfinite(best):
                    return upward
                excess = curve.rounded(sgm, best, upward=upward) - log_delta
                return excess < 0 if upward else excess > 0

            return tightest(
                curves,
                upward=upward,
                solve=lambda c: solve_epsilon(c, sigma=sgm, log_delta=log_delta, upward=upward),
                improves=improves,
            )

        return side(False), side(True)

    return _over_grid(one, sigma, delta, spec=spec, adjacency=relation)


def delta(
    spec: Sampler,
    *,
    sigma: Values,
    epsilon: Values,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    statistical_distance: float = 0.0,
    dear: bool = False,
) -> Interval:
    """The delta that may be claimed at epsilon, and the one that can be proved against.

    >>> from truebatch import Deterministic
    >>> spec = Deterministic(num_examples=1000, batch_size=10, num_steps=400)
    >>> round(delta(spec, sigma=2.0, epsilon=1.0).upper.value, 6)
    0.126937
    """
    relation = _adjacency(adjacency)
    curves = with_deviation(known_curves(spec=spec, adjacency=relation, dear=dear), statistical_distance)

    def one(sgm: float, eps: float) -> "_Ends":
        _require_sigma(sgm)
        _require_epsilon(eps)

        def value(curve: DeltaCurve, upward: bool) -> float:
            log_delta = curve.rounded(sgm, eps, upward=upward)
            return max(math.exp(log_delta), _TINY if upward and log_delta > -math.inf else 0.0)

        def side(upward: bool) -> "tuple[float, str] | None":
            return tightest(curves, upward=upward, solve=lambda c: value(c, upward), improves=lambda *_: True)

        return side(False), side(True)

    return _over_grid(one, sigma, epsilon, spec=spec, adjacency=relation)


_Ends = tuple[tuple[float, str] | None, tuple[float, str] | None]


def _over_grid(
    one: Callable[[float, float], _Ends],
    first: Values,
    second: Values,
    *,
    spec: Sampler,
    adjacency: Adjacency,
) -> Interval:
    """Scalar in, scalar out; arrays are broadcast against each other."""
    a, b = np.broadcast_arrays(_numbers(first), _numbers(second))
    ends = [one(float(x), float(y)) for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]

    def bound(index: int, direction: Direction) -> Bound:
        known = [item for item in (pair[index] for pair in ends) if item is not None]
        if not known:
            why = _why_unknown(spec, adjacency, direction)
            return Bound(value=None, direction=direction, source=why, adjacency=adjacency)
        value: Number = np.array([item[0] for item in known]).reshape(a.shape)
        if a.ndim == 0:
            value = float(value)
        sources = dict.fromkeys(item[1] for item in known)
        return Bound(value=value, direction=direction, source="; ".join(sources), adjacency=adjacency)

    return Interval(lower=bound(0, Direction.LOWER), upper=bound(1, Direction.UPPER))


def _why_unknown(spec: Sampler, adjacency: Adjacency, direction: Direction) -> str:
    curves = known_curves(spec=spec, adjacency=adjacency, dear=True)
    if any(curve.direction == direction for curve in curves):
        return f"the {direction} bound takes longer: ask for it with dear=True (--full)"
    return f"no {direction} bound is known for {type(spec).__name__} under {adjacency} adjacency"


def _numbers(values: Values) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"a number or an array of numbers is needed; got {values!r}.") from error
    if array.size == 0:
        raise InvalidArgument("at least one number is needed; got an empty array.")
    return array


def _adjacency(adjacency: Adjacency | str) -> Adjacency:
    try:
        return Adjacency(adjacency)
    except ValueError as error:
        names = ", ".join(Adjacency)
        raise InvalidArgument(f"adjacency must be one of {names}; got {adjacency!r}.") from error


def _require(holds: bool, rule: str, **values: float) -> None:
    if not holds:
        shown = ", ".join(f"{name}={value}" for name, value in values.items())
        raise InvalidArgument(f"{rule}; got {shown}.")


def _require_delta(value: float) -> None:
    _require(0 < value < 1, "delta must be above 0 and below 1", delta=value)


def _require_sigma(value: float) -> None:
    low, high = SIGMA_RANGE
    _require(low <= value <= high, f"sigma must be from {low:g} to {high:g}", sigma=value)


def _require_epsilon(value: float) -> None:
    low, high = EPSILON_RANGE
    _require(low <= value <= high, f"epsilon must be from {low:g} to {high:g}", epsilon=value)
