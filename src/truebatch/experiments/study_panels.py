"""Drawing the study: a panel for each number of epochs, with error bars over seeds."""

import io
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

_STYLE: dict[str, tuple[str, str, str]] = {
    "deterministic": ("#6b6b6b", "s", "-"),
    "truncated_poisson": ("#0b6e4f", "o", "-"),
    "persistent_shuffle": ("#b35900", "v", "-"),
    "dynamic_shuffle": ("#7a3e9d", "^", "-"),
    "common_mistake": ("#c0392b", "x", ":"),
    "plain_poisson": ("#0b6e4f", "o", "--"),
    "plain_persistent": ("#b35900", "v", "--"),
    "plain_dynamic": ("#7a3e9d", "^", "--"),
}
_AXES = {"batch_size": "batch size b", "epsilon": "epsilon"}


def draw(content: dict[str, Any]) -> dict[str, bytes]:
    """PNG and SVG of `study_figures.series`."""
    panels, axis = content["panels"], content["axis"]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(max(8.0, 5.2 * len(panels)), 5.4), layout="constrained")
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
        for place, (epochs, lines) in zip(axes, sorted(panels.items()), strict=True):
            for arm, points in lines.items():
                colour, marker, dash = _STYLE[arm]
                xs, means, deviations = zip(*sorted(points), strict=True)
                place.errorbar(
                    xs,
                    means,
                    yerr=deviations,
                    label=content["labels"][arm],
                    color=colour,
                    marker=marker,
                    linestyle=dash,
                    markersize=4.5,
                    capsize=2,
                    linewidth=1.4,
                )
            place.set_xscale("log", base=2)
            place.set_xlabel(_AXES[axis])
            held = f", {content['held']}" if content.get("held") else ""
            place.set_title(f"{epochs} epoch{'s' if epochs != 1 else ''}{held}", loc="left")
            place.grid(axis="y", color="#e3e3e3", linewidth=0.7)
        axes[0].set_ylabel("test AUC (mean and standard deviation over seeds)")
        lines = {
            label: handle
            for place in axes
            for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
        }
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2, frameon=False)
        if content.get("note"):
            figure.suptitle(content["note"], fontsize=9, color="#a33b20", ha="left", x=0.01)
        found = {}
        for suffix in ("png", "svg"):
            data = io.BytesIO()
            metadata = {"Date": None} if suffix == "svg" else {"Software": None}
            figure.savefig(data, format=suffix, dpi=160, metadata=metadata)
            found[suffix] = data.getvalue()
    return found
