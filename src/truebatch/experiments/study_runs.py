"""The study's runs: each trained once, kept as one JSON file, and found again."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truebatch.batching import GatherBatches
from truebatch.batching.journal import write_aside
from truebatch.data import Features, MappedSource, RowRange, Source, prepare
from truebatch.errors import InvalidData, SourceChanged, TruebatchError
from truebatch.experiments.study_cells import Cell, Sweep
from truebatch.keys import Key
from truebatch.records import RunPlan, Split
from truebatch.records.record import versions
from truebatch.records.run import optimizer_of
from truebatch.training.evaluate import evaluation
from truebatch.training.train import train

FORMAT = "truebatch-study/1"

Watch = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Study:
    """Runs over one source, in one directory: `cells/`, one file a run, and `rows/`, prepared rows.

    The data are taken to be public: keys are test keys, and each file names its seed.
    """

    source: Source
    features: Features
    directory: Path
    split: Split = field(default_factory=Split)

    def result(self, cell: Cell) -> dict[str, Any]:
        """What came of a cell: from its file, or trained now."""
        path = self.directory / "cells" / f"{cell.name}.json"
        identity = json.loads(json.dumps(self.source.identity()))
        if path.exists():
            found: dict[str, Any] = json.loads(path.read_text())
            if found["source"] != identity:
                raise SourceChanged(
                    f"a study's runs must all be on one source; {path} is of another.",
                    hint="choose another directory.",
                )
            return found
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"format": FORMAT, "source": identity, **self._trained(cell)}
        write_aside(path, json.dumps(result, indent=1) + "\n", 0o644)
        return result

    def _trained(self, cell: Cell) -> dict[str, Any]:
        a, _ = self.split.edges(self.source.num_rows)
        plan = RunPlan.of(self.source, self.features, cell.config(a), self.split)
        if plan.valid is None or plan.test is None:
            raise InvalidData("a study needs validation and test rows; the split leaves none.")
        key, began = Key.for_tests(cell.seed), time.monotonic()
        rows = self._rows(plan.train)
        trained = train(
            plan.model,
            GatherBatches(rows, plan.spec, key),
            key=key,
            privacy=plan.claim.privacy,
            accounted_as=plan.claim.accounted_as,
            optimizer=optimizer_of(plan),
            seed=cell.seed,
        )
        metrics = {
            f"{name}_{metric}": value
            for name, part in (("valid", plan.valid), ("test", plan.test))
            for metric, value in evaluation(plan.model, self._rows(part))(trained.params).items()
        }
        return {
            "cell": dataclasses.asdict(cell),
            "claim": plan.claim.as_dict(),
            "metrics": metrics,
            "seconds": round(time.monotonic() - began, 2),
            "versions": versions(),
        }

    def _rows(self, part: RowRange) -> MappedSource:
        place = self.directory / "rows" / f"{part.start}-{part.stop}.rows"
        place.parent.mkdir(parents=True, exist_ok=True)
        return prepare(part, place, self.features)


def run_sweep(study: Study, sweep: Sweep, watch: Watch = lambda *_: None) -> list[dict[str, Any]]:
    """Every point of a sweep: tuned on validation rows, repeated over seeds, summed up. Resumes run by run.

    A point that cannot be (a batch larger than the data, a bound that is not known) says why.
    """
    points, rows = list(sweep.points()), []
    per_point = len(sweep.learning_rates) * len(sweep.clip_norms) + sweep.num_seeds - 1
    for i, point in enumerate(points):
        watch(i * per_point, len(points) * per_point, " ".join(str(part) for part in point))
        rows.append(_point(study, sweep, point))
    watch(len(points) * per_point, len(points) * per_point, "done")
    return rows


def _point(study: Study, sweep: Sweep, point: tuple[str, int, int, float]) -> dict[str, Any]:
    arm, batch_size, epochs, epsilon = point
    row: dict[str, Any] = {"arm": arm, "batch_size": batch_size, "epochs": epochs, "epsilon": epsilon}
    try:
        tried = [(cell, study.result(cell)) for cell in sweep.tuning(point)]
        chosen, first = max(tried, key=lambda pair: pair[1]["metrics"]["valid_auc"])
        results = [first, *(study.result(cell) for cell in sweep.repeats(chosen))]
    except SourceChanged:
        raise
    except TruebatchError as error:
        return {**row, "why": error.message}
    scores = [result["metrics"]["test_auc"] for result in results]
    return {
        **row,
        "auc": statistics.mean(scores),
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
        "seeds": len(scores),
        "sigma": first["claim"]["sigma"],
        "may_claim": first["claim"]["epsilon"] if first["claim"]["private"] else None,
        "learning_rate": chosen.learning_rate,
        "clip_norm": chosen.clip_norm,
        "valid_auc": first["metrics"]["valid_auc"],
    }
