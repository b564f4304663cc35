"""What may be said of a run: fixed before the first step, written into everything it leaves behind."""

import dataclasses
import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import cached_property
from typing import Any, Self

from truebatch.errors import UnknownAnalysis
from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import Sampler, as_dict
from truebatch.training.checkpoint import key_check
from truebatch.training.noise_words import SCHEME as NOISE_SCHEME
from truebatch.training.privacy import NoPrivacy, Privacy

# Ends of an interval that are closer than this, relatively, are one number: what is left is rounding.
ONE_NUMBER = 1e-3


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The sampler that drew the batches, the noise that is added, and what the accountant makes of them.

    `sigma` is the noise that is added, a little above what the accountant needs (rounding to a grid has its
    price). `is_private` is False without noise, and for the wrong pairing, where `epsilon` is what a careless
    reader would claim. `epsilon_lower` is proven against what ran, whatever is claimed: where it is below
    `epsilon`, as for shuffles, the truth is somewhere between the two.
    """

    drawn_by: Sampler
    privacy: Privacy | NoPrivacy
    sigma: float
    num_parameters: int

    @classmethod
    def of(cls, privacy: Privacy | NoPrivacy, drawn_by: Sampler, *, num_parameters: int) -> Self:
        """Calibrates sigma, when epsilon was asked for."""
        sigma = privacy.noise_sigma(num_parameters) if isinstance(privacy, Privacy) else 0.0
        return cls(drawn_by=drawn_by, privacy=privacy, sigma=sigma, num_parameters=num_parameters)

    @property
    def accounted_as(self) -> str | None:
        """The sampler that the noise was calibrated for, where it is not the one that drew the batches."""
        if isinstance(self.privacy, NoPrivacy) or self.privacy.spec == self.drawn_by:
            return None
        return self.privacy.spec.name

    @property
    def is_private(self) -> bool:
        """Whether (epsilon, delta) is proven for what ran."""
        return isinstance(self.privacy, Privacy) and self.accounted_as is None and self.sigma > 0

    @cached_property
    def epsilon(self) -> float | None:
        """Of the whole run: an upper bound; None without noise."""
        return self.epsilon_after(self.drawn_by.num_steps)

    def epsilon_after(self, num_steps: int) -> float | None:
        """Of its first steps."""
        if isinstance(self.privacy, NoPrivacy):
            return None
        return self.privacy.epsilon_after(
            num_steps, noise_sigma=self.sigma, num_parameters=self.num_parameters
        )

    @cached_property
    def epsilon_lower(self) -> float | None:
        """Of the whole run, with the batches that were drawn: a lower bound; None where none is known."""
        own = self._own
        if own is None:
            return None
        try:
            return own.epsilon_lower(noise_sigma=self.sigma, num_parameters=self.num_parameters)
        except UnknownAnalysis:
            return None

    @cached_property
    def epsilon_of_batches(self) -> float | None:
        """What may be claimed for the batches that were drawn: `epsilon`, but for the wrong pairing."""
        own, T = self._own, self.drawn_by.num_steps
        if own is None or self.accounted_as is None:
            return self.epsilon
        try:
            return own.epsilon_after(T, noise_sigma=self.sigma, num_parameters=self.num_parameters)
        except UnknownAnalysis:
            return None

    @property
    def is_interval(self) -> bool:
        """Whether what is proven is clearly below what may be claimed, or not known at all."""
        lower, upper = self.epsilon_lower, self.epsilon_of_batches
        return upper is not None and (lower is None or lower < upper * (1 - ONE_NUMBER))

    @property
    def _own(self) -> Privacy | None:
        """The noise that is added, for the sampler that drew the batches."""
        if isinstance(self.privacy, NoPrivacy):
            return None
        if self.accounted_as is None:
            return self.privacy
        return dataclasses.replace(self.privacy, spec=self.drawn_by, epsilon=None, sigma=self.sigma)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for records: what was drawn, added and accounted."""
        private = isinstance(self.privacy, Privacy)
        return {
            "spec": as_dict(self.drawn_by),
            "private": self.is_private,
            "accounted_as": self.accounted_as,
            "clip_norm": self.privacy.clip_norm,
            "sigma": self.sigma if private else None,
            "epsilon": _finite(self.epsilon),
            "epsilon_direction": "upper" if self.is_private else None,
            "epsilon_lower": _finite(self.epsilon_lower),
            "delta": self.privacy.delta if isinstance(self.privacy, Privacy) else None,
            "adjacency": str(self.privacy.adjacency) if isinstance(self.privacy, Privacy) else None,
            "num_runs": self.privacy.num_runs if isinstance(self.privacy, Privacy) else 1,
            "num_parameters": self.num_parameters,
        }

    def __str__(self) -> str:
        if isinstance(self.privacy, NoPrivacy):
            return f"not private: batches of {self.drawn_by.name} without noise"
        at = f"at delta = {self.privacy.delta:g} ({self.privacy.adjacency})"
        if self.accounted_as is not None:
            return (
                f"NOT GUARANTEED: epsilon = {shown(self.epsilon)} {at} is that of {self.accounted_as}, "
                f"and the batches are those of {self.drawn_by.name}, for which epsilon is {self._ends()}"
            )
        if self.privacy.num_runs > 1:
            at += f" for {self.privacy.num_runs} runs like this one together"
        said = (
            f"epsilon is {self._ends()} {at}" if self.is_interval else f"epsilon = {shown(self.epsilon)} {at}"
        )
        return f"{said}, batches of {self.drawn_by.name}, sigma = {self.sigma:.6g}"

    def _ends(self) -> str:
        """Both ends in words, for the batches that were drawn."""
        lower, upper = _finite(self.epsilon_lower), _finite(self.epsilon_of_batches)
        least = None if lower is None else f"at least {shown(lower, up=False)}"
        most = None if upper is None else f"at most {shown(upper)} (may claim {shown(upper)})"
        return " and ".join(end for end in (least, most) if end) or "not known"


def shown(value: float | None, *, digits: int = 6, up: bool = True) -> str:
    """A number rounded away from the truth: upper bounds up, lower bounds down.

    >>> shown(4.0000001), shown(4.0000001, up=False), shown(1.1), shown(12345.67, digits=4)
    ('4.00001', '4', '1.1', '1.235e+04')
    """
    if value is None or not math.isfinite(value) or value == 0:
        return "unknown" if value is None else f"{value:g}"
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() - digits + 1)
    return f"{float(exact.quantize(unit, rounding=ROUND_CEILING if up else ROUND_FLOOR)):.{digits}g}"


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def run_meta(claim: Claim, key: Key) -> dict[str, Any]:
    """What must be the same when a run goes on: batches, noise and, by a check of 64 bits, the key."""
    fingerprint = schedule(claim.drawn_by, key).fingerprint()
    return {
        "fingerprint": fingerprint,
        "key_check": key_check(key, fingerprint),
        "spec": as_dict(claim.drawn_by),
        "private": claim.is_private,
        "accounted_as": claim.accounted_as,
        "clip_norm": claim.privacy.clip_norm,
        "sigma": claim.sigma,
        "noise": NOISE_SCHEME,
    }
