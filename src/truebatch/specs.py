"""The samplers, as frozen facts: what ran, what was accounted, what is written down."""

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

from truebatch.errors import InvalidSpec

# Row ids, step numbers and sizes are int64 everywhere; products such as b*T are kept exact by Python.
_MAX_COUNT = 2**62


def _require_count(owner: object, name: str, *, least: int = 1) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InvalidSpec(f"{name} must be a whole number; got {name}={value!r}.")
    if not least <= value <= _MAX_COUNT:
        raise InvalidSpec(f"{name} must be from {least} to 2^62; got {name}={value}.")
    object.__setattr__(owner, name, value.__index__())


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """What all samplers share: n examples, target batch size b, T steps.

    A spec is public: it says how batches are drawn and nothing about which rows were drawn.
    """

    num_examples: int
    batch_size: int
    num_steps: int

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for name in ("num_examples", "batch_size", "num_steps"):
            _require_count(self, name)
        if self.batch_size > self.num_examples:
            raise InvalidSpec(
                f"batch_size must be at most num_examples; got batch_size={self.batch_size}, "
                f"num_examples={self.num_examples}."
            )

    @property
    def num_epochs(self) -> float:
        """E = b T / n; a whole number for the samplers that walk through permutations."""
        return self.batch_size * self.num_steps / self.num_examples

    @property
    def sampling_prob(self) -> float:
        """q = b / n. Counts are never recovered from it."""
        return self.batch_size / self.num_examples


@dataclass(frozen=True, kw_only=True)
class _WholeEpochs(Sampler):
    """Samplers whose proofs need S = n/b and E = T/S to be integers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        n, b, T = self.num_examples, self.batch_size, self.num_steps
        kind = type(self).__name__
        if n % b:
            raise InvalidSpec(
                f"batch_size must divide num_examples for {kind}; got num_examples={n}, batch_size={b}.",
                hint=f"use num_examples={n // b * b}, or TruncatedPoisson, which has no such rule.",
            )
        if T % (n // b):
            S = n // b
            raise InvalidSpec(
                f"num_steps must be whole epochs of num_examples/batch_size={S} steps for {kind}; "
                f"got num_steps={T}.",
                hint=f"use num_steps={nearest_multiple(T, S)}.",
            )

    @property
    def steps_per_epoch(self) -> int:
        """S = n / b."""
        return self.num_examples // self.batch_size

    @property
    def whole_epochs(self) -> int:
        """E as the integer it is."""
        return self.num_steps // self.steps_per_epoch


def nearest_multiple(value: int, unit: int) -> int:
    """The positive multiple of `unit` nearest to `value`; the larger one on a tie.

    >>> nearest_multiple(1000, 64), nearest_multiple(10, 64)
    (1024, 64)
    """
    return max(1, (2 * value + unit) // (2 * unit)) * unit


@dataclass(frozen=True, kw_only=True)
class Deterministic(_WholeEpochs):
    """Batches in the order of the data, the same in every epoch: (D).

    Guarantees:
      - Batch t holds rows (t mod S) b to (t mod S) b + b - 1.
    """

    name: ClassVar[str] = "deterministic"


@dataclass(frozen=True, kw_only=True)
class PersistentShuffle(_WholeEpochs):
    """One uniform permutation of the rows, walked through in every epoch: (SP).

    Guarantees:
      - Every row is in exactly one batch of each epoch, the same one each time.
    """

    name: ClassVar[str] = "persistent_shuffle"


@dataclass(frozen=True, kw_only=True)
class DynamicShuffle(_WholeEpochs):
    """An independent uniform permutation of the rows for each epoch: (SD).

    Guarantees:
      - Every row is in exactly one batch of each epoch.
    """

    name: ClassVar[str] = "dynamic_shuffle"


@dataclass(frozen=True, kw_only=True)
class BallsAndBins(_WholeEpochs):
    """Every row joins one uniform step of each epoch, independently of the other rows.

    Chua et al., arXiv 2412.16802; random allocation in Feldman and Shenfeld, arXiv 2502.08202.

    Guarantees:
      - Every row is in exactly one batch of each epoch.
    No guarantee: the size of a batch, which is Binomial(n, 1/S).
    """

    name: ClassVar[str] = "balls_and_bins"


@dataclass(frozen=True, kw_only=True)
class Poisson(Sampler):
    """Every row joins every batch by its own coin of probability b/n; no cap: (P) with B infinite.

    Guarantees:
      - Exactly num_steps batches come out, empty ones included.
      - Memberships are independent across rows and steps.
    No guarantee: the size of a batch; that every example is ever used.
    """

    name: ClassVar[str] = "poisson"


@dataclass(frozen=True, kw_only=True)
class TruncatedPoisson(Sampler):
    """Every row joins every batch by its own coin, and batches over the cap are cut: (P).

    Algorithm 4. The paper allows any subset when cutting; we take a uniform one, which the tighter
    analysis (Ganesh, arXiv 2508.15089) needs.

    Guarantees:
      - Exactly num_steps batches come out, empty ones included.
      - No batch has more than max_batch_size real rows.
      - Before the cut, memberships are independent with probability b/n.
    No guarantee: that every example is ever used. A fraction near e^-E is not.
    Public: n, b, B, T. Secret: memberships and realised sizes.
    """

    max_batch_size: int

    name: ClassVar[str] = "truncated_poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_count(self, "max_batch_size")
        if self.max_batch_size < self.batch_size:
            raise InvalidSpec(
                f"max_batch_size must be at least batch_size; got max_batch_size={self.max_batch_size}, "
                f"batch_size={self.batch_size}."
            )


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampling(Sampler):
    """Every batch is a fresh uniform subset of exactly b rows, without replacement.

    Guarantees:
      - Every batch has exactly batch_size rows; batches are independent of each other.
    No guarantee: that every example is ever used.
    """

    name: ClassVar[str] = "fixed_size"


SAMPLERS: dict[str, type[Sampler]] = {
    kind.name: kind
    for kind in (
        Deterministic,
        Poisson,
        TruncatedPoisson,
        PersistentShuffle,
        DynamicShuffle,
        BallsAndBins,
        FixedSizeSampling,
    )
}


def as_dict(spec: Sampler) -> dict[str, int | str]:
    """The spec as plain values, sampler's name first.

    >>> as_dict(Poisson(num_examples=10, batch_size=2, num_steps=5))
    {'sampler': 'poisson', 'num_examples': 10, 'batch_size': 2, 'num_steps': 5}
    """
    return {"sampler": spec.name, **dataclasses.asdict(spec)}


def steps_for_epochs(*, num_examples: int, batch_size: int, num_epochs: float) -> int:
    """T = E S with S = n/b rounded to the nearest integer, the paper's convention for Poisson too.

    >>> steps_for_epochs(num_examples=36672493, batch_size=65536, num_epochs=1)
    560
    """
    steps = num_epochs * max(1, round(num_examples / batch_size))
    return max(1, math.floor(steps + 0.5))
