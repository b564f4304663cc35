"""`truebatch demo`: the main job on the flights that left New York in 2013."""

import argparse
from typing import Any

from truebatch.cli.request import number

_HELP = "the main job on real data that comes with it, with a report to look at"
_EPILOG = """\
Trains on every flight that left New York in 2013 (327,346 of them, 26 categories and 13 numbers, public data)
whether it arrives more than 15 minutes late, with (epsilon, delta) = (5, 1e-6) on truncated Poisson batches;
about a minute on two cores. Nothing is downloaded. DIR gets the data, the run and its report.

example:
  truebatch demo --out demo
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "demo",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", default="demo", metavar="DIR", help="directory (default: %(default)s)")
    parser.add_argument("--epsilon", type=number, default=5.0, metavar="e", help="default: 5")
    parser.add_argument("--json", action="store_true", help="the record's public part on stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the data, train, report."""
    # JAX takes seconds to load: only who trains waits.
    from truebatch.cli.job import demo  # noqa: PLC0415

    return demo(arguments)
