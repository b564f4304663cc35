"""The words around a sigma figure: what is fixed, how to read it, what is left out."""

from collections.abc import Sequence

from truebatch.experiments.sigma_grids import Point
from truebatch.experiments.sigma_inks import INKS
from truebatch.experiments.sigma_points import Answer
from truebatch.specs import Poisson

Pairs = Sequence[tuple[Point, Answer]]


def settings(pairs: Pairs) -> str:
    """What does not change over the figure, with the notion of neighbours it is all about."""
    points = [point for point, _ in pairs]
    parts = []
    epsilons, batch_sizes = {p.epsilon for p in points}, {p.spec.batch_size for p in points}
    if len(epsilons) == 1:
        parts.append(f"ε = {epsilons.pop():g}")
    parts += [f"δ = {_scientific(delta)}" for delta in sorted({p.delta for p in points})]
    if len(batch_sizes) == 1:
        parts.append(f"b = {batch_sizes.pop():,}")
    exact = [p.spec.num_examples for p in points if isinstance(p.spec, Poisson)]
    parts.append(f"n = {exact[0]:,}" if exact else f"n ≈ {points[0].spec.num_examples / 1e6:.1f} million")
    parts += [f"{kind} adjacency" for kind in sorted({p.adjacency.value for p in points})]
    return ",   ".join(parts)


def _scientific(x: float) -> str:
    """A number as matplotlib sets it.

    >>> _scientific(2.7e-8)
    '2.7 × $10^{-8}$'
    """
    digits, power = f"{x:.6e}".split("e")
    return f"{float(digits):g} × $10^{{{int(power)}}}$"


def note(pairs: Pairs) -> str:
    """How to read the bands, and which curves are left out because nothing of their own is known."""
    lines = ["A band reaches from the σ that is provably needed to the σ that suffices. A line is both."]
    for curve in dict.fromkeys(point.curve for point, _ in pairs):
        ends = [answer.lower for point, answer in pairs if point.curve == curve == point.spec.name]
        if left := ends.count(None):
            lines.append(
                f"{INKS[curve].short}: {left} of {len(ends)} points are left out, "
                "whose bounds take long and were not asked for."
            )
    readings = dict.fromkeys(INKS[p.curve].short for p, _ in pairs if p.curve != p.spec.name)
    if readings:
        lines.append(
            f"{', '.join(readings)}: an upper bound read in its own favour, an estimate and not a bound."
        )
    return "\n".join(lines)
