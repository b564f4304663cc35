"""What `truebatch batches` does: from its options to a source, a spec, a key and an engine."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from truebatch import accounting
from truebatch.batching import Engine, Job, Plan, choose_plan, make_batches
from truebatch.batching.manifest import MANIFEST
from truebatch.cli.keys import key_for, key_path
from truebatch.cli.progress import shown_progress, status
from truebatch.cli.request import make_spec, num_steps_of
from truebatch.cli.sources import source_of
from truebatch.data import RowRange, Source
from truebatch.errors import InvalidArgument, InvalidSpec
from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import Sampler, TruncatedPoisson, as_dict


def make(arguments: argparse.Namespace) -> int:
    """Make the batches, or say what would be made, and print the outcome."""
    _require_sound(arguments)
    with status("reading the shape of the source"):
        source = _source(arguments)
    spec = _spec(arguments, source)
    job = Job(spec=spec, schema=source.schema)
    job.shape  # noqa: B018  # a source or spec that has no shape is refused before a key is made
    plan = _plan(arguments, source, job)
    print(f"{plan.name} plan, {plan.engine.name} engine: {plan.reason}", file=sys.stderr)
    goal = _goal(arguments, spec)
    if arguments.dry_run:
        _print(arguments, job, plan, goal, made=None)
        return 0
    out = Path(arguments.out)
    key = key_for(arguments, out, finished=out / MANIFEST)
    with shown_progress() as advance:
        manifest = make_batches(
            source,
            spec,
            arguments.out,
            key,
            engine=plan.engine,
            memory=arguments.memory,
            workers=arguments.workers,
            advance=advance,
        )
    _print(arguments, job, plan, goal, made=sum(entry["bytes"] for entry in manifest["files"]))
    return 0


def _require_sound(arguments: argparse.Namespace) -> None:
    if (arguments.epsilon is None) != (arguments.delta is None):
        raise InvalidArgument("--epsilon and --delta go together; got one of the two.")
    if arguments.delta is not None and not 0 < arguments.delta < 1:
        raise InvalidArgument(f"delta must be above 0 and below 1; got delta={arguments.delta:g}.")
    if arguments.epsilon is not None and arguments.epsilon < 0:
        raise InvalidArgument(f"epsilon must be 0 or more; got epsilon={arguments.epsilon:g}.")
    if arguments.passed_on and arguments.engine == "local":
        raise InvalidArgument(
            f"what follows -- is for Beam or Spark; got {arguments.passed_on[0]!r} for the local engine.",
            hint="add --engine beam or --engine spark.",
        )
    if arguments.plan != "auto" and arguments.engine != "local":
        raise InvalidArgument(f"--plan is the local engine's; got it with --engine {arguments.engine}.")
    if arguments.master is not None and arguments.engine != "spark":
        raise InvalidArgument(f"--master is Spark's; got it with --engine {arguments.engine}.")


def _source(arguments: argparse.Namespace) -> Source:
    source = source_of(arguments.source, format=arguments.format, on_bad_row=arguments.on_bad_row)
    return source if arguments.rows is None else RowRange(source, 0, arguments.rows)


def _spec(arguments: argparse.Namespace, source: Source) -> Sampler:
    n, b = source.num_rows, arguments.batch_size
    T, cap = num_steps_of(arguments, n, b), arguments.max_batch_size
    if arguments.sampler != TruncatedPoisson.name and cap is not None:
        raise InvalidArgument(f"--max-batch-size is truncated Poisson's; got it for {arguments.sampler}.")
    if arguments.sampler == TruncatedPoisson.name and cap is None and arguments.epsilon is None:
        raise InvalidArgument(
            "the cap B of truncated Poisson batches must follow from something; got neither "
            "--epsilon and --delta nor --max-batch-size.",
            hint="give the goal, as in --epsilon 5 --delta 2.7e-8, or the cap itself.",
        )
    try:
        return make_spec(arguments.sampler, n, b, T, cap, arguments.epsilon or 0.0, arguments.delta or 0.5)
    except InvalidSpec as error:
        if n % b and "must divide" in error.message:
            raise InvalidSpec(
                error.message, hint=f"pass --rows {n // b * b} to leave out the last {n % b} rows."
            ) from None
        raise


def _plan(arguments: argparse.Namespace, source: Source, job: Job) -> Plan:
    if arguments.engine == "local":
        return choose_plan(source, job, wanted=arguments.plan)
    engine = _cluster_engine(arguments.engine, arguments.runner, arguments.master, arguments.passed_on)
    where = arguments.runner if arguments.engine == "beam" else arguments.master or "local[*]"
    return Plan(name="scatter", engine=engine, reason=f"asked for, on {where}")


def _cluster_engine(name: str, runner: str, master: str | None, options: Sequence[str]) -> Engine:
    # Extras: each module says what to install where its package is missing.
    if name == "beam":
        from truebatch.batching.beam import BeamEngine  # noqa: PLC0415

        return BeamEngine(options=(f"--runner={runner}", *options))
    from truebatch.batching.spark import SparkEngine  # noqa: PLC0415

    return SparkEngine(master=master or "local[*]", config=_spark_config(options))


def _spark_config(options: Sequence[str]) -> dict[str, str]:
    config = {}
    for option in options:
        name, equals, value = option.removeprefix("--conf").lstrip("= ").partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidArgument(
                f"what follows -- must be settings of Spark, as spark.executor.memory=2g; got {option!r}."
            )
        config[name] = value
    return config


def _goal(arguments: argparse.Namespace, spec: Sampler) -> dict[str, Any] | None:
    """What noise the goal needs with these batches."""
    if arguments.epsilon is None:
        return None
    with status("calibrating"):
        sigma = accounting.sigma(spec, epsilon=arguments.epsilon, delta=arguments.delta)
    value = sigma.upper.value
    return {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "adjacency": str(sigma.upper.adjacency),
        "sigma": None if value is None else float(value),
    }


def _print(
    arguments: argparse.Namespace, job: Job, plan: Plan, goal: dict[str, Any] | None, *, made: int | None
) -> None:
    shape, spec = job.shape, job.spec
    size = made if made is not None else spec.num_steps * shape.batch_bytes
    if arguments.json:
        result = {
            "directory": arguments.out,
            "written": made is not None,
            "spec": as_dict(spec),
            "fingerprint": schedule(spec, Key.for_tests(0)).fingerprint(),
            "batches": spec.num_steps,
            "rows_per_batch": shape.rows,
            "files": shape.num_parts,
            "bytes": size,
            "plan": {"name": plan.name, "engine": plan.engine.name, "reason": plan.reason},
            "key": None
            if arguments.public_test_seed is not None
            else str(key_path(arguments, Path(arguments.out))),
            "goal": goal,
        }
        print(json.dumps(result, indent=2))
        return
    would = "" if made is not None else "would write "
    print(
        f"{would}{spec.num_steps:,} batches of {shape.rows:,} rows each ({spec.batch_size:,} expected) "
        f"in {shape.num_parts:,} files, {size / 1e9:.3g} GB: {arguments.out}"
    )
    if goal is not None and goal["sigma"] is not None:
        print(
            f"epsilon = {goal['epsilon']:g} at delta = {goal['delta']:g} ({goal['adjacency']}) with these "
            f"batches needs sigma = {goal['sigma']:.6g}"
        )
