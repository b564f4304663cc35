"""What `truebatch audit` does, from its options on."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from truebatch.accounting import Interval
from truebatch.audit import REFUTED, Progress, RunAudit, audit_run
from truebatch.errors import InvalidArgument
from truebatch.experiments.buffer_figures import TRIALS, audit_buffers, require_figures, write_buffers
from truebatch.specs import as_dict


def audit(arguments: argparse.Namespace) -> int:
    """Attack the step, print what that proves; 1 when the claim is refuted."""
    if arguments.minutes <= 0:
        raise InvalidArgument(f"minutes must be above 0; got minutes={arguments.minutes:g}.")
    claim = arguments.claimed_epsilon
    if claim is not None and claim < 0:
        raise InvalidArgument(f"claimed epsilon must be 0 or more; got {claim:g}.")
    with _shown() as watch, _stopped_by_interrupt() as stop:
        result = audit_run(
            Path(arguments.directory),
            delta=arguments.delta,
            claimed_epsilon=claim,
            trials=arguments.trials,
            confidence=arguments.confidence,
            attacks=None if arguments.attack is None else (arguments.attack,),
            seed=arguments.seed,
            seconds=60 * arguments.minutes,
            watch=watch,
            stop=stop,
        )
    if arguments.json:
        print(json.dumps(result.as_dict(), indent=2, allow_nan=False))
    else:
        _print(result)
    return 1 if result.audit.verdict == REFUTED else 0


def figure(directory: Path, *, trials: int | None) -> None:
    """Audit the buffer shuffle at every size of its buffer, and draw what comes of it."""
    require_figures()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty()
    with Bars(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bars:
        task = bars.add_task("audits", total=None)

        def watch(done: int, total: int, what: str) -> None:
            bars.update(task, completed=done, total=total, description=what)

        found = audit_buffers(trials=trials or TRIALS, watch=watch)
    for path in write_buffers(found, directory):
        print(path)


def _print(result: RunAudit) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
    found, recorded = result.audit, result.recorded

    def say(line: str) -> None:
        console.print(line, soft_wrap=True, markup=False)

    spec = as_dict(found.spec)
    name = str(spec.pop("sampler")).replace("_", " ")
    numbers = ", ".join(f"{what} = {value:,}" for what, value in spec.items())
    say(f"audited: the training step, by {recorded.road}, on batches of {name}: {numbers},")
    say(f"  sigma = {found.sigma:.6g}, clip norm = {found.clip_norm:g}; test keys of seed {found.seed}")
    for line in result.not_audited():
        say(f"not audited: {line}")
    say("")
    console.print(_table(result))
    say(f"epsilon at delta = {found.delta:g}, zero-out adjacency:")
    say(f"  at least {found.epsilon:.4g}, by this audit, with {100 * found.confidence:g} % confidence")
    for line in _proven(result.proven, found.spec != recorded.spec):
        say(f"  {line}")
    if found.claimed_epsilon is not None:
        wrong = f" (the noise is that of {recorded.accounted_as})" if recorded.accounted_as else ""
        say(f"the claim of epsilon = {found.claimed_epsilon:.6g}{wrong} is {found.verdict}")


def _table(result: RunAudit) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("attack", "runs", "canaries a run", "likelier", "seen there", "seen on the neighbour"):
        table.add_column(heading, justify="left" if heading in ("attack", "likelier") else "right")
    table.add_column("epsilon at least", justify="right")
    for finding in result.audit.findings:
        j = finding.judgement
        table.add_row(
            finding.attack,
            f"{finding.runs:,}",
            f"{finding.canaries_per_run:,}",
            "with the canary" if j.event.with_canary else "zeroed out",
            f"{j.likely:,} of {j.likely_trials:,}",
            f"{j.rare:,} of {j.rare_trials:,}",
            f"{j.epsilon:.4g}",
        )
    return table


def _proven(ends: Interval | None, of_all_steps: bool) -> list[str]:
    steps = ", of all steps" if of_all_steps else ""
    if ends is None:
        return ["nothing is proven for this sampler"]
    lines = []
    if ends.lower.value is not None:
        lines.append(f"at least {ends.lower.value:.4g}, proven{steps}: {ends.lower.source}")
    if ends.upper.value is not None:
        lines.append(f"at most {ends.upper.value:.4g}, proven{steps}: {ends.upper.source}")
    return lines


@contextmanager
def _shown() -> Iterator[Callable[[Progress], None]]:
    """A bar for each attack, on a terminal; a line at each tenth of an attack elsewhere."""
    if not sys.stderr.isatty():
        yield _line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def watch(progress: Progress) -> None:
            if progress.attack not in tasks:
                tasks[progress.attack] = bars.add_task(f"attack {progress.attack}", total=progress.total)
            bars.update(tasks[progress.attack], completed=progress.done)

        yield watch


def _line(progress: Progress) -> None:
    if 10 * progress.done // progress.total > 10 * (progress.done - 1) // progress.total:
        print(f"attack {progress.attack}: {progress.done:,} of {progress.total:,} runs", file=sys.stderr)


@contextmanager
def _stopped_by_interrupt() -> Iterator[Callable[[], bool]]:
    """The first interrupt ends the trials, and what there is gets judged; the second one is Python's own."""
    seen = False

    def handle(signum: int, _: Any) -> None:
        nonlocal seen
        seen = True
        signal.signal(signum, before)

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield lambda: seen
    finally:
        signal.signal(signal.SIGINT, before)
