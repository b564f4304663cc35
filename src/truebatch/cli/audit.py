"""`truebatch audit`: the options; what they set in motion is in auditing.py."""

import argparse
from typing import Any

from truebatch.cli.request import count, number

_HELP = "an empirical lower bound on a run's epsilon: attack its training step, and judge its claim"
_EPILOG = """\
Runs the training step of RUN's record (sampler, batch size, steps, noise, clip norm) many times on two
neighbouring data sets of worst-case gradients, with fresh public test keys, and tells them apart by what is
released. What it proves holds with the stated confidence; a claim below it is refuted, with exit code 1.
A claim that is not refuted is not thereby proven: that is what 'truebatch account' is for. Some hundred
trials see little at a delta of 1e-6; but a sampler and its noise claim an epsilon at every delta, and
--delta chooses where that is judged. Interrupted (Ctrl-C), it says what it has.

examples:
  truebatch audit run
  truebatch audit run --delta 0.2 --minutes 20
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "audit",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="RUN", help="the run's directory")
    parser.add_argument("--delta", type=number, metavar="d", help="where to judge (default: the record's)")
    parser.add_argument(
        "--claimed-epsilon",
        type=number,
        metavar="e",
        help="the claim to judge (default: the record's, or its sampler's at --delta)",
    )
    parser.add_argument(
        "--trials",
        type=count,
        metavar="N",
        help="of each attack on each data set (default: 1,000, or 20,000 where a run holds many)",
    )
    parser.add_argument(
        "--attack",
        choices=("alone", "crowd"),
        help="only this one: the canary alone, or in a crowd (default: what suits the sampler)",
    )
    parser.add_argument(
        "--confidence", type=number, default=0.95, metavar="x", help="of the bound (default: %(default)s)"
    )
    parser.add_argument(
        "--minutes", type=number, default=5.0, metavar="m", help="after which it ends (default: %(default)g)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="of the test keys (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Audit and say what was found."""
    # JAX takes seconds to load: only who works with runs waits.
    from truebatch.cli.auditing import audit  # noqa: PLC0415

    return audit(arguments)
