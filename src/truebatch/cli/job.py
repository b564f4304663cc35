"""What `truebatch train` and `truebatch verify` do, from their options on."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from truebatch.cli.keys import key_for, key_path
from truebatch.cli.progress import shown_progress, status
from truebatch.cli.sources import source_of
from truebatch.cli.train import CONFIG
from truebatch.data import Features, Source, open_source
from truebatch.errors import InvalidArgument
from truebatch.experiments.demo import DEMO
from truebatch.experiments.flights import flights_features, write_flights
from truebatch.experiments.study_cells import SWEEPS, Sweep
from truebatch.experiments.study_figures import write_study
from truebatch.experiments.study_results import read_results, summary, write_bundle
from truebatch.experiments.study_runs import Study, run_sweep
from truebatch.keys import Key
from truebatch.records import RECORD, RunConfig, RunPlan, Split, SplitBy, Watch, read_config, write_report
from truebatch.records import run as carry_out
from truebatch.records import verify as check_run
from truebatch.records.estimate import estimate
from truebatch.records.verify import FAILED
from truebatch.training import show_progress

_SHARES, _EDGES = ("train_share", "valid_share"), ("valid_from", "test_from")
_DATA = (
    "label", "positive", "numeric", "categorical", "leave_out", "buckets", *_SHARES, "split_by", *_EDGES,
)  # fmt: skip
# Options of which only one side can hold: what the command line states overrules the other side in a file.
_EITHER = ((("epochs",), ("steps",)), (("epsilon",), ("sigma",)), (_SHARES, ("split_by", *_EDGES)))


def train(arguments: argparse.Namespace) -> int:
    """Plan, run, and say what came out."""
    values = _values(arguments)
    config = RunConfig.from_dict({name: values[name] for name in CONFIG if name in values})
    with status("reading the shape of the source"):
        source = source_of(arguments.source, format=arguments.format, on_bad_row=arguments.on_bad_row)
    features = _features(values, source)
    split = _split(values)
    with status("finding the parts of the split, and calibrating"):
        plan = RunPlan.of(source, features, config, split)
    _announce(plan)
    if arguments.dry_run:
        return _say_how_long(plan, constant_time=arguments.constant_time, as_json=arguments.json)
    out = Path(arguments.out)
    key = key_for(arguments, out, finished=out / RECORD)
    means = {"memory": arguments.memory, "constant_time": arguments.constant_time}
    _run(plan, out, key, as_json=arguments.json, **means)
    if not arguments.json:
        data = " ".join(arguments.source) + (f" --format {arguments.format}" if arguments.format else "")
        print(f"check it: truebatch verify {out} --key {key_path(arguments, out)} --data {data}")
    return 0


def _say_how_long(plan: RunPlan, *, constant_time: bool, as_json: bool) -> int:
    """The end of a dry run: time, from steps taken now; and all of the plan as JSON."""
    with status("taking a few steps on made-up rows"):
        found = estimate(plan, constant_time=constant_time)
    print(f"time: {found}", file=sys.stderr)
    if as_json:
        seconds = {"step_seconds": found.step_s, "stepping_seconds": found.stepping_s}
        needs = {**seconds, "memory_bytes": plan.memory_bytes}
        print(json.dumps({**plan.as_dict(), "estimate": needs}, indent=2))
    return 0


def demo(arguments: argparse.Namespace) -> int:
    """The same, on the flights."""
    out = Path(arguments.out)
    with status("laying out the flights"):
        data = write_flights(out / "flights.parquet")
    config = dataclasses.replace(DEMO, epsilon=arguments.epsilon)
    with status("calibrating"):
        plan = RunPlan.of(open_source(data), flights_features(), config, Split())
    _announce(plan)
    where = out / "run"
    key = key_for(argparse.Namespace(key=None, public_test_seed=None), where, finished=where / RECORD)
    _run(plan, where, key, as_json=arguments.json)
    if not arguments.json:
        print(f"check it: truebatch verify {where} --data {data} --full")
    return 0


def _run(
    plan: RunPlan, out: Path, key: Key, *, as_json: bool, memory: int = 2**30, constant_time: bool = False
) -> None:
    """Carry out the plan and print what came out."""
    with shown_progress() as moved, show_progress() as stepped:
        watch = Watch(rows=moved, steps=stepped)
        record = carry_out(plan, out, key, memory=memory, constant_time=constant_time, watch=watch)
    report = write_report(record, out)
    if as_json:
        print(json.dumps(record.public(), indent=2))
        return
    print(record.fields["training"]["claim"])
    for name, value in record.fields["metrics"].items():
        print(f"{name.replace('_', ' ')}: {value:.4f}")
    print(f"report: {report}")


def verify(arguments: argparse.Namespace) -> int:
    """Make every check that can be made, and say what was found."""
    directory = Path(arguments.directory)
    data: Source | None = None
    if arguments.data:
        data = source_of(arguments.data, format=arguments.format, on_bad_row=arguments.on_bad_row)
    key = key_for(arguments, directory, finished=directory / RECORD)
    with status("checking"):
        checks = check_run(directory, key, data=data, full=arguments.full)
    failed = [check for check in checks if check.outcome == FAILED]
    if arguments.json:
        found = [{"check": c.name, "outcome": c.outcome, "detail": c.detail} for c in checks]
        print(json.dumps({"holds": not failed, "checks": found}, indent=2))
    else:
        for check in checks:
            print(f"{check.outcome:<12}  {check.name}: {check.detail}")
        print("the run does NOT hold" if failed else "everything that was checked holds")
    return 1 if failed else 0


def _values(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options over the config file's."""
    given = vars(arguments)
    values = {name: given[name] for name in (*CONFIG, *_DATA) if given.get(name) is not None}
    if arguments.config is None:
        return _complete(values)
    stated = read_config(Path(arguments.config))
    for some, others in _EITHER:
        for given_here, overruled in ((some, others), (others, some)):
            if values.keys() & set(given_here):
                for name in overruled:
                    stated.pop(name, None)
    return _complete({**stated, **values})


def _complete(values: dict[str, Any]) -> dict[str, Any]:
    if "batch_size" not in values:
        raise InvalidArgument("a run needs a batch size; got none.", hint="give --batch-size, as in 1024.")
    return values


def _features(values: dict[str, Any], source: Source) -> Features:
    """The columns that were named, or what the schema lets one infer."""
    label = values.get("label", "label")
    more = {name: values[name] for name in ("buckets", "positive") if name in values}
    if "numeric" not in values and "categorical" not in values:
        left_out = [*values.get("leave_out", ())]
        if values.get("split_by") in source.schema.names:  # what parts rows is no feature unless it is named
            left_out.append(values["split_by"])
        try:
            return Features.infer(source.schema, label=label, leave_out=left_out, **more)
        except InvalidArgument as error:
            if error.hint is None or "leave_out=" not in error.hint:
                raise
            raise InvalidArgument(
                error.message,
                hint="name the columns by --numeric and --categorical, or --leave-out that one.",
            ) from None
    numeric, categorical = tuple(values.get("numeric", ())), tuple(values.get("categorical", ()))
    features = Features(label=label, numeric=numeric, categorical=categorical, **more)
    features.require(source.schema)
    return features


def _split(values: dict[str, Any]) -> Split | SplitBy:
    """By shares of the rows, or by a column."""
    shares = {name: values[name] for name in _SHARES if name in values}
    edges = {name: str(values[name]) for name in _EDGES if name in values}
    if "split_by" not in values:
        if edges:
            raise InvalidArgument(
                f"{' and '.join(edges)} need the column that they are values of; got no split_by.",
                hint="give --split-by COLUMN.",
            )
        return Split(**{name.removesuffix("_share"): value for name, value in shares.items()})
    if shares:
        raise InvalidArgument(f"a split is by shares or by a column; got {', '.join(shares)} and split_by.")
    return SplitBy(column=values["split_by"], **edges)


def _announce(plan: RunPlan) -> None:
    """What will be done, before it is."""
    spec, features = plan.spec, plan.features
    tests = [
        f"{r.num_rows:,} {n}" for r, n in ((plan.valid, "validate"), (plan.test, "test")) if r is not None
    ]
    lines = [
        f"rows: {spec.num_examples:,} train" + "".join(f", {t}" for t in tests),
        f"label: {features.label}; numeric: {', '.join(features.numeric) or 'none'}; "
        f"categorical: {', '.join(features.categorical) or 'none'}",
        f"model: {plan.config.model}, {plan.claim.num_parameters:,} parameters; about "
        f"{plan.memory_bytes / 1e9:.2g} GB of memory",
        f"batches: {spec}; {'gathered from prepared rows' if plan.gathers else 'written by scatter'}",
        f"claim: {plan.claim}",
    ]
    print("\n".join(lines), file=sys.stderr)


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
    with Bars(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(name, total=None)

        def watch(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total, description=f"{name}: {what}")

        yield watch
