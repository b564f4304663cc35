"""The entry point: pick the subcommand, turn our errors into one line and exit code 2."""

import argparse
import errno
import io
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
_AGAIN = "see to it, and run the same command again: what was begun goes on where it stopped."
_WAY_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _AGAIN.replace("see to it", "make room")),
    **dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), "choose a place that can be written to."),
}
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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files and columns may be any bytes
    arguments = _parsed(list(sys.argv[1:] if argv is None else argv))
    if argv is None and arguments.command in _TRAINS:
        restart_with_huge_pages()
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of stdout left; nothing of ours went wrong
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (TruebatchError, ModuleNotFoundError, OSError) as error:
        message, hint = _said(error)
        print(f"truebatch {arguments.command}: {message}", file=sys.stderr)
        if hint:
            print(f"Hint: {hint}", file=sys.stderr)
        return 2
    return code


def _parsed(words: list[str]) -> argparse.Namespace:
    ours = words[: words.index("--")] if "--" in words else words
    parser = build_parser()
    for word in ours:
        if word.endswith("=--"):  # argparse makes an empty list of it, which is no option's kind
            parser.error(f"an option needs a value; got {word!r}")
    arguments = parser.parse_args(ours)
    arguments.passed_on = words[len(ours) + 1 :]
    if arguments.passed_on and arguments.run is not batches.run:
        parser.error(f"nothing may follow -- here; got {arguments.passed_on[0]!r}")
    return arguments


def _said(error: Exception) -> tuple[str, str | None]:
    """What is wrong, and a way out; what is neither the user's nor the machine's fault is raised again."""
    if isinstance(error, TruebatchError):
        return error.message, error.hint
    if isinstance(error, OSError) and error.strerror is not None:
        where = "" if error.filename is None else f" for {str(error.filename)!r}"
        return f"the system says: {error.strerror}{where}.", _WAY_OUT.get(error.errno or 0, _AGAIN)
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _OF_TRAINING:
        return f"this command needs {error.name}.", "pip install 'truebatch[train]'"
    raise error
