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

_HELP = "a figure of the paper, computed anew: PNG, SVG and the numbers as CSV"
_EPILOG = """\
example:
  truebatch figure sigma-by-batch-size --out figures
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "figure",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = "; ".join(f"{name}: {figure.title}" for name, figure in FIGURES.items())
    parser.add_argument("name", metavar="NAME", help=f"one of: {names}; or 'all'")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="directory (default: %(default)s)")
    parser.add_argument(
        "--workers", type=count, default=os.cpu_count() or 1, help="processes (default: all cores)"
    )
    parser.add_argument("--no-cache", action="store_true", help="compute every point anew")
    parser.add_argument("--full", action="store_true", help="also the bounds that take minutes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Draw one figure, or all."""
    names = list(FIGURES) if arguments.name == "all" else [arguments.name]
    for name in names:
        if name not in FIGURES:
            raise InvalidArgument(f"figure must be one of {', '.join(FIGURES)}, all; got {name!r}.")
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
