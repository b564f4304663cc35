"""Drawing the audits of shuffle buffers: what each proves, between what is proven on paper."""

import io

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from truebatch.experiments.buffer_figures import BUFFERS, DELTA, SIGMA, TITLE, Buffers, spec_of
from truebatch.experiments.sigma_inks import INKS

_BUFFER = "#CC79A7"


def images(found: Buffers) -> dict[str, bytes]:
    """PNG and SVG, with no trace of the day they were drawn."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
        mpl.rcParams["svg.hashsalt"] = "truebatch"
        figure = Figure(figsize=(8.6, 5.8), layout="constrained")
        axes = figure.subplots()
        _lines(axes, found)
        _audits(axes, found)
        _frame(axes, found)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
        figure.suptitle(TITLE, fontsize=14, fontweight="bold")
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return {"png": png.getvalue(), "svg": svg.getvalue()}


def _lines(axes: Axes, found: Buffers) -> None:
    """What is proven: of the samplers beside, and of the buffer by what the end of the data is."""
    fixed, shuffle, poisson = (found.beside[name] for name in ("deterministic", "dynamic_shuffle", "poisson"))
    x = (BUFFERS[0], BUFFERS[-1])
    levels = (
        ("deterministic", fixed[1], "-", "fixed order, exact: the upper bound of every buffer"),
        ("dynamic_shuffle", shuffle[0], (0, (2, 1.5)), "full shuffle, proven lower bound (Theorem 3.7)"),
        ("poisson", poisson[1], "-", "Poisson, exact"),
    )
    for name, level, dashes, label in levels:
        axes.plot(x, (level, level), color=INKS[name].color, linestyle=dashes, label=label)
    axes.plot(
        [one.buffer_size for one in found.audits],
        [one.proven_lower for one in found.audits],
        color=_BUFFER,
        linestyle=(0, (5, 2)),
        label="buffer of K, proven lower bound (the last row)",
    )


def _audits(axes: Axes, found: Buffers) -> None:
    sizes = [one.buffer_size for one in found.audits]
    lower, estimate = [one.lower for one in found.audits], [one.estimate for one in found.audits]
    axes.vlines(
        sizes, lower, [one.event_upper for one in found.audits], color=_BUFFER, linewidth=1.1, alpha=0.6
    )
    axes.plot(sizes, lower, "^", markersize=8, color=_BUFFER, label="audit: lower bound with 95 % confidence")
    axes.plot(
        sizes,
        estimate,
        "o",
        markersize=5,
        markerfacecolor="white",
        color=_BUFFER,
        label="audit: frequencies seen, and how far its event may reach",
    )


def _frame(axes: Axes, found: Buffers) -> None:
    n, b, T = (getattr(spec_of(1), name) for name in ("num_examples", "batch_size", "num_steps"))
    axes.set_xscale("log", base=2)
    axes.set_xticks(BUFFERS, [str(K) for K in BUFFERS])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("buffer size K, in rows")
    axes.set_ylabel("epsilon")
    axes.grid(axis="y", color="#e6e6e6")
    axes.set_title(
        f"n = {n}, b = {b}, T = {T} (one epoch), σ = {SIGMA:g}, δ = {DELTA:g}, zero-out adjacency; "
        f"{found.trials:,} trials a side",
        fontsize=9.5,
        color="#333333",
    )
