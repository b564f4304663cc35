"""Metrics by step, as a CSV file that survives a restart."""

import csv
import io
import os
from pathlib import Path

from truebatch.errors import InvalidData
from truebatch.training.claim import Claim

_FIXED = ("step", "seconds", "epsilon")
# Named for what it is wherever it is shown: computed from private rows, and covered by no guarantee.
PRIVATE_LOSS = "private_loss_not_covered"


class Curves:
    """A CSV with a row for each evaluation: step, seconds, epsilon, metrics. Its first line is the claim.

    Guarantees:
      - A run that goes on from step k keeps the rows up to k and drops those after it.
      - Every row is on disk, whole, before the next step.
    """

    def __init__(self, path: str | Path, claim: Claim, *, start: int) -> None:
        self._path, self._head = Path(path), f"# {claim}\n"
        self._rows: list[dict[str, str]] = []
        if start and self._path.exists():
            self._rows = [row for row in _rows_of(self._path) if int(row["step"]) <= start]

    def add(self, *, step: int, seconds: float, epsilon: float | None, metrics: dict[str, float]) -> None:
        """One more row; the file is replaced as a whole."""
        shown = "" if epsilon is None else f"{epsilon:.6g}"
        values = {"step": str(step), "seconds": f"{seconds:.3f}", "epsilon": shown}
        self._rows.append(values | {name: repr(value) for name, value in metrics.items()})
        names = list(dict.fromkeys([*_FIXED, *(name for row in self._rows for name in row)]))
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        aside = self._path.with_name(f".{self._path.name}.part")
        with aside.open("w") as file:
            file.write(self._head + text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)


def _rows_of(path: Path) -> list[dict[str, str]]:
    try:
        rows = list(csv.DictReader(path.read_text().splitlines()[1:]))
    except (ValueError, csv.Error):
        rows = [{}]
    if any(None in row or None in row.values() or not row.get("step", "").isdecimal() for row in rows):
        raise InvalidData(
            f"curves of a run that goes on must be as they were written; got {str(path)!r}, which are not.",
            hint="move the file away: the run goes on, and its curves begin there.",
        )
    return rows
