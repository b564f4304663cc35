"""Neighbouring data sets in gradient space, and what an attacker makes of the sums that are released.

Two attacks. Alone: the canary's direction is zero for every other row. Crowd: every other row is at minus
the clip norm, the data sets behind the lower bounds of Proposition 3.4 and Theorem 3.7, which tell shuffling
from independent coins. In both the canary is at plus the clip norm, or zeroed out.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from scipy.special import logsumexp

from truebatch.audit.buffer_shuffle import BufferShuffle, last_row_prob
from truebatch.audit.rows import Floats, Ids, Rows
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

AttackName = Literal["alone", "crowd"]


class Placing(Protocol):
    """In which steps a canary may be."""

    def likelihood(self, log_ratios: Floats) -> Floats:
        """The log of the mean over placings of the product of e^l where it is; l is [steps, canaries]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Coins:
    """In every step by its own coin."""

    prob: float

    def likelihood(self, log_ratios: Floats) -> Floats:
        """The sum over steps of log(1 - q + q e^l)."""
        q = self.prob
        total: Floats = np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + log_ratios).sum(axis=0)
        return total


@dataclass(frozen=True, kw_only=True)
class OncePerEpoch:
    """In one step of each epoch, the first with these probabilities [steps, 1 or canaries]."""

    prob: Floats
    persistent: bool = False

    def likelihood(self, log_ratios: Floats) -> Floats:
        """The log of the mean over the step; the same step in every epoch, or another in each."""
        S, canaries = len(self.prob), log_ratios.shape[1]
        E = len(log_ratios) // S
        by_epoch = log_ratios[: E * S].reshape(E, S, canaries)
        if self.persistent:
            found: Floats = logsumexp(by_epoch.sum(axis=0), b=self.prob, axis=0)
            return found
        total: Floats = logsumexp(by_epoch, b=self.prob, axis=1).sum(axis=0)
        return total


@dataclass(frozen=True, kw_only=True)
class Attack:
    """One pair of neighbouring data sets for each canary, and the score of what is released.

    The score is the log of the likelihood ratio of the two data sets when the step is what the spec says,
    which no other score beats (Neyman and Pearson). Whatever the step really does, it is only a number to
    tell the data sets apart by, so the bound that comes of it holds.
    """

    name: AttackName
    spec: Sampler
    sigma: float
    clip_norm: float
    canary_norm: float
    canaries: Ids
    placing: Placing

    def rows(self, present: np.ndarray) -> Rows:
        """The data set in which these canaries [canaries] are present and the others zeroed out.

        Rows are `canary_norm` clip norms long, so that they count for one clip norm if the step clips them.
        """
        length = self.canary_norm * self.clip_norm
        return Rows(
            num_rows=self.spec.num_examples,
            dimension=len(self.canaries),
            ids=self.canaries,
            direction=np.arange(len(self.canaries)),
            scale=np.where(present, length, 0.0),
            others=-length if self.name == "crowd" else 0.0,
        )

    def scores(self, sums: Floats) -> Floats:
        """One for each canary, from the noised sums [steps, canaries]."""
        x = sums / self.clip_norm
        if self.name == "alone":
            return self.placing.likelihood(self._log_ratio(x, 1.0))
        x = x + self.spec.batch_size
        there, zeroed = (self.placing.likelihood(self._log_ratio(x, mean)) for mean in (2.0, 1.0))
        return there - zeroed

    def _log_ratio(self, x: Floats, mean: float) -> Floats:
        """log N(mean, sigma^2) / N(0, sigma^2) at x."""
        return mean * (x - mean / 2) / self.sigma**2


def attacks_of(spec: Sampler) -> tuple[AttackName, ...]:
    """Those that can tell what the sampler promises from what it must not be.

    Samplers that draw rows by coins are tried with a crowd too: batches that are shuffled and only called
    independent give themselves away to it, and not to a canary alone.
    """
    if isinstance(spec, Deterministic):
        return ("alone",)
    return ("crowd",) if _is_shuffle(spec) else ("alone", "crowd")


def attack(
    name: AttackName,
    spec: Sampler,
    *,
    sigma: float,
    clip_norm: float = 1.0,
    canary_norm: float = 1.0,
    num_canaries: int = 1,
) -> Attack:
    """The attack of this name; the last row is a canary, and the others are spread over the data."""
    n = spec.num_examples
    canaries = n - 1 - np.arange(num_canaries)[::-1] * (n // num_canaries)
    return Attack(
        name=name,
        spec=spec,
        sigma=sigma,
        clip_norm=clip_norm,
        canary_norm=canary_norm,
        canaries=canaries,
        placing=_placing(name, spec, canaries),
    )


def _is_shuffle(spec: Sampler) -> bool:
    return isinstance(spec, PersistentShuffle | DynamicShuffle | BufferShuffle)


def _placing(name: AttackName, spec: Sampler, canaries: Ids) -> Placing:
    if isinstance(spec, FixedSizeSampling):
        return Coins(prob=spec.sampling_prob)
    if isinstance(spec, Poisson | TruncatedPoisson):
        if name == "alone":
            return Coins(prob=spec.sampling_prob)
        S = min(spec.num_steps, max(1, round(spec.num_examples / spec.batch_size)))
        return OncePerEpoch(prob=np.full((S, 1), 1 / S))
    S = spec.num_examples // spec.batch_size
    if isinstance(spec, Deterministic):
        return OncePerEpoch(prob=(np.arange(S)[:, None] == canaries // spec.batch_size).astype(float))
    if isinstance(spec, BufferShuffle):
        return OncePerEpoch(prob=last_row_prob(spec)[:, None])
    assert isinstance(spec, BallsAndBins) or _is_shuffle(spec)
    return OncePerEpoch(prob=np.full((S, 1), 1 / S), persistent=isinstance(spec, PersistentShuffle))
