"""`truebatch verify`: check a run's record against its key, its files and its data."""

import argparse
from typing import Any

from truebatch.cli.batches import add_key_options

_HELP = "check a run's record against the key, the files and the data"
_EPILOG = """\
Derives the schedule again from the key and checks the record's seal, sampler, noise, claim, files and data:
what was checked is said, and what could not be. --full reads every file and draws every batch; without it,
steps and rows chosen at random stand for all. Exit code 1 when something does not hold.

example:
  truebatch verify run --key run.key --data flights.parquet --full
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "verify",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="RUN", help="the run's directory")
    add_key_options(parser, default="RUN.key")
    parser.add_argument("--data", nargs="+", metavar="SOURCE", help="the source that the run was made from")
    parser.add_argument("--format", choices=("parquet", "arrow", "csv", "tsv", "criteo", "prepared"))
    parser.add_argument("--on-bad-row", choices=("error", "skip"), default="error")
    parser.add_argument("--full", action="store_true", help="every batch and byte, not some")
    parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check and say what was found."""
    # JAX takes seconds to load: only who works with runs waits.
    from truebatch.cli.job import verify  # noqa: PLC0415

    return verify(arguments)
