"""A study's results: read from its files, one run each, and summed up. Figures are drawn from these alone."""

import dataclasses
import gzip
import json
import statistics
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truebatch.errors import InvalidData, TruebatchError
from truebatch.experiments.sigma_points import write_whole
from truebatch.experiments.study_cells import ARMS, BY_EPSILON, SWEEPS, Cell, Sweep

FORMAT, BUNDLE = "truebatch-study/1", "truebatch-study-runs/1"
CELLS = "cells"

Results = dict[Cell, dict[str, Any]]
Kind = tuple[str, str, float]
AXES = {sweep.name: "epsilon" if sweep is BY_EPSILON else "batch_size" for sweep in SWEEPS.values()}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a figure shows: a row for each point that was tuned, and in words what is not whole."""

    name: str
    rows: list[dict[str, Any]]
    held: str
    note: str


def read_results(where: Path) -> Results:
    """The runs of a study's directory, or of a bundle: all on one source, each once."""
    runs = list(_of_bundle(where) if where.is_file() else _of_directory(where))
    if not runs:
        raise InvalidData(
            f"figures of AUC are drawn from a study's runs; there are none in {str(where)!r}.",
            hint="make them: truebatch study --out study; or name them: --runs DIR or FILE.",
        )
    found: Results = {}
    for place, run in runs:
        cell = _cell(place, run)
        if run["source"] != runs[0][1]["source"]:
            raise InvalidData(f"a study's runs must all be on one source; {place} is of another.")
        if found.setdefault(cell, run) != run:
            raise InvalidData(f"a run must have one result; {place} has another than was read before.")
    return found


def write_bundle(results: Results, path: Path) -> None:
    """All runs in one file of JSON lines, `.gz` or not: the source, then a line a run, in a fixed order.

    Guarantees:
      - The same runs give the same bytes, and are read back as they were.
    """
    fields = ("arm", "epochs", "batch_size", "epsilon", "learning_rate", "clip_norm", "seed", "model")
    cells = sorted(results, key=lambda cell: [getattr(cell, field) for field in fields])
    first = results[cells[0]]
    lines: list[dict[str, Any]] = [{"format": BUNDLE, "source": first["source"]}]
    for cell in cells:
        lines.append({name: value for name, value in results[cell].items() if name not in lines[0]})
    data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def best(results: Results, cells: Iterable[Cell]) -> Cell:
    """The cell of the highest validation AUC; of equal ones that of the smallest rate and clip norm."""
    return max(
        cells,
        key=lambda cell: (results[cell]["metrics"]["valid_auc"], -cell.learning_rate, -cell.clip_norm),
    )


def summary(name: str, results: Results, sweep: Sweep | None = None) -> Summary:
    """The points of a figure: chosen on validation rows among what was run, over what seeds there are.

    `sweep` is what was asked for, the paper's unless given; what is there beyond it is shown too. Runs of one
    model, optimizer and delta are shown, at one epsilon or one batch size: those of the sweep, or else those
    that most runs have. The note says what was left out, and how much of the sweep there is.
    """
    asked = sweep or SWEEPS[name]
    kind = (asked.model, asked.optimizer, asked.delta) if sweep else _commonest_kind(results)
    axis = AXES[name]
    other = "batch_size" if axis == "epsilon" else "epsilon"
    ours = [cell for cell in results if _kind(cell) == kind and cell.arm in asked.arms]
    wanted = asked.batch_sizes if other == "batch_size" else asked.epsilons
    held = _commonest([getattr(cell, other) for cell in ours if not _is_plain(cell)], wanted)
    shown = [c for c in ours if getattr(c, other) == held or (other == "epsilon" and _is_plain(c))]
    points: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in shown:
        points.setdefault(_point(cell), []).append(cell)
    rows = [_row(results, cells) for cells in points.values()]
    if not rows:
        raise InvalidData(f"no run of {name} has come to an end; got {len(results)} runs of other points.")
    said = f"b = {held:,}" if other == "batch_size" else f"epsilon = {held:g}"
    return Summary(
        name=name,
        rows=sorted(rows, key=lambda row: (row["epochs"], row[axis], list(ARMS).index(row["arm"]))),
        held=said,
        note=_note(results, points, asked, kind),
    )


def _row(results: Results, cells: list[Cell]) -> dict[str, Any]:
    """One point: the cell that validation chose, and its test AUC over seeds."""
    tuned = [cell for cell in cells if cell.seed == 0] or cells
    chosen = best(results, tuned)
    seeds = [c for c in cells if dataclasses.replace(c, seed=0) == dataclasses.replace(chosen, seed=0)]
    scores = [results[cell]["metrics"]["test_auc"] for cell in sorted(seeds, key=lambda cell: cell.seed)]
    claim = results[chosen]["claim"]
    return {
        "arm": chosen.arm,
        "epochs": chosen.epochs,
        "batch_size": chosen.batch_size,
        "epsilon": chosen.epsilon,
        "auc": statistics.mean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "seeds": len(scores),
        "sigma": claim["sigma"],
        "may_claim": claim["epsilon"] if claim["private"] else None,
        "learning_rate": chosen.learning_rate,
        "clip_norm": chosen.clip_norm,
        "valid_auc": results[chosen]["metrics"]["valid_auc"],
        "tried": len(tuned),
    }


def _note(results: Results, points: dict[tuple[Any, ...], list[Cell]], asked: Sweep, kind: Kind) -> str:
    """How much of the sweep there is, and what was left out; empty when all of it is there."""
    sweep = dataclasses.replace(asked, model=kind[0], optimizer=kind[1], delta=kind[2])
    whole, begun = 0, 0
    wanted = list(sweep.points())
    for point in wanted:
        tuning = sweep.tuning(point)
        there = set(points.get(_point(tuning[0]), ()))
        begun += bool(there)
        whole += there.issuperset(tuning) and there.issuperset(sweep.repeats(best(results, tuning)))
    parts = []
    if whole < len(wanted):
        parts.append(
            f"incomplete: of {len(wanted)} points {whole} have all their runs, {begun - whole} some of them"
        )
    other_kinds = sum(_kind(cell) != kind for cell in results)
    if other_kinds:
        parts.append(f"{other_kinds} runs of another model, optimizer or delta are left out")
    return "; ".join(parts)


def _kind(cell: Cell) -> Kind:
    return cell.model, cell.optimizer, cell.delta


def _commonest_kind(results: Results) -> Kind:
    kinds = [_kind(cell) for cell in results]
    return max(sorted(set(kinds)), key=kinds.count)


def _commonest(values: list[Any], wanted: Sequence[Any]) -> Any:
    """What was asked for where it is there, else what most have."""
    for value in wanted:
        if value in values or not values:
            return value
    return max(sorted(set(values)), key=values.count)


def _is_plain(cell: Cell) -> bool:
    return ARMS[cell.arm].noise_of is None


def _point(cell: Cell) -> tuple[Any, ...]:
    """What the cells of a point share; an arm without noise has no epsilon."""
    return cell.arm, cell.epochs, cell.batch_size, None if _is_plain(cell) else cell.epsilon


def _of_directory(where: Path) -> Iterable[tuple[str, Any]]:
    folder = where / CELLS if (where / CELLS).is_dir() else where
    for path in sorted(folder.glob("*.json")):
        yield str(path), _json(str(path), path.read_bytes())


def _of_bundle(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        data = path.read_bytes()
        lines = (gzip.decompress(data) if path.suffix == ".gz" else data).splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidData(f"a bundle of runs must be readable; got {str(path)!r}: {error}.") from None
    head = _json(f"{path}, line 1", lines[0] if lines else b"")
    if not isinstance(head, dict) or head.get("format") != BUNDLE or "source" not in head:
        raise InvalidData(
            f"a bundle of runs must begin with its format, {BUNDLE!r}; {str(path)!r} does not.",
            hint="make one: truebatch study --out study --bundle runs.jsonl.gz.",
        )
    for number, line in enumerate(lines[1:], 2):
        run = _json(f"{path}, line {number}", line)
        if isinstance(run, dict):
            run = {"format": FORMAT, "source": head["source"], **run}
        yield f"{path}, line {number}", run


def _json(place: str, data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise InvalidData(f"a run must be JSON; {place} is not: {error}.") from None


def _cell(place: str, run: Any) -> Cell:
    """Which run it is; refuse what is not a finished one."""
    try:
        if run["format"] != FORMAT:
            raise InvalidData(f"a run must be of format {FORMAT!r}; {place} is of {run['format']!r}.")
        scores = [float(run["metrics"][name]) for name in ("valid_auc", "test_auc")]
        known = run["source"], run["claim"]["sigma"], run["claim"]["epsilon"], run["claim"]["private"]
        cell = Cell(**run["cell"])
        for field in dataclasses.fields(Cell):
            kinds = (int, float) if field.type is float else field.type
            if not isinstance(getattr(cell, field.name), kinds):  # type: ignore[arg-type]
                raise TypeError(f"{field.name} is {getattr(cell, field.name)!r}")
        if cell.arm not in ARMS or not all(0 <= score <= 1 for score in scores) or not known:
            raise ValueError(f"arm {cell.arm!r}, AUC {scores}")
        return cell
    except TruebatchError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidData(
            f"a run must hold its cell, claim and metrics; {place} does not "
            f"({type(error).__name__}: {error})."
        ) from None
