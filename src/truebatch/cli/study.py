"""`truebatch study`: the paper's training experiments, redone on a source."""

import argparse
from typing import Any

from truebatch.cli.request import count

_HELP = "the paper's experiments on training, redone: AUC by batch size and by epsilon, every sampler"
_EPILOG = """\
Trains every sampler at its own noise, shuffling with Poisson's noise (the common mistake), and without
privacy, with the learning rate chosen on validation rows, over several seeds, and draws the paper's Figure 3
(left and right) and Figure 4 (left). Without SOURCE: on the flights that come with the package, in some hours
on two cores. One file a run: stopped at any moment, the same command goes on. The data are taken to be
public. --bundle FILE trains nothing, and puts all runs of DIR into one file of JSON lines, from which
`truebatch figure` draws too.

examples:
  truebatch study --sweep auc-by-batch-size --out study
  truebatch study --out study --bundle runs.jsonl.gz
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "study",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="*", metavar="SOURCE", help="files, a pattern or a directory")
    parser.add_argument("--out", default="study", metavar="DIR", help="directory (default: %(default)s)")
    parser.add_argument("--format", choices=("parquet", "arrow", "csv", "tsv", "criteo", "prepared"))
    parser.add_argument("--on-bad-row", choices=("error", "skip"), default="error")
    parser.add_argument("--label", default="label", metavar="NAME", help="default: %(default)s")
    parser.add_argument(
        "--sweep", choices=("auc-by-batch-size", "auc-by-epsilon", "all"), default="all", help="default: all"
    )
    parser.add_argument("--seeds", type=count, metavar="K", help="seeds a point (default: 3)")
    parser.add_argument("--epochs", type=count, action="append", metavar="E", help="default: 1 and 5")
    parser.add_argument(
        "--batch-size", type=count, action="append", metavar="b", help="instead of the paper's"
    )
    parser.add_argument(
        "--model", choices=("linear", "click"), help="default: linear on the flights, else click"
    )
    parser.add_argument("--smoke", action="store_true", help="a few short runs, to see that all of it works")
    parser.add_argument("--bundle", metavar="FILE", help="DIR's runs as one file: .jsonl or .jsonl.gz")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the sweeps and draw them."""
    # JAX takes seconds to load: only who trains waits.
    from truebatch.cli.studying import bundle, study  # noqa: PLC0415

    return bundle(arguments) if arguments.bundle else study(arguments)
