"""Faults of the accountant: numbers that are below what can be proved against the mechanism."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr
from scipy.stats import norm

from truebatch import accounting
from truebatch.accounting import Adjacency, catalogue
from truebatch.accounting.bounds import DeltaCurve, Direction
from truebatch.accounting.deterministic import deterministic_curves, log_delta_gaussian
from truebatch.accounting.fixed_size import fixed_size_curves
from truebatch.accounting.poisson import poisson_curves, step_models
from truebatch.accounting.solve import solve_sigma
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
)
from trust.fault import Check, Fault, replaced

_CATALOGUE = "truebatch.accounting.catalogue"
PLACES = {
    "deterministic": f"{_CATALOGUE}:deterministic_curves",
    "poisson": f"{_CATALOGUE}:poisson_curves",
    "fixed_size": f"{_CATALOGUE}:fixed_size_curves",
    "truncated": f"{_CATALOGUE}:truncated_poisson_curves",
    "shuffle": f"{_CATALOGUE}:_shuffle_curves",
    "pairs": "truebatch.accounting.poisson:step_models",
    "max_event": "truebatch.accounting.shuffle:log_delta_max_event",
    "rounded": "truebatch.accounting.bounds:DeltaCurve.rounded",
    "solve_sigma": "truebatch.accounting.calibrate:solve_sigma",
}


def breaks(**places: Any) -> Callable[[], AbstractContextManager[None]]:
    """An injection: each of `PLACES` by its short name."""
    return partial(replaced, {PLACES[name]: new for name, new in places.items()})


# ---- Deterministic batches are one Gaussian mechanism, known to any number of digits ----

EPOCHS = Deterministic(num_examples=1000, batch_size=100, num_steps=40)
SENSITIVITY = {Adjacency.ZERO_OUT: 1, Adjacency.REPLACE_ONE: 2}


def gaussian_delta(*, sigma: float, epsilon: float, sensitivity: int) -> Any:
    """Balle and Wang (2018), Theorem 8, with fifty digits."""
    mean = sensitivity * mp.sqrt(EPOCHS.whole_epochs) / mp.mpf(sigma)
    shift = mp.mpf(epsilon) / mean
    return mp.ncdf(mean / 2 - shift) - mp.exp(epsilon) * mp.ncdf(-mean / 2 - shift)


def claims_of_deterministic_batches_hold() -> None:
    """Delta at the epsilon that is claimed, and at the sigma that is said to suffice, is not above delta."""
    with mp.workdps(50):
        for (adjacency, by), delta in ((pair, d) for pair in SENSITIVITY.items() for d in (1e-5, 2.7e-8)):
            for sigma in (0.8, 1.7, 6.0):
                found = accounting.epsilon(EPOCHS, sigma=sigma, delta=delta, adjacency=adjacency).upper
                reached = gaussian_delta(sigma=sigma, epsilon=found.value, sensitivity=by)
                _require_at_most(reached, delta, f"epsilon at sigma={sigma} under {adjacency}")
            for epsilon in (0.5, 5.0):
                found = accounting.sigma(EPOCHS, epsilon=epsilon, delta=delta, adjacency=adjacency).upper
                reached = gaussian_delta(sigma=found.value, epsilon=epsilon, sensitivity=by)
                _require_at_most(reached, delta, f"sigma for epsilon={epsilon} under {adjacency}")


def _require_at_most(reached: Any, delta: float, what: str) -> None:
    excess = float(reached / mp.mpf(delta) - 1)
    assert excess <= 0, f"{what} gives more than delta={delta:g}, by {excess:.2g} of it"


def replaced_as_if_zeroed(*, adjacency: Adjacency, **values: Any) -> tuple[DeltaCurve, ...]:
    return deterministic_curves(adjacency=Adjacency.ZERO_OUT, **values)


_ROUNDED = DeltaCurve.rounded


def rounded_inward(self: DeltaCurve, sigma: float, epsilon: float, *, upward: bool) -> float:
    return _ROUNDED(self, sigma, epsilon, upward=not upward)


def lower_end_of_sigma(curve: DeltaCurve, *, upward: bool, **values: Any) -> float:
    return solve_sigma(curve, upward=False, **values)


# ---- Poisson, held against an accountant that others made ----

# With noise, epsilon, and the step of the discretization. The first has 10/3 steps an epoch.
POISSON = (
    (Poisson(num_examples=1000, batch_size=300, num_steps=30), 3.0, 1.0, 1e-4),
    (Poisson(num_examples=1000, batch_size=10, num_steps=500), 1.0, 1.0, 1e-4),
    (Poisson(num_examples=10, batch_size=9, num_steps=3), 0.5, 0.2, 1e-3),
)
RELATIONS = {
    Adjacency.ZERO_OUT: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


def claims_of_poisson_are_not_below_another_accountants() -> None:
    """Its discretization is told to round down, so that what it says is below the truth."""
    for (spec, sigma, epsilon, interval), adjacency in ((case, a) for case in POISSON for a in RELATIONS):
        step = pld.from_gaussian_mechanism(
            sigma,
            pessimistic_estimate=False,
            use_connect_dots=False,
            value_discretization_interval=interval,
            sampling_prob=spec.sampling_prob,
            neighboring_relation=RELATIONS[adjacency],
        )
        theirs = float(step.self_compose(spec.num_steps).get_delta_for_epsilon(epsilon))
        ours = accounting.delta(spec, sigma=sigma, epsilon=epsilon, adjacency=adjacency).upper.value
        assert ours >= theirs, f"delta of {spec} under {adjacency} is {ours:.4g}, and at least {theirs:.4g}"


def zeroed_where_replaced(*, adjacency: Adjacency, **values: Any) -> Any:
    return step_models(adjacency=Adjacency.ZERO_OUT, **values)


def one_direction(**values: Any) -> Any:
    return step_models(**values)[-1:]


def central_limit(*, sampling_prob: float, num_steps: int, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    def log_delta(sigma: float, epsilon: float) -> float:
        mean = sampling_prob * math.sqrt(num_steps * math.expm1(sigma**-2))
        return log_delta_gaussian(sigma=1 / (SENSITIVITY[adjacency] * mean), epsilon=epsilon)

    return (DeltaCurve(log_delta=log_delta, direction=Direction.EXACT, source="central limit"),)


def int_steps(*, sampling_prob: float, num_steps: int, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    T = int(num_steps * sampling_prob) * int(1 / sampling_prob)
    return poisson_curves(sampling_prob=sampling_prob, num_steps=max(1, T), adjacency=adjacency)


# ---- A cut, against one data set that can be written down ----

TINY = TruncatedPoisson(num_examples=2, batch_size=1, num_steps=1, max_batch_size=1)
SIGMA = 1.0
# The other row's gradient is -1. Where both are drawn, one stays: means of the sum, and how likely they are,
# for an example whose gradient is 1 and for one whose gradient is 0.
_WITH, _WITHOUT = {0: 0.25, 1: 0.375, -1: 0.375}, {0: 0.625, -1: 0.375}


def claims_of_cut_batches_hold_for_two_rows() -> None:
    """Delta of one step of two rows, by adding up densities, is not above what is claimed."""
    x, width = np.linspace(-12, 14, 2_000_001, retstep=True)
    p, q = (sum(w * norm.pdf(x, at, SIGMA) for at, w in side.items()) for side in (_WITH, _WITHOUT))
    for epsilon in (0.5, 2.0, 4.0, 6.0):
        truth = max(
            float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * width) for a, b in ((p, q), (q, p))
        )
        claimed = accounting.delta(TINY, sigma=SIGMA, epsilon=epsilon).upper.value
        assert claimed >= truth * (1 - 1e-6), (
            f"delta is {claimed:.4g} at epsilon={epsilon}, and in truth {truth:.4g}"
        )


def as_if_nothing_were_cut(
    *, num_examples: int, batch_size: int, max_batch_size: int, num_steps: int, adjacency: Adjacency
) -> tuple[DeltaCurve, ...]:
    return poisson_curves(sampling_prob=batch_size / num_examples, num_steps=num_steps, adjacency=adjacency)


# ---- What can be proved is below what is claimed, for every sampler ----

COMMON = {"num_examples": 10_000, "batch_size": 100, "num_steps": 200}
SAMPLERS: tuple[Sampler, ...] = (
    *(kind(**COMMON) for kind in (Deterministic, PersistentShuffle, DynamicShuffle, BallsAndBins)),
    *(kind(**COMMON) for kind in (Poisson, FixedSizeSampling)),
    TruncatedPoisson(**COMMON, max_batch_size=130),
)


def nothing_is_proved_above_what_is_claimed() -> None:
    for spec in SAMPLERS:
        for sigma, epsilon in ((0.6, 5.0), (0.8, 3.0)):
            ends = accounting.delta(spec, sigma=sigma, epsilon=epsilon)
            lower, upper = ends.lower.value or 0.0, 1.0 if ends.upper.value is None else ends.upper.value
            said = f"delta of {spec.name} at sigma={sigma}, epsilon={epsilon}"
            assert lower <= upper, f"{said} is claimed to be {upper:.4g}, and proved to be {lower:.4g}"


def fixed_size_as_poisson(**values: Any) -> tuple[DeltaCurve, ...]:
    poisson = (curve for curve in poisson_curves(**values) if curve.direction is Direction.UPPER)
    own = (curve for curve in fixed_size_curves(**values) if curve.direction is Direction.LOWER)
    return (*poisson, *own)


_SHUFFLE = catalogue._shuffle_curves


def shuffle_as_poisson(spec: Sampler, adjacency: Adjacency) -> tuple[DeltaCurve, ...]:
    poisson = poisson_curves(sampling_prob=spec.sampling_prob, num_steps=spec.num_steps, adjacency=adjacency)
    return (*_SHUFFLE(spec, adjacency), *(curve for curve in poisson if curve.direction is Direction.UPPER))


def theorem_as_printed(
    *, sigma: float, epsilon: float, steps_per_epoch: int, num_epochs: int, adjacency: Adjacency
) -> float:
    """Theorem 3.5 in print: the probability of an event under P less that under Q, without e^epsilon."""
    s, S = sigma / math.sqrt(num_epochs), steps_per_epoch
    C = np.linspace(0, 2 + 8 * s, 10_000)
    others = ndtr(C / s) ** (S - 1)
    return math.log(float((others * (ndtr((C - 1) / s) - ndtr((C - 2) / s))).max()))


# ---- The faults ----

_CLOSED = Check(
    name="claims for deterministic batches hold in the closed form, with fifty digits",
    run=claims_of_deterministic_batches_hold,
)
_INDEPENDENT = Check(
    name="claims for Poisson are not below dp_accounting's, rounded down",
    run=claims_of_poisson_are_not_below_another_accountants,
)
_TWO_ROWS = Check(
    name="claims for cut batches hold for two rows, whose law can be written down",
    run=claims_of_cut_batches_hold_for_two_rows,
)
_ORDER = Check(
    name="nothing is proved above what is claimed, for every sampler",
    run=nothing_is_proved_above_what_is_claimed,
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        number=4,
        name="the accountant composes int(1/q) steps an epoch",
        how="T is computed again from q, as int(1/q) E: with q = 0.3, 27 steps are accounted of 30 that "
        "are taken.",
        inject=breaks(poisson=int_steps),
        check=_INDEPENDENT,
    ),
    Fault(
        number=5,
        name="replacement at half its sensitivity",
        how="Replacing an example moves a sum by up to 2C, and is accounted as moving it by C, as with a "
        "noise multiplier that is meant for one row's norm.",
        inject=breaks(deterministic=replaced_as_if_zeroed),
        check=_CLOSED,
    ),
    Fault(
        number=5,
        name="replacement by the pair of zeroing out",
        how="Poisson steps under replace-one are composed from the pair of zero-out.",
        inject=breaks(pairs=zeroed_where_replaced),
        check=_INDEPENDENT,
    ),
    Fault(
        number=5,
        name="one direction of adjacency",
        how="Only the divergence of one of two neighbours from the other is composed, and not its reverse.",
        inject=breaks(pairs=one_direction),
        check=_INDEPENDENT,
    ),
    Fault(
        number=5,
        name="a limit is taken for a bound",
        how="The composition is replaced by the Gaussian of the central limit theorem, as an accountant by "
        "Gaussian differential privacy does.",
        inject=breaks(poisson=central_limit),
        check=_INDEPENDENT,
    ),
    Fault(
        number=5,
        name="fixed-size batches by Poisson's pair",
        how="Sampling b rows without replacement is composed as Poisson subsampling with q = b/n.",
        inject=breaks(fixed_size=fixed_size_as_poisson),
        check=_ORDER,
    ),
    Fault(
        number=5,
        name="a cut is not accounted",
        how="Truncated Poisson is given the curve of Poisson, whatever its cap.",
        inject=breaks(truncated=as_if_nothing_were_cut),
        check=_TWO_ROWS,
    ),
    Fault(
        number=5,
        name="a lower bound that is none",
        how="Theorem 3.5 is evaluated as printed, without e^epsilon before Q.",
        inject=breaks(max_event=theorem_as_printed),
        check=_ORDER,
    ),
    Fault(
        number=5,
        name="bounds are rounded inward",
        how="The tolerance of the numerical method is taken off an upper bound, where it must be added: a "
        "part in 10^11 of delta.",
        inject=breaks(rounded=rounded_inward),
        check=_CLOSED,
    ),
    Fault(
        number=5,
        name="noise from the wrong end of the bracket",
        how="Calibration returns the sigma that is at least needed in place of the one that suffices.",
        inject=breaks(solve_sigma=lower_end_of_sigma),
        check=_CLOSED,
    ),
    Fault(
        number=6,
        name="the accountant gives a shuffle Poisson's epsilon",
        how="Poisson's curve is listed as an upper bound for both shuffles.",
        inject=breaks(shuffle=shuffle_as_poisson),
        check=_ORDER,
    ),
)
