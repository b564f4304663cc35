"""The study's runs: each trained once, kept as one JSON file, and found again."""

import dataclasses
import json
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
from truebatch.experiments.study_results import CELLS, FORMAT, best
from truebatch.keys import Key
from truebatch.records import RunPlan, Split
from truebatch.records.record import versions
from truebatch.records.run import optimizer_of
from truebatch.training.evaluate import evaluation
from truebatch.training.train import train

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
    _plans: dict[Cell, RunPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def result(self, cell: Cell) -> dict[str, Any]:
        """What came of a cell: from its file, or trained now."""
        path = self.directory / CELLS / f"{cell.name}.json"
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
        plan = self._plan(cell)
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

    def _plan(self, cell: Cell) -> RunPlan:
        """Cells that differ in learning rate and seed share one calibration."""
        shared = dataclasses.replace(cell, learning_rate=1.0, seed=0)
        if shared not in self._plans:
            a, _ = self.split.edges(self.source.num_rows)
            self._plans[shared] = RunPlan.of(self.source, self.features, shared.config(a), self.split)
        plan = self._plans[shared]
        config = dataclasses.replace(plan.config, learning_rate=cell.learning_rate, seed=cell.seed)
        return dataclasses.replace(plan, config=config)

    def _rows(self, part: RowRange) -> MappedSource:
        place = self.directory / "rows" / f"{part.start}-{part.stop}.rows"
        place.parent.mkdir(parents=True, exist_ok=True)
        return prepare(part, place, self.features)


def run_sweep(study: Study, sweep: Sweep, watch: Watch = lambda *_: None) -> list[str]:
    """Train every point of a sweep: tuned on validation rows, repeated over seeds. Resumes run by run.

    Returns, in words, which points cannot be and why: a batch larger than the data, or no known bound.
    """
    points, failures = list(sweep.points()), []
    per_point = len(sweep.learning_rates) * len(sweep.clip_norms) + sweep.num_seeds - 1
    for i, point in enumerate(points):
        watch(i * per_point, len(points) * per_point, " ".join(str(part) for part in point))
        try:
            results = {cell: study.result(cell) for cell in sweep.tuning(point)}
            for cell in sweep.repeats(best(results, results)):
                study.result(cell)
        except SourceChanged:
            raise
        except TruebatchError as error:
            arm, batch_size, epochs, epsilon = point
            failures.append(
                f"{arm}, b = {batch_size}, {epochs} epochs, epsilon = {epsilon:g}: {error.message}"
            )
    watch(len(points) * per_point, len(points) * per_point, "done")
    return failures
