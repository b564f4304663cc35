"""What `truebatch train` and `truebatch verify` do, from their options on."""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from truebatch.cli.asked import features_of, split_of, values_of
from truebatch.cli.keys import key_for, key_path
from truebatch.cli.progress import shown_progress, status
from truebatch.cli.sources import source_of
from truebatch.cli.train import CONFIG
from truebatch.data import Source, open_source
from truebatch.experiments.demo import DEMO
from truebatch.experiments.flights import flights_features, write_flights
from truebatch.keys import Key
from truebatch.records import RECORD, RunConfig, RunPlan, Split, Watch, write_report
from truebatch.records import run as carry_out
from truebatch.records import verify as check_run
from truebatch.records.estimate import estimate
from truebatch.records.verify import FAILED
from truebatch.training import show_progress


def train(arguments: argparse.Namespace) -> int:
    """Plan, run, and say what came out."""
    values = values_of(arguments)
    config = RunConfig.from_dict({name: values[name] for name in CONFIG if name in values})
    with status("reading the shape of the source"):
        source = source_of(arguments.source, format=arguments.format, on_bad_row=arguments.on_bad_row)
    features = features_of(values, source)
    split = split_of(values)
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
