"""How the curves of the sigma figures look, and what runs along their axes: plain values."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from truebatch.experiments.sigma_grids import Point, Question, nominal_epochs


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What runs along the bottom: its name, where a point is on it, and how it is ticked."""

    label: str
    value: Callable[[Point], float]
    powers_of_two: bool
    tick: Callable[[float], str]


BATCH_SIZE = Axis(
    label="batch size b",
    value=lambda point: float(point.spec.batch_size),
    powers_of_two=True,
    tick=lambda x: f"$2^{{{round(math.log2(x))}}}$",
)
EPSILON = Axis(
    label="privacy budget ε",
    value=lambda point: point.epsilon,
    powers_of_two=True,
    tick=lambda x: f"{x:g}",
)
EPOCHS = Axis(
    label="number of epochs E",
    value=lambda point: nominal_epochs(point.spec),
    powers_of_two=False,
    tick=lambda x: f"{x:g}",
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The axis of a figure and its panels, one for each number of epochs; None takes all points.

    `vacuous_above` names the curve that holds without any amplification: what is above it says nothing.
    """

    axis: Axis
    panels: tuple[int | None, ...]
    log_sigma: bool = False
    vacuous_above: str | None = None


Dashes = str | tuple[float, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Ink:
    """How a curve looks. Colours are those of Okabe and Ito, told apart by all common kinds of sight."""

    short: str
    name: str
    color: str
    marker: str
    dashes: Dashes = "-"
    hatch: str | None = None
    width: float = 1.8

    @property
    def legend(self) -> str:
        """The short label and the full name."""
        return f"{self.short} {self.name}"


INKS: dict[str, Ink] = {
    "deterministic": Ink(short="(D)", name="deterministic", color="#000000", marker=""),
    "persistent_shuffle": Ink(short="(SP)", name="persistent shuffle", color="#D55E00", marker="^"),
    "dynamic_shuffle": Ink(
        short="(SD)", name="dynamic shuffle", color="#009E73", marker="v", hatch="////", dashes=(0, (5, 1.5))
    ),
    "poisson": Ink(short="(P)", name="Poisson, no cap", color="#0072B2", marker="", width=3.0),
    "truncated_poisson": Ink(
        short="(P)", name="Poisson, truncated at B", color="#0072B2", marker="o", dashes="none"
    ),
    "balls_and_bins": Ink(
        short="(B&B)", name="balls-and-bins", color="#E69F00", marker="d", dashes=(0, (3, 1.5))
    ),
    Question.CLONES_STEPS.value: Ink(
        short="(A/S)",
        name="amplification, optimistic, δ₀ = δ/S",
        color="#0072B2",
        marker="s",
        dashes=(0, (5, 2)),
    ),
    Question.CLONES_EXAMPLES.value: Ink(
        short="(A/n)",
        name="amplification, optimistic, δ₀ = δ/n",
        color="#CC79A7",
        marker="D",
        dashes=(0, (2, 1.5)),
    ),
}
