"""The entry point: pick the subcommand, turn our errors into one line and exit code 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from truebatch.cli import account, audit, batches, calibrate, demo, figure, study, train, verify
from truebatch.cli.huge_pages import restart_with_huge_pages
from truebatch.errors import TruebatchError

_COMMANDS = (calibrate, account, batches, train, verify, audit, demo, study, figure)
# What commands that train import when they run: the packages of the extra `train`.
_OF_TRAINING = ("jax", "jaxlib", "optax")
_TRAINS = ("train", "demo", "study")

DESCRIPTION = """\
DP-SGD whose batches are what the accountant was told.

Results go to stdout (--json for machines), progress and warnings to stderr.
A bad request ends with exit code 2 and says the rule, the value and a way out.
"""


class Parser(argparse.ArgumentParser):
    """argparse, with errors on one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line."""
        self.exit(2, f"{self.prog}: {message}  (see '{self.prog} --help')\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; the reference page is generated from it."""
    parser = Parser(
        prog="truebatch", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"truebatch {version('truebatch')}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    for module in _COMMANDS:
        module.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 when it did what was asked, 2 for a bad request, 130 when interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    ours = words[: words.index("--")] if "--" in words else words
    parser = build_parser()
    arguments = parser.parse_args(ours)
    arguments.passed_on = words[len(ours) + 1 :]
    if arguments.passed_on and arguments.run is not batches.run:
        parser.error(f"nothing may follow -- here; got {arguments.passed_on[0]!r}")
    if argv is None and arguments.command in _TRAINS:
        restart_with_huge_pages()
    try:
        code: int = arguments.run(arguments)
    except TruebatchError as error:
        print(f"truebatch {arguments.command}: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"Hint: {error.hint}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _OF_TRAINING:
            raise
        print(f"truebatch {arguments.command}: this command needs {error.name}.", file=sys.stderr)
        print("Hint: pip install 'truebatch[train]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout left; nothing of ours went wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code
