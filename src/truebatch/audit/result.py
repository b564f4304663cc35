"""What an audit found, beside what is proven."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from truebatch import accounting
from truebatch.accounting import Adjacency, Interval, UnknownAnalysis
from truebatch.accounting.rounding import effective_sigma
from truebatch.audit.attacks import AttackName
from truebatch.audit.buffer_shuffle import BufferShuffle
from truebatch.audit.events import Judgement
from truebatch.audit.trials import MOST_CANARIES
from truebatch.specs import Sampler, as_dict

REFUTED, NOT_REFUTED = "refuted", "not refuted"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack showed, with its share of the failure probability."""

    attack: AttackName
    judgement: Judgement
    failure_prob: float
    runs: int
    canaries_per_run: int

    @property
    def epsilon(self) -> float:
        """The lower bound that this attack proves."""
        return self.judgement.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        j = self.judgement
        return {
            "attack": self.attack,
            "epsilon_lower": j.epsilon,
            "estimate": _finite(j.estimate),
            "event_upper": _finite(j.epsilon_of_event_upper),
            "likelier": "with the canary" if j.event.with_canary else "with the canary zeroed out",
            "threshold": _finite(j.event.threshold),
            "likely": [j.likely, j.likely_trials],
            "rare": [j.rare, j.rare_trials],
            "runs": self.runs,
            "canaries_per_run": self.canaries_per_run,
            "failure_prob": self.failure_prob,
        }


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit proved: epsilon at `delta` is at least `epsilon`, with this confidence.

    `proven` is what theorems say of a step that does what `spec` says, and None where nothing is known.
    """

    spec: Sampler
    sigma: float
    clip_norm: float
    delta: float
    confidence: float
    seed: int
    findings: tuple[Finding, ...]
    proven: Interval | None
    claimed_epsilon: float | None = None

    @property
    def epsilon(self) -> float:
        """The largest of what the attacks prove."""
        return max(finding.epsilon for finding in self.findings)

    @property
    def best(self) -> Finding:
        """The attack that proves most."""
        return max(self.findings, key=lambda finding: finding.epsilon)

    @property
    def verdict(self) -> str | None:
        """Whether the claim is refuted; None without one."""
        if self.claimed_epsilon is None:
            return None
        return REFUTED if self.epsilon > self.claimed_epsilon else NOT_REFUTED

    def as_dict(self) -> dict[str, Any]:
        """Plain values for scripts."""
        ends = {} if self.proven is None else {"lower": self.proven.lower, "upper": self.proven.upper}
        return {
            "spec": as_dict(self.spec),
            "sigma": self.sigma,
            "clip_norm": self.clip_norm,
            "delta": self.delta,
            "adjacency": str(Adjacency.ZERO_OUT),
            "confidence": self.confidence,
            "seed": self.seed,
            "epsilon_lower": self.epsilon,
            "proven": {side: _finite(bound.value) for side, bound in ends.items()} or None,
            "claimed_epsilon": self.claimed_epsilon,
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        sure = f"with {100 * self.confidence:g} % confidence"
        said = f"epsilon >= {self.epsilon:.4g} at delta = {self.delta:g}, {sure}"
        if self.claimed_epsilon is None:
            return said
        return f"{said}: the claim of epsilon = {self.claimed_epsilon:.4g} is {self.verdict}"


def proven(spec: Sampler, *, sigma: float, delta: float, clip_norm: float = 1.0) -> Interval | None:
    """What is proven of epsilon when the step is what the spec says; None when nothing is known."""
    if isinstance(spec, BufferShuffle):
        upper = proven(spec.fixed_order, sigma=sigma, delta=delta, clip_norm=clip_norm)
        end = spec.shuffle_of_the_end
        lower = None if end is None else proven(end, sigma=sigma, delta=delta, clip_norm=clip_norm)
        assert upper is not None
        unknown = dataclasses.replace(upper.lower, value=None, source="b does not divide the buffer")
        return Interval(lower=lower.lower if lower else unknown, upper=upper.upper)
    effective = effective_sigma(sigma=sigma, clip_norm=clip_norm, num_coordinates=MOST_CANARIES)
    try:
        return accounting.epsilon(spec, sigma=effective, delta=delta)
    except UnknownAnalysis:
        return None


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
