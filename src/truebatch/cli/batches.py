"""`truebatch batches`: the options; what they set in motion is in making.py."""

import argparse
import re
from typing import Any

from truebatch.cli.request import count, number, sampler_name
from truebatch.specs import SAMPLERS, TruncatedPoisson

_HELP = "the batches of one spec, written as Arrow files of one shape"
_EPILOG = """\
Reads SOURCE (files, a pattern, a directory; rows in one stable order) and writes T batches of B rows each:
the rows that the secret key drew, then padding of zeros with weight 0. The cap B follows from --epsilon and
--delta by the paper's rule, or is given. The key is made where its file is missing; whoever holds it knows
who is in which batch, so keep it like the data. Files are readable by their owner alone.

Stopped at any moment, the same command goes on. A directory without manifest.json is not finished.
What follows -- is for Beam's runner or for Spark, as they spell it.

examples:
  truebatch batches data/*.parquet --out batches --batch-size 65536 --epochs 1 --epsilon 5 --delta 2.7e-8
  truebatch batches train.txt.gz --format criteo --out batches --batch-size 65536 --epochs 1 \\
      --max-batch-size 67754 --dry-run
  truebatch batches data --out /shared/batches --batch-size 65536 --epochs 5 --epsilon 5 --delta 2.7e-8 \\
      --engine beam --runner FlinkRunner -- --flink_master=localhost:8081
"""

_UNITS = {"": 1, **{unit: 1000 ** (i + 1) for i, unit in enumerate("kmgt")}}
_UNITS |= {f"{unit}i": 1024 ** (i + 1) for i, unit in enumerate("kmgt")}


def byte_count(text: str) -> int:
    """A number of bytes, for argparse: 800MB, 1GiB, 1073741824.

    >>> byte_count("1.5 GiB") == 3 * 2**29
    True
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?i?)b?\s*", text.lower())
    if match is None or match[1].count(".") > 1 or match[1] == "." or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"a size such as 800MB or 1GiB is needed; got {text!r}")
    size = float(match[1]) * _UNITS[match[2]]
    if size > 2**62:
        raise argparse.ArgumentTypeError(f"a size of at most 2^62 bytes is needed; got {text!r}")
    return int(size)


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "batches",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="files, a pattern or a directory")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the batches go: a new directory")
    _add_data_options(parser)
    _add_spec_options(parser)
    add_key_options(parser, default="DIR.key")
    _add_means_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
    parser.set_defaults(run=run)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the data")
    group.add_argument(
        "--format",
        choices=("parquet", "arrow", "csv", "tsv", "criteo", "prepared"),
        help="what the files are (default: what their names say); criteo is the layout of its train.txt",
    )
    group.add_argument(
        "--on-bad-row",
        choices=("error", "skip"),
        default="error",
        help="a line of text that is not a row: stop and name it (default), or skip and count it; ids are "
        "positions among the rows kept",
    )
    group.add_argument("--rows", type=count, metavar="N", help="take the first N rows of the source only")


def _add_spec_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the batches")
    group.add_argument("--batch-size", type=count, required=True, metavar="b", help="target batch size b")
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=number, metavar="E", help="epochs; the steps are E round(n/b)")
    length.add_argument("--steps", type=count, metavar="T", help="steps, instead of epochs")
    group.add_argument("--max-batch-size", type=count, metavar="B", help="cap of truncated Poisson batches")
    group.add_argument(
        "--epsilon", type=number, metavar="e", help="the goal; with --delta it gives the cap B"
    )
    group.add_argument("--delta", type=number, metavar="d", help="the goal's delta")
    group.add_argument(
        "--sampler",
        type=sampler_name,
        default=TruncatedPoisson.name,
        metavar="NAME",
        help=f"how batches are drawn (default: %(default)s): {', '.join(SAMPLERS)}",
    )


def add_key_options(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Which key draws the batches."""
    group = parser.add_argument_group("the key").add_mutually_exclusive_group()
    group.add_argument(
        "--key", metavar="FILE", help=f"the secret key, made where missing (default: {default})"
    )
    group.add_argument(
        "--public-test-seed",
        type=int,
        metavar="N",
        help="a key that everyone can rebuild: for tests and public data; what is written says so",
    )


def _add_means_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the means, which change no byte of the result")
    group.add_argument(
        "--engine", choices=("local", "beam", "spark"), default="local", help="default: %(default)s"
    )
    group.add_argument(
        "--plan",
        choices=("auto", "gather", "scatter"),
        default="auto",
        help="local engine: random reads (gather), one pass in order (scatter), or the one that suits",
    )
    group.add_argument(
        "--memory", type=byte_count, default=2**30, metavar="SIZE", help="budget of a machine (default: 1GiB)"
    )
    group.add_argument("--workers", type=count, metavar="K", help="threads (default: all cores)")
    group.add_argument(
        "--runner",
        default="DirectRunner",
        metavar="NAME",
        help="Beam: DirectRunner (default), FlinkRunner, SparkRunner or DataflowRunner",
    )
    group.add_argument("--master", metavar="URL", help="Spark: local[2], spark://host:7077, ...")


def run(arguments: argparse.Namespace) -> int:
    """Make the batches and say what was made."""
    # Arrow takes as long to load as the rest of the command line: only who needs it waits.
    from truebatch.cli.making import make  # noqa: PLC0415

    return make(arguments)
