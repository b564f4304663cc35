"""What may be said of a run: fixed before the first step, written into everything it leaves behind."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import Sampler, as_dict
from truebatch.training.checkpoint import key_check
from truebatch.training.privacy import NoPrivacy, Privacy


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The sampler that drew the batches, the noise that is added, and what the accountant makes of them.

    `sigma` is the noise that is added, a little above what the accountant needs (rounding to a grid has its
    price). `is_private` is False without noise, and for the wrong pairing, where `epsilon` is what a careless
    reader would claim.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values for records: what was drawn, added and accounted."""
        private = isinstance(self.privacy, Privacy)
        return {
            "spec": as_dict(self.drawn_by),
            "private": self.is_private,
            "accounted_as": self.accounted_as,
            "clip_norm": self.privacy.clip_norm,
            "sigma": self.sigma if private else None,
            "epsilon": None if self.epsilon in (None, math.inf) else self.epsilon,
            "epsilon_direction": "upper" if self.is_private else None,
            "delta": self.privacy.delta if isinstance(self.privacy, Privacy) else None,
            "adjacency": str(self.privacy.adjacency) if isinstance(self.privacy, Privacy) else None,
            "num_parameters": self.num_parameters,
        }

    def __str__(self) -> str:
        if isinstance(self.privacy, NoPrivacy):
            return f"not private: batches of {self.drawn_by.name} without noise"
        said = f"epsilon = {self.epsilon:.6g} at delta = {self.privacy.delta:g} ({self.privacy.adjacency})"
        if self.accounted_as is not None:
            return (
                f"NOT GUARANTEED: {said} is that of {self.accounted_as}, "
                f"and the batches are those of {self.drawn_by.name}"
            )
        return f"{said}, batches of {self.drawn_by.name}, sigma = {self.sigma:.6g}"


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
    }
