"""Lower bounds on the privacy loss of shuffled batches: section 3 of arXiv 2411.04205, in what it proves.

Both shuffles are at least as revealing as the pairs of Proposition 3.4 and Theorem 3.7 on one chosen pair of
neighbouring data sets, so every test of those pairs bounds delta from below. Nothing here is an upper bound:
the exact delta of (D), or an amplification bound, is what a mechanism may claim.
"""

import math
from collections.abc import Callable

from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction
from truebatch.accounting.shuffle_hull import log_delta_composed, log_delta_one_epoch
from truebatch.accounting.shuffle_max import MaxStatistic
from truebatch.accounting.shuffle_partition import log_delta_partition
from truebatch.errors import InvalidArgument

# Cutting the maximum into cells moves log delta by up to this as the cells move with sigma and epsilon; the
# values themselves are lower bounds already.
_PARTITION_TOLERANCE = 1e-5
# Likewise as the tests' lattices and levels move: seen up to 7e-4 at 50 epochs, where it is 1e-5 of sigma.
_TESTS_TOLERANCE = 1e-3
# Composing the cells of one epoch takes seconds at 50 epochs and a minute at a million.
_MOST_CHEAP_EPOCHS = 100


def log_delta_max_event(
    *,
    sigma: float,
    epsilon: float,
    steps_per_epoch: int,
    num_epochs: int,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> float:
    """Log of persistent shuffle's delta, from the best event {max_t w_t > C} or {max_t w_t <= C}.

    Theorem 3.5. With s = sigma / sqrt(E) and G_C = {max_t w_t > C},

        delta >= max over C of  P(G_C) - e^eps Q(G_C)  and of  Q(not G_C) - e^eps P(not G_C),
        P(G_C) = 1 - Phi((C-2)/s) Phi(C/s)^(S-1),    Q(G_C) = 1 - Phi((C-1)/s) Phi(C/s)^(S-1).

    Direction: lower. Under replace-one adjacency Q(G_C) = 1 - Phi(C/s)^S.

    Guarantees:
      - No event of the maximum alone does better: its density ratio is monotone (shuffle_max.py).
      - Meets the exact delta of (D) when S = 1.
      - Relative error in delta at most 1e-9, down to delta = 1e-300 and below.

    Departure: Theorem 3.5 as printed has no factor e^eps in front of Q; Proposition 3.4 needs it, so we keep
    it. Without it, at epsilon=5, sigma=0.6, E=1, S=1000 the "lower" bound is 0.318, above the exact 0.0057 of
    (D).

    >>> log_delta = log_delta_max_event(sigma=0.823258, epsilon=5.0, steps_per_epoch=35813, num_epochs=1)
    >>> f"{math.exp(log_delta):.3e}"
    '2.700e-08'
    """
    scale = sigma / math.sqrt(num_epochs)
    stat = MaxStatistic(steps_per_epoch=steps_per_epoch, scale=scale, adjacency=adjacency)
    return stat.log_delta(epsilon)


def log_delta_dynamic_partition(
    *,
    sigma: float,
    epsilon: float,
    steps_per_epoch: int,
    num_epochs: int,
    adjacency: Adjacency = Adjacency.ZERO_OUT,
) -> float:
    """Log of dynamic shuffle's delta, from E independent epochs of the maximum cut into cells.

    Theorem 3.7, both directions of adjacency, every rounding downward. Direction: lower.

    Guarantees:
      - Equals persistent shuffle's bound when E = 1, and the exact delta of (D) when S = 1.
      - At least the one-epoch bound for every E: later epochs may be ignored.
      - A sigma calibrated from it is within 1e-5 (relative) of the one for the uncut maximum.
    No guarantee: that it is tight, or even monotone, where delta is below about 1e-400.
    """
    if steps_per_epoch == 1 or num_epochs == 1:
        return log_delta_max_event(
            sigma=sigma,
            epsilon=epsilon,
            steps_per_epoch=steps_per_epoch,
            num_epochs=num_epochs,
            adjacency=adjacency,
        )
    stat = MaxStatistic(steps_per_epoch=steps_per_epoch, scale=sigma, adjacency=adjacency)
    one_epoch = stat.log_delta(epsilon)
    return max(one_epoch, log_delta_partition(stat, copies=num_epochs, epsilon=epsilon))


def persistent_shuffle_lower_curves(
    *, steps_per_epoch: int, num_epochs: int, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[DeltaCurve, ...]:
    """Curves proven against persistent shuffle, cheapest first. Zero-out or replace-one adjacency."""
    _check(steps_per_epoch, num_epochs, adjacency)

    def max_event(sigma: float, epsilon: float) -> float:
        return log_delta_max_event(
            sigma=sigma,
            epsilon=epsilon,
            steps_per_epoch=steps_per_epoch,
            num_epochs=num_epochs,
            adjacency=adjacency,
        )

    cheap = _lower(max_event, "max event of the shuffle pair (Theorem 3.5 with its e^epsilon)", 1e-9)
    if steps_per_epoch == 1:  # already exact
        return (cheap,)

    def by_tests(sigma: float, epsilon: float) -> float:
        scale = sigma / math.sqrt(num_epochs)
        stat = MaxStatistic(steps_per_epoch=steps_per_epoch, scale=scale, adjacency=adjacency)
        return log_delta_one_epoch(stat, epsilon)

    return (cheap, _lower(by_tests, "certified tests of the shuffle pair", _TESTS_TOLERANCE, dear=True))


def dynamic_shuffle_lower_curves(
    *, steps_per_epoch: int, num_epochs: int, adjacency: Adjacency = Adjacency.ZERO_OUT
) -> tuple[DeltaCurve, ...]:
    """Curves proven against dynamic shuffle, cheapest first. Zero-out or replace-one adjacency."""
    _check(steps_per_epoch, num_epochs, adjacency)
    if steps_per_epoch == 1 or num_epochs == 1:
        return persistent_shuffle_lower_curves(
            steps_per_epoch=steps_per_epoch, num_epochs=num_epochs, adjacency=adjacency
        )

    def by_partition(sigma: float, epsilon: float) -> float:
        return log_delta_dynamic_partition(
            sigma=sigma,
            epsilon=epsilon,
            steps_per_epoch=steps_per_epoch,
            num_epochs=num_epochs,
            adjacency=adjacency,
        )

    source = "partition of each epoch's maximum, composed downward (Theorem 3.7)"
    many = num_epochs > _MOST_CHEAP_EPOCHS
    cheap: tuple[DeltaCurve, ...] = (_lower(by_partition, source, _PARTITION_TOLERANCE, dear=many),)
    if many:
        # One epoch leaks no more than all of them: a bound at once, until the others are asked for.
        alone = persistent_shuffle_lower_curves(
            steps_per_epoch=steps_per_epoch, num_epochs=1, adjacency=adjacency
        )
        cheap = (alone[0], *cheap)

    def by_tests(sigma: float, epsilon: float) -> float:
        stat = MaxStatistic(steps_per_epoch=steps_per_epoch, scale=sigma, adjacency=adjacency)
        composed = log_delta_composed(stat, copies=num_epochs, epsilon=epsilon)
        return max(by_partition(sigma, epsilon), composed)

    source = "certified tests of the shuffle pair, their hull composed downward"
    return (*cheap, _lower(by_tests, source, _TESTS_TOLERANCE, dear=True))


def _lower(
    log_delta: Callable[[float, float], float], source: str, tolerance: float, *, dear: bool = False
) -> DeltaCurve:
    return DeltaCurve(
        log_delta=log_delta, direction=Direction.LOWER, source=source, tolerance=tolerance, dear=dear
    )


def _check(steps_per_epoch: int, num_epochs: int, adjacency: Adjacency) -> None:
    for name, value in (("steps_per_epoch", steps_per_epoch), ("num_epochs", num_epochs)):
        if value < 1:
            raise InvalidArgument(f"{name} must be at least 1; got {name}={value}.")
    MaxStatistic(steps_per_epoch=1, scale=1.0, adjacency=adjacency)  # raises where no analysis is known
