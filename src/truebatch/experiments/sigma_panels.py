"""Bounds on sigma as pictures: a band from what is proved to be needed up to what suffices.

The one file that imports matplotlib; `sigma_figures` imports it only once something is drawn.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from truebatch.experiments.sigma_captions import Pairs, note, settings
from truebatch.experiments.sigma_grids import Point, nominal_epochs
from truebatch.experiments.sigma_inks import INKS, Axis, Ink, Layout
from truebatch.experiments.sigma_points import Answer

_DPI = 150
_LINE = 5e-3  # relative; a band narrower than this is narrower than a line, and drawn as one
_LABEL_GAP = 0.048  # of a panel's height, between two labels at its right edge
_STYLE: Any = {
    "svg.hashsalt": "truebatch",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "hatch.linewidth": 0.6,
}


def images(
    *, title: str, layout: Layout, points: Sequence[Point], answers: Sequence[Answer]
) -> dict[str, bytes]:
    """The figure as PNG and SVG, with no trace of the day or the place it was drawn."""
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever the user has set, the same numbers give the same picture
        mpl.rcParams.update(_STYLE)
        canvas = _canvas(title, layout, list(zip(points, answers, strict=True)))
        FigureCanvasAgg(canvas)
        png, svg = io.BytesIO(), io.BytesIO()
        canvas.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
        canvas.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def _canvas(title: str, layout: Layout, pairs: Pairs) -> Figure:
    canvas = Figure(
        figsize=(5.4 * len(layout.panels) + 1.2, 5.8), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08)
    )
    panels = canvas.subplots(1, len(layout.panels), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, num_epochs in zip(panels, layout.panels, strict=True):
        shown = [p for p in pairs if num_epochs is None or nominal_epochs(p[0].spec) == num_epochs]
        handles |= _panel(axes, layout, _tracks(layout.axis, shown))
        if num_epochs is not None:
            axes.set_title(f"{num_epochs} epoch" + "s" * (num_epochs > 1))
    panels[0].set_ylabel("noise multiplier σ" + (", log scale" if layout.log_sigma else ""))
    # The blank second line keeps the room in which the settings are set in a lighter face.
    canvas.suptitle(f"{title}\n", fontsize=14, fontweight="bold")
    canvas.text(0.5, 0.93, settings(pairs), ha="center", va="center", color="#333333")
    _legend(canvas, handles, columns=1 + len(layout.panels), note=note(pairs))
    return canvas


@dataclass(frozen=True, kw_only=True)
class _Track:
    """One curve of a panel: where it is known, from below and from above."""

    curve: str
    x: list[float]
    low: list[float]
    high: list[float]

    @property
    def is_line(self) -> bool:
        return all(map(_is_narrow, self.low, self.high))


def _is_narrow(low: float, high: float) -> bool:
    return high - low <= _LINE * high


def _tracks(axis: Axis, pairs: Pairs) -> list[_Track]:
    """The curves that something is known of: an upper end alone is drawn only for what is not a bound."""
    tracks = []
    for curve in dict.fromkeys(point.curve for point, _ in pairs):
        known = sorted(
            (axis.value(p), a.upper if a.lower is None else a.lower, a.upper)
            for p, a in pairs
            if p.curve == curve and a.upper is not None and not (a.lower is None and curve == p.spec.name)
        )
        if known:
            x, low, high = (list(column) for column in zip(*known, strict=True))
            tracks.append(_Track(curve=curve, x=x, low=low, high=high))
    return tracks


def _panel(axes: Axes, layout: Layout, tracks: list[_Track]) -> dict[str, Any]:
    _scales(axes, layout, sorted({x for track in tracks for x in track.x}))
    # Bands first, the widest at the back; lines over them.
    ordered = sorted(tracks, key=lambda t: (t.is_line, min(t.low) if not t.is_line else 0))
    handles = {track.curve: _draw(axes, track) for track in ordered}
    _limits(axes, layout, tracks)
    _end_labels(axes, tracks)
    return {track.curve: handles[track.curve] for track in tracks}


def _draw(axes: Axes, track: _Track) -> Any:
    ink = INKS[track.curve]
    every = max(1, len(track.x) // 10)
    line = axes.plot(track.x, track.low, markevery=every, **_pen(ink, front=track.is_line))[0]
    if track.is_line:
        return line
    band = axes.fill_between(
        track.x,
        track.low,
        track.high,
        facecolor=(ink.color, 0.0 if ink.hatch else 0.16),
        edgecolor=(ink.color, 0.45) if ink.hatch else "none",
        hatch=ink.hatch,
        linewidth=0,
        zorder=1.5,
    )
    return (band, line)


def _pen(ink: Ink, *, front: bool) -> dict[str, Any]:
    return {
        "color": ink.color,
        "linestyle": ink.dashes,
        "linewidth": ink.width,
        "marker": ink.marker,
        "markersize": 5.5,
        "markerfacecolor": "white",
        "markeredgecolor": ink.color,
        "markeredgewidth": 1.3,
        "zorder": 3.0 if front else 2.5,
    }


def _scales(axes: Axes, layout: Layout, ticks: list[float]) -> None:
    axis = layout.axis
    if axis.powers_of_two:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: axis.tick(x)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if layout.log_sigma:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(axis.label)
    axes.grid(visible=True)


def _limits(axes: Axes, layout: Layout, tracks: list[_Track]) -> None:
    axes.autoscale_view()  # otherwise put off until the figure is drawn, too late for labels
    if not layout.log_sigma:
        axes.set_ylim(bottom=0)
    floor = [track for track in tracks if track.curve == layout.vacuous_above]
    if not floor:
        return
    low = max(floor[0].high)
    top = max(axes.get_ylim()[1], 1.15 * low)
    axes.set_ylim(top=top)
    axes.axhspan(low, top, facecolor="#f1f1f1", zorder=0)
    axes.text(
        0.985,
        low + 0.02 * top,
        "vacuous: worse than no amplification at all",
        transform=axes.get_yaxis_transform(),
        ha="right",
        va="bottom",
        color="#555555",
        fontsize=9.5,
    )


def _end_labels(axes: Axes, tracks: list[_Track]) -> None:
    """The short names at the right edge, moved apart where they meet; one for curves that coincide."""
    to_panel = axes.transData + axes.transAxes.inverted()
    places: dict[float, list[_Track]] = {}
    end = max(x for track in tracks for x in track.x)
    for track in (track for track in tracks if track.x[-1] == end):
        height = float(to_panel.transform((track.x[-1], track.low[-1]))[1])
        near = next((y for y in places if abs(y - height) < _LABEL_GAP / 4), height)
        places.setdefault(near, []).append(track)
    heights = _spread(sorted(places), _LABEL_GAP)
    for (_, group), y in zip(sorted(places.items()), heights, strict=True):
        colors = {INKS[track.curve].color for track in group}
        axes.annotate(
            _end_label(group),
            (1.015, y),
            xycoords="axes fraction",
            va="center",
            fontsize=9.5,
            color=colors.pop() if len(colors) == 1 else "#000000",
            annotation_clip=False,
        )


def _end_label(group: list[_Track]) -> str:
    names = ", ".join(dict.fromkeys(INKS[track.curve].short for track in group))
    open_above = not any(_is_narrow(track.low[-1], track.high[-1]) for track in group)
    return f"{names} at least" if open_above else names


def _spread(heights: list[float], gap: float) -> list[float]:
    """Sorted heights moved as little as it takes to be `gap` apart.

    >>> [round(y, 3) for y in _spread([0.1, 0.5, 0.51], 0.05)]
    [0.1, 0.48, 0.53]
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _start(groups[-1], gap) - _start(groups[-2], gap) < gap * len(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    return [_start(group, gap) + gap * k for group in groups for k in range(len(group))]


def _start(group: list[float], gap: float) -> float:
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def _legend(canvas: Figure, handles: dict[str, Any], *, columns: int, note: str) -> None:
    legend = canvas.legend(
        list(handles.values()),
        [INKS[curve].legend for curve in handles],
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        handlelength=3.2,
        columnspacing=2.4,
        title=note,
        title_fontsize=9,
    )
    legend.get_title().set_color("#555555")
    legend.get_title().set_multialignment("center")
