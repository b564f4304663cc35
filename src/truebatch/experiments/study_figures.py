"""The study's figures, drawn from its files alone: test AUC by batch size and by epsilon."""

import csv
import io
from pathlib import Path
from typing import Any

from truebatch.errors import InvalidData, MissingExtra
from truebatch.experiments.sigma_points import write_whole
from truebatch.experiments.study_cells import ARMS, BY_EPSILON, Sweep

_COLUMNS = (
    "arm", "epochs", "batch_size", "epsilon", "auc", "deviation", "seeds", "sigma", "may_claim",
    "learning_rate", "clip_norm", "valid_auc", "why",
)  # fmt: skip


def write_study(sweep: Sweep, rows: list[dict[str, Any]], directory: Path) -> tuple[Path, ...]:
    """CSV, PNG and SVG of a sweep."""
    if not any("auc" in row for row in rows):
        raise InvalidData(
            f"no run of {sweep.name} came to an end: {rows[0].get('why') if rows else 'no runs'}."
        )
    directory.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    table = directory / f"{sweep.name}.csv"
    write_whole(table, text.getvalue().encode())
    try:
        # An extra, loaded where it is used.
        from truebatch.experiments.study_panels import draw  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("figures need matplotlib.", hint="pip install 'truebatch[figures]'") from error
    paths = [table]
    for suffix, data in draw(series(sweep, rows)).items():
        path = directory / f"{sweep.name}.{suffix}"
        write_whole(path, data)
        paths.append(path)
    return tuple(paths)


def series(sweep: Sweep, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is drawn: for each number of epochs and arm, (x, mean, standard deviation)."""
    axis = "epsilon" if sweep.name == BY_EPSILON.name else "batch_size"
    panels: dict[int, dict[str, list[tuple[float, float, float]]]] = {}
    for row in rows:
        if "auc" in row:
            lines = panels.setdefault(row["epochs"], {})
            lines.setdefault(row["arm"], []).append((row[axis], row["auc"], row["deviation"] or 0.0))
    return {"axis": axis, "panels": panels, "labels": {name: arm.label for name, arm in ARMS.items()}}
