"""`truebatch figure`: the paper's figures and tables, with the numbers beside them."""

import argparse
import os
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from truebatch.cli.request import count
from truebatch.errors import InvalidArgument
from truebatch.experiments import FIGURES, draw_figure

_HELP = "a figure of the paper, drawn anew: PNG, SVG and the numbers as CSV"
_EPILOG = """\
The figures of sigma are computed. Those of AUC are drawn from the runs of `truebatch study`, as far as there
are any: --runs names its directory, or the file that `truebatch study --bundle` makes of it. That of shuffle
buffers audits the real training step, which takes some minutes.

examples:
  truebatch figure sigma-by-batch-size --out figures
  truebatch figure auc-by-epsilon --runs study --out figures
"""
# Drawn from runs; their modules load JAX, which takes seconds.
_FROM_RUNS = {"auc-by-batch-size": "Test AUC by batch size", "auc-by-epsilon": "Test AUC by epsilon"}
# From audits, which load JAX too.
_AUDITED = {"audit-buffer-shuffle": "What a shuffle buffer of K rows hides"}


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "figure",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    titles = {name: figure.title for name, figure in FIGURES.items()} | _FROM_RUNS | _AUDITED
    names = "; ".join(f"{name}: {title}" for name, title in titles.items())
    parser.add_argument("name", metavar="NAME", help=f"one of: {names}; or 'all' that are computed")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="directory (default: %(default)s)")
    parser.add_argument(
        "--runs",
        type=Path,
        metavar="DIR",
        help="a study's directory, or its bundle, for figures of AUC (default: study)",
    )
    parser.add_argument(
        "--workers", type=count, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument(
        "--trials", type=count, metavar="N", help="of each audit on each data set (default: 1,500)"
    )
    parser.add_argument("--no-cache", action="store_true", help="compute every point anew")
    parser.add_argument("--full", action="store_true", help="also the bounds that take minutes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw one figure, or all."""
    if arguments.name in _FROM_RUNS:
        from truebatch.cli.studying import figure  # noqa: PLC0415

        figure(arguments.name, arguments.runs or Path("study"), arguments.out)
        return 0
    if arguments.name in _AUDITED:
        from truebatch.cli.auditing import figure as audited  # noqa: PLC0415

        audited(arguments.out, trials=arguments.trials)
        return 0
    names = list(FIGURES) if arguments.name == "all" else [arguments.name]
    for name in names:
        if name not in FIGURES:
            known = ", ".join((*FIGURES, *_FROM_RUNS, *_AUDITED))
            raise InvalidArgument(f"figure must be one of {known}, all; got {name!r}.")
    if arguments.runs is not None:
        raise InvalidArgument(
            f"--runs is for figures of AUC; got it for {arguments.name!r}, which is computed."
        )
    for name in names:
        for path in _draw(name, arguments):
            print(path)
    return 0


def _draw(name: str, arguments: argparse.Namespace) -> tuple[Path, ...]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{name}: {what}")

        with tempfile.TemporaryDirectory() if arguments.no_cache else nullcontext() as fresh:
            return draw_figure(
                name,
                out_dir=arguments.out,
                cache_dir=None if fresh is None else Path(fresh),
                workers=arguments.workers,
                progress=advance,
                dear=arguments.full,
            )
