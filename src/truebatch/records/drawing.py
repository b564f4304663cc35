"""The report's two pictures, as SVG made by hand: they are part of the page and need no plotting library."""

import html
import math

_WIDTH = 720
_INK, _FAINT, _OURS, _OTHER = "var(--ink)", "var(--faint)", "var(--ours)", "var(--other)"

Row = tuple[str, float | None, float | None, bool]


def learning_curve(rows: list[dict[str, float]]) -> str:
    """A metric on validation rows against steps; words where there is nothing to draw."""
    name = next((n for n in ("auc", "loss") if sum(n in row for row in rows) > 1), None)
    if name is None:
        return "<p>No metrics were taken on the way.</p>"
    points = [(row["step"], row[name]) for row in rows if name in row]
    height, left, right, top, bottom = 260, 56, 16, 16, 40
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = _margins(min(ys), max(ys))

    def at(x: float, y: float) -> tuple[float, float]:
        span = max(xs) - min(xs) or 1
        return (
            left + (x - min(xs)) / span * (_WIDTH - left - right),
            top + (high - y) / (high - low) * (height - top - bottom),
        )

    parts = []
    for tick in _ticks(low, high, 4):
        y = at(xs[0], tick)[1]
        parts.append(_line(left, y, _WIDTH - right, y, _FAINT))
        parts.append(_text(left - 8, y + 4, f"{tick:g}", anchor="end"))
    for tick in _ticks(min(xs), max(xs), 5):
        parts.append(_text(at(tick, low)[0], height - bottom + 18, f"{tick:,.0f}"))
    path = " ".join(
        f"{'M' if i == 0 else 'L'}{x:.1f},{y:.1f}" for i, (x, y) in enumerate(at(*p) for p in points)
    )
    parts.append(
        f"<path d='{path}' fill='none' stroke='{_OURS}' stroke-width='2.5' stroke-linejoin='round'/>"
    )
    parts += [
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{_OURS}'/>" for x, y in (at(*p) for p in points)
    ]
    x, y = at(*points[-1])
    parts.append(_text(x, y - 10, f"{points[-1][1]:.4f}", anchor="end", weight="600"))
    parts.append(_text((left + _WIDTH - right) / 2, height - 4, "step"))
    label = {"auc": "AUC on validation rows", "loss": "loss on validation rows"}[name]
    parts.append(_text(left, top - 4, label, anchor="start"))
    return _svg(height, parts, label)


def intervals(rows: list[Row]) -> str:
    """(name, lower, upper, whether it is this run's), as bars from the lower to the upper end."""
    ends = [v for _, lower, upper, _ in rows for v in (lower, upper) if v is not None and v > 0]
    if not ends:
        return ""
    low, high = math.log10(min(ends)) - 0.08, math.log10(max(ends)) + 0.08
    left, right, step, top = 150, 150, 34, 28
    height = top + step * len(rows) + 24

    def at(value: float) -> float:
        return left + (math.log10(max(value, 10**low)) - low) / (high - low) * (_WIDTH - left - right)

    parts = []
    for tick in _log_ticks(low, high):
        parts.append(_line(at(tick), top - 8, at(tick), height - 22, _FAINT))
        parts.append(_text(at(tick), height - 6, f"{tick:g}"))
    for i, (name, lower, upper, ours) in enumerate(rows):
        y, colour = top + step * i + 8, _OURS if ours else _OTHER
        weight = "600" if ours else "400"
        parts.append(_text(left - 12, y + 4, name, anchor="end", weight=weight))
        if lower is None and upper is None:
            parts.append(_text(left, y + 4, "not known", anchor="start"))
            continue
        a = at(lower if lower is not None else 10**low)
        b = at(upper if upper is not None else 10**high)
        parts.append(
            f"<rect x='{a - 2:.1f}' y='{y - 6:.1f}' width='{max(4.0, b - a + 4):.1f}' height='12' rx='3' "
            f"fill='{colour}' opacity='{0.9 if ours else 0.55}'/>"
        )
        parts.append(_text(_WIDTH - right + 12, y + 4, _range(lower, upper), anchor="start", weight=weight))
    parts.append(_text(left, top - 14, "epsilon", anchor="start"))
    return _svg(height, parts, "epsilon under every sampler")


def _range(lower: float | None, upper: float | None) -> str:
    ends = ["?" if v is None else f"{v:.3g}" for v in (lower, upper)]
    return ends[1] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _margins(low: float, high: float) -> tuple[float, float]:
    room = (high - low or abs(high) or 1) * 0.12
    return low - room, high + room


def _ticks(low: float, high: float, count: int) -> list[float]:
    """A few round numbers between low and high.

    >>> _ticks(0.61, 0.72, 4)
    [0.65, 0.7]
    """
    span = (high - low) / count or 1.0
    unit = 10 ** math.floor(math.log10(span))
    size = next((f * unit for f in (1, 2, 2.5, 5, 10) if f * unit >= span), 10 * unit)
    first = math.ceil(low / size)
    return [round(i * size, 12) for i in range(first, math.floor(high / size) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [f * 10.0**d for d in decades for f in ((1, 2, 5) if high - low < 2.5 else (1,))]
    return [v for v in values if low <= math.log10(v) <= high]


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}'/>"


def _text(x: float, y: float, text: str, *, anchor: str = "middle", weight: str = "400") -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' fill='{_INK}'>"
        f"{html.escape(text)}</text>"
    )


def _svg(height: float, parts: list[str], label: str) -> str:
    return (
        f"<svg viewBox='0 0 {_WIDTH} {height:.0f}' role='img' aria-label='{html.escape(label)}'>"
        + "".join(parts)
        + "</svg>"
    )
