"""Fresh uniform subsets of exactly b rows, T of them composed."""

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction
from truebatch.accounting.composition import Nodes, log_divergence
from truebatch.accounting.deterministic import deterministic_curves
from truebatch.accounting.mixtures import Mixture, MixturePair

_AT_ZERO = Mixture(prob=0.0, mean=0.0)


@dataclass(frozen=True, kw_only=True)
class SymmetricPair:
    """The self-dual pair whose divergences at eps >= 0 are those of (U, V), U right of V.

    Its divergence at a = e^eps < 1 is 1 - a + a times that at 1/a. So its loss has U's law where it is
    positive, V's law on the mirrored losses, and the rest of the mass at 0.
    """

    half: MixturePair

    @classmethod
    def of(cls, *, sampling_prob: float, sensitivity: float, sigma: float) -> "SymmetricPair":
        """U = (1-q) N(0, sigma^2) + q N(sensitivity, sigma^2), V = N(0, sigma^2)."""
        u = Mixture(prob=sampling_prob, mean=sensitivity)
        return cls(half=MixturePair(p=u, q=_AT_ZERO, sigma=sigma, begin=sensitivity / 2))

    @property
    def lowest(self) -> float:
        """Losses are unbounded both ways."""
        return -math.inf

    def tail(self, loss: float) -> tuple[float, float]:
        """For positive losses, U's and V's tails."""
        return self.half.tail(loss)

    def loss_at(self, log_prob: float) -> float:
        """A positive loss, where U's law ends."""
        return max(self.half.loss_at(log_prob), 1e-9)

    def capped(self, loss: float) -> "SymmetricPair":
        """Without the outcomes whose loss is above this one.

        Their mirror images are left out with them: those have a smaller mass still, times e^(-tilt cap).
        """
        return dataclasses.replace(self, half=self.half.capped(loss))

    def nodes(self, *, tilt: float, max_frequency: float) -> Nodes:
        """U's nodes where the loss is positive, their mirror images under V, and one node at 0."""
        half = self.half
        right = half.nodes(tilt=tilt, max_frequency=max_frequency)
        sides = (half.p, half.q)
        moved = sum(math.exp(side.log_upper_tail(half.begin, half.sigma)) for side in sides)
        missing = sum(math.exp(side.log_upper_tail(half.end, half.sigma)) for side in sides)
        return Nodes(
            log_weight=np.concatenate(
                [right.log_weight, right.log_weight - right.loss, [math.log1p(-moved)]]
            ),
            loss=np.concatenate([right.loss, -right.loss, [0.0]]),
            missing=missing,
        )


def fixed_size_curves(
    *, sampling_prob: float, num_steps: int, adjacency: Adjacency
) -> tuple[DeltaCurve, ...]:
    """Bounds for batches that are fresh uniform subsets of exactly b rows.

    Whether the example is drawn decides whether another row is not, so that the batch's sum moves by up
    to 2 and not 1. With P, Q, R the step's output given that the example is in (before and after it
    changes) or out, advanced joint convexity (Balle, Barthe and Gaboardi 2018, Theorem 2) gives for a >= 1

        D_a((1-q) R + q P || (1-q) R + q Q) <= D_a((1-q) N(0) + q N(2) || N(0)),

    under zeroing-out and replacement alike; the same bound after swapping makes the dominating pair
    self-dual (Zhu et al. 2022). Lebeda et al. (arXiv 2405.20769) show that composing Poisson's pair
    instead is wrong. The lower bound composes the pair of one explicit data set: all the other
    gradients at -1, the example's at 1, against 0 (zeroing-out) or -1 (replacement).
    """
    if sampling_prob == 1:  # every batch is the whole data set
        return deterministic_curves(num_epochs=num_steps, adjacency=adjacency)

    def upper(sigma: float, epsilon: float) -> float:
        pair = SymmetricPair.of(sampling_prob=sampling_prob, sensitivity=2.0, sigma=sigma)
        return log_divergence(model=pair, copies=num_steps, epsilon=epsilon).upper

    def lower(sigma: float, epsilon: float) -> float:
        there = Mixture(prob=sampling_prob, mean=1.0) if adjacency is Adjacency.ZERO_OUT else _AT_ZERO
        pair = MixturePair(p=Mixture(prob=sampling_prob, mean=2.0), q=there, sigma=sigma)
        return log_divergence(model=pair, copies=num_steps, epsilon=epsilon).lower

    return (
        DeltaCurve(
            log_delta=upper,
            direction=Direction.UPPER,
            source="self-dual pair of sensitivity 2 (Zhu et al. 2022; Lebeda et al., arXiv 2405.20769)",
        ),
        DeltaCurve(
            log_delta=lower, direction=Direction.LOWER, source="pair of an explicit data set, composed T-fold"
        ),
    )
