"""The study's figures, drawn from the files of its runs alone: test AUC by batch size and by epsilon."""

import csv
import io
from pathlib import Path
from typing import Any

from truebatch.errors import InvalidArgument, MissingExtra
from truebatch.experiments.sigma_points import write_whole
from truebatch.experiments.study_cells import ARMS
from truebatch.experiments.study_results import AXES, Summary

_COLUMNS = (
    "arm", "epochs", "batch_size", "epsilon", "auc", "deviation", "seeds", "sigma", "may_claim",
    "learning_rate", "clip_norm", "valid_auc", "tried",
)  # fmt: skip


def write_study(found: Summary, directory: Path) -> tuple[Path, ...]:
    """CSV, PNG and SVG of what was found; what is not whole is said in the picture."""
    try:
        # An extra, loaded where it is used.
        from truebatch.experiments.study_panels import draw  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("figures need matplotlib.", hint="pip install 'truebatch[figures]'") from error
    contents = {"csv": _table(found), **draw(series(found))}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        paths = tuple(directory / f"{found.name}.{kind}" for kind in contents)
        for path, content in zip(paths, contents.values(), strict=True):
            write_whole(path, content)
    except OSError as error:
        raise InvalidArgument(
            f"the output directory must be one that can be written to; got {directory} ({error.strerror})."
        ) from error
    return paths


def series(found: Summary) -> dict[str, Any]:
    """What is drawn: for each number of epochs and arm, (x, mean, standard deviation)."""
    axis = AXES[found.name]
    panels: dict[int, dict[str, list[tuple[float, float, float]]]] = {}
    for row in found.rows:
        lines = panels.setdefault(row["epochs"], {})
        lines.setdefault(row["arm"], []).append((row[axis], row["auc"], row["deviation"] or 0.0))
    labels = {name: arm.label for name, arm in ARMS.items()}
    return {"axis": axis, "panels": panels, "labels": labels, "held": found.held, "note": found.note}


def _table(found: Summary) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found.rows)
    return text.getvalue().encode()
