"""What `truebatch study` and the figures of AUC do, from their options on."""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from truebatch.cli.progress import status
from truebatch.cli.sources import source_of
from truebatch.data import Features, open_source
from truebatch.experiments.flights import flights_features, write_flights
from truebatch.experiments.study_cells import SWEEPS, Sweep
from truebatch.experiments.study_figures import write_study
from truebatch.experiments.study_results import read_results, summary, write_bundle
from truebatch.experiments.study_runs import Study, run_sweep


def study(arguments: argparse.Namespace) -> int:
    """The sweeps that were asked for, on the flights or on a source."""
    out = Path(arguments.out)
    if arguments.source:
        source = source_of(arguments.source, format=arguments.format, on_bad_row=arguments.on_bad_row)
        features = Features.infer(source.schema, label=arguments.label)
    else:
        with status("laying out the flights"):
            source = open_source(write_flights(out / "flights.parquet"))
        features = flights_features()
    runs = Study(source, features, out)
    names = list(SWEEPS) if arguments.sweep == "all" else [arguments.sweep]
    for name in names:
        sweep = _sweep(SWEEPS[name], arguments)
        with _shown_runs(name) as watch:
            failures = run_sweep(runs, sweep, watch)
        for failure in failures:
            print(f"left out: {failure}", file=sys.stderr)
        _draw(name, out, out, sweep)
    return 0


def bundle(arguments: argparse.Namespace) -> int:
    """All runs of a study's directory as one file."""
    results = read_results(Path(arguments.out))
    write_bundle(results, Path(arguments.bundle))
    print(f"{len(results)} runs: {arguments.bundle}")
    return 0


def figure(name: str, runs: Path, out: Path) -> None:
    """One of the study's figures, from what its runs left."""
    _draw(name, runs, out, None)


def _draw(name: str, runs: Path, out: Path, sweep: Sweep | None) -> None:
    found = summary(name, read_results(runs), sweep)
    if found.note:
        print(f"{name}: {found.note}", file=sys.stderr)
    for path in write_study(found, out):
        print(path)


def _sweep(sweep: Sweep, arguments: argparse.Namespace) -> Sweep:
    """The sweep with what the options change."""
    model = arguments.model or ("click" if arguments.source else sweep.model)
    changes: dict[str, Any] = {"model": model}
    if arguments.smoke:
        changes |= {"learning_rates": (0.02,), "num_seeds": 2, "epochs": (1,), "batch_sizes": (8192, 16384)}
        changes |= {"epsilons": sweep.epsilons[:2]}
    if arguments.seeds is not None:
        changes["num_seeds"] = arguments.seeds
    if arguments.epochs:
        changes["epochs"] = tuple(arguments.epochs)
    if arguments.batch_size:
        changes["batch_sizes"] = tuple(arguments.batch_size)
    return dataclasses.replace(sweep, **changes)


@contextmanager
def _shown_runs(name: str) -> Iterator[Any]:
    """A bar of runs; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=None)

        def watch(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield watch
