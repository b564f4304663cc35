"""The settings of the paper's sigma figures: which calibrations each one is made of.

The conventions are those of Appendix B: n = 36,672,493 examples, S = round(n/b) steps per epoch, T = E S.
Poisson keeps n, so q = b/n; samplers that walk through whole epochs take the nearest n that b divides, S b.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from truebatch.accounting import Adjacency, max_batch_size_by_rule
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
    steps_for_epochs,
)

NUM_EXAMPLES = 36_672_493
DELTA = 2.7e-8
EPSILON = 5.0
BATCH_SIZE = 65_536
BATCH_SIZES = tuple(2**k for k in range(10, 19))
EPSILONS = tuple(float(2**k) for k in range(9))
EPOCHS = tuple(range(1, 51))
PANEL_EPOCHS = (1, 5)
_SECONDS_UP_TO = 32.0  # epsilon


class Question(enum.StrEnum):
    """What is asked about a spec: its bounds on sigma, or an optimistic reading of an amplification bound."""

    SIGMA = "sigma"
    CLONES_STEPS = "clones_optimistic_delta_over_steps"
    CLONES_EXAMPLES = "clones_optimistic_delta_over_examples"


@dataclass(frozen=True, kw_only=True)
class Point:
    """One calibration of a grid: everything its answer depends on, apart from the accountant itself."""

    spec: Sampler
    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.ZERO_OUT
    question: Question = Question.SIGMA
    dear: bool = False

    @property
    def curve(self) -> str:
        """The name of the curve the point is on: the sampler's, or that of the reading."""
        return self.spec.name if self.question is Question.SIGMA else self.question.value

    @property
    def label(self) -> str:
        """The point in a few words, for a progress line."""
        return f"{self.curve} b={self.spec.batch_size} E={nominal_epochs(self.spec):g} eps={self.epsilon:g}"


def nominal_epochs(spec: Sampler) -> float:
    """E as the paper counts it, T / round(n/b); b T / n is a little off where b does not divide n.

    >>> nominal_epochs(Poisson(num_examples=NUM_EXAMPLES, batch_size=65536, num_steps=2800))
    5.0
    """
    S = steps_for_epochs(num_examples=spec.num_examples, batch_size=spec.batch_size, num_epochs=1)
    return spec.num_steps / S


def paper_specs(
    *, num_examples: int = NUM_EXAMPLES, batch_size: int, num_epochs: int, epsilon: float, delta: float
) -> tuple[Sampler, ...]:
    """Every sampler of the figures at one setting, with the cap B by the paper's rule.

    >>> for spec in paper_specs(batch_size=1024, num_epochs=1, epsilon=5.0, delta=2.7e-8):
    ...     print(spec.name, spec.num_examples, spec.num_steps)
    deterministic 36672512 35813
    poisson 36672493 35813
    truncated_poisson 36672493 35813
    persistent_shuffle 36672512 35813
    dynamic_shuffle 36672512 35813
    balls_and_bins 36672512 35813
    """
    n, b = num_examples, batch_size
    S = steps_for_epochs(num_examples=n, batch_size=b, num_epochs=1)
    T = num_epochs * S
    B = max_batch_size_by_rule(num_examples=n, batch_size=b, num_steps=T, epsilon=epsilon, delta=delta)
    return (
        Deterministic(num_examples=S * b, batch_size=b, num_steps=T),
        Poisson(num_examples=n, batch_size=b, num_steps=T),
        TruncatedPoisson(num_examples=n, batch_size=b, num_steps=T, max_batch_size=B),
        PersistentShuffle(num_examples=S * b, batch_size=b, num_steps=T),
        DynamicShuffle(num_examples=S * b, batch_size=b, num_steps=T),
        BallsAndBins(num_examples=S * b, batch_size=b, num_steps=T),
    )


def sigma_grid(
    *,
    num_examples: int = NUM_EXAMPLES,
    batch_sizes: Iterable[int] = (BATCH_SIZE,),
    epsilons: Iterable[float] = (EPSILON,),
    epochs: Iterable[int] = (1,),
    delta: float = DELTA,
    dear: bool = False,
) -> tuple[Point, ...]:
    """All samplers at every combination of the settings; `dear` asks for every bound that takes long."""
    return tuple(
        Point(spec=spec, epsilon=eps, delta=delta, dear=_takes_dear_bounds(spec, epsilon=eps, dear=dear))
        for E in epochs
        for b in batch_sizes
        for eps in epsilons
        for spec in paper_specs(
            num_examples=num_examples, batch_size=b, num_epochs=E, epsilon=eps, delta=delta
        )
    )


def _takes_dear_bounds(spec: Sampler, *, epsilon: float, dear: bool) -> bool:
    """Balls-and-bins has no others over several epochs: it takes them where seconds are enough, and not at
    every number of epochs. Above epsilon 32 a point takes up to a minute.
    """
    if isinstance(spec, BallsAndBins):
        E = spec.whole_epochs
        return dear or (epsilon <= _SECONDS_UP_TO and (E <= 5 or E % 10 == 0))
    return dear and isinstance(spec, PersistentShuffle | DynamicShuffle)


def by_batch_size(*, dear: bool = False) -> tuple[Point, ...]:
    """Figure 3, middle: b = 2^10 .. 2^18 at epsilon 5, one and five epochs."""
    return sigma_grid(batch_sizes=BATCH_SIZES, epochs=PANEL_EPOCHS, dear=dear)


def by_epsilon(*, dear: bool = False) -> tuple[Point, ...]:
    """Figure 4, right: epsilon = 1 .. 256 at b = 65,536, one and five epochs."""
    return sigma_grid(epsilons=EPSILONS, epochs=PANEL_EPOCHS, dear=dear)


def by_epochs(*, dear: bool = False) -> tuple[Point, ...]:
    """Appendix D: 1 to 50 epochs at epsilon 5 and b = 65,536."""
    return sigma_grid(epochs=EPOCHS, dear=dear)


def amplification(
    *, num_examples: int = NUM_EXAMPLES, batch_sizes: Iterable[int] = BATCH_SIZES, dear: bool = False
) -> tuple[Point, ...]:
    """Appendix C: one epoch, what amplification by shuffling could give next to what is proved.

    The optimistic readings of Feldman, McMillan and Talwar (arXiv 2012.12803) take delta_0 = delta / S, with
    which the paper's statement on vacuous batch sizes agrees, and delta_0 = delta / n, as its text has it.
    """
    plain = sigma_grid(num_examples=num_examples, batch_sizes=batch_sizes, dear=dear)
    points: list[Point] = []
    for point in plain:
        if isinstance(point.spec, Deterministic):
            points.append(point)
        elif isinstance(point.spec, PersistentShuffle):
            points.append(point)
            readings = (Question.CLONES_STEPS, Question.CLONES_EXAMPLES)
            points.extend(
                Point(spec=point.spec, epsilon=point.epsilon, delta=point.delta, question=reading)
                for reading in readings
            )
    return tuple(points)
