"""`truebatch train`: the options; what they set in motion is in training.py."""

import argparse
from typing import Any

from truebatch.cli.batches import add_key_options, byte_count
from truebatch.cli.request import count, number, sampler_name
from truebatch.specs import SAMPLERS

_HELP = "a model with a guarantee from a source of rows: calibrate, sample, train, evaluate, record"
_EPILOG = """\
Rows are taken in the order of the source, oldest first: the first 80% train, the next 10% validate, the rest
test; --split-by COLUMN takes another split. Columns that are not named are inferred (numbers are numeric,
text is categorical), and shown before the start. RUN gets run.json (the public record), report.html,
curves.csv, and private files: prepared rows and checkpoints; the key is beside it. Stopped at any moment, the
same command goes on; --dry-run says what it would do, and how long the steps will take on this machine.

--config FILE is TOML, or YAML (.yaml, .yml), with the same names as the options, hyphens as underscores;
options win.

examples:
  truebatch train flights.parquet --epsilon 5 --delta 1e-6 --batch-size 1024 --epochs 1 --out run
  truebatch train train.txt --format criteo --epsilon 5 --delta 2.7e-8 --batch-size 65536 --epochs 1 --out run
"""

# Options of the run itself, by their names in RunConfig; left out of the namespace unless they are given.
CONFIG = (
    "batch_size", "epochs", "steps", "sampler", "max_batch_size", "epsilon", "delta", "sigma", "clip_norm",
    "private", "accounted_as", "tuning_runs", "model", "dimension", "hidden", "optimizer", "learning_rate",
    "schedule", "seed",
)  # fmt: skip


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "train",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="files, a pattern or a directory")
    parser.add_argument("--out", required=True, metavar="RUN", help="the run's directory, new or begun")
    parser.add_argument("--config", metavar="FILE", help="a TOML or YAML file with the options")
    _add_data_options(parser)
    _add_run_options(parser)
    _add_model_options(parser)
    add_key_options(parser, default="RUN.key")
    parser.add_argument(
        "--memory", type=byte_count, default=2**30, metavar="SIZE", help="budget for batches (default: 1GiB)"
    )
    parser.add_argument(
        "--constant-time",
        action="store_true",
        help="work through the padding too, so that a step's duration does not tell its batch's size",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    parser.add_argument("--json", action="store_true", help="the record's public part on stdout")
    parser.set_defaults(run=run)


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the data")
    group.add_argument("--format", choices=("parquet", "arrow", "csv", "tsv", "criteo", "prepared"))
    group.add_argument("--on-bad-row", choices=("error", "skip"), default="error")
    group.add_argument("--label", metavar="NAME", help="the column of labels (default: label)")
    group.add_argument("--positive", metavar="VALUE", help="the label's value that counts as 1")
    group.add_argument("--numeric", type=names, metavar="A,B,...", help="numeric columns")
    group.add_argument("--categorical", type=names, metavar="A,B,...", help="categorical columns")
    group.add_argument("--leave-out", type=names, metavar="A,B,...", help="columns that are no features")
    group.add_argument(
        "--buckets", type=count, metavar="K", help="hash buckets of a category (default: 61538)"
    )
    group.add_argument(
        "--train-share", type=number, metavar="X", help="first rows, for training (default: 0.8)"
    )
    group.add_argument(
        "--valid-share", type=number, metavar="X", help="next rows, to validate (default: 0.1)"
    )
    group.add_argument(
        "--split-by", metavar="COLUMN", help="a column of train, valid and test, instead of shares; or a time"
    )
    group.add_argument("--valid-from", metavar="V", help="with a time: its value from which rows validate")
    group.add_argument("--test-from", metavar="V", help="with a time: its value from which rows test")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the run", argument_default=argparse.SUPPRESS)
    group.add_argument("--batch-size", type=count, metavar="b", help="target batch size b")
    length = group.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=number, metavar="E", help="epochs; the steps are E round(n/b)")
    length.add_argument("--steps", type=count, metavar="T", help="steps, instead of epochs")
    group.add_argument("--epsilon", type=number, metavar="e", help="the goal; sigma follows from it")
    group.add_argument("--delta", type=number, metavar="d", help="the goal's delta")
    group.add_argument("--sigma", type=number, metavar="s", help="the noise multiplier, instead of --epsilon")
    group.add_argument("--clip-norm", type=number, metavar="C", help="clip norm (default: 1)")
    group.add_argument(
        "--sampler",
        type=sampler_name,
        metavar="NAME",
        help=f"how batches are drawn (default: truncated_poisson): {', '.join(SAMPLERS)}",
    )
    group.add_argument("--max-batch-size", type=count, metavar="B", help="cap of truncated Poisson batches")
    group.add_argument(
        "--accounted-as",
        type=sampler_name,
        metavar="NAME",
        help="take the noise of another sampler: the common mistake, as a baseline without guarantee",
    )
    group.add_argument(
        "--tuning-runs",
        type=count,
        metavar="K",
        help="the goal is of K runs together, this one among them, of which the best is kept (default: 1)",
    )
    group.add_argument(
        "--no-privacy", dest="private", action="store_false", help="no noise: the run claims nothing"
    )


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and optimizer", argument_default=argparse.SUPPRESS)
    group.add_argument("--model", choices=("click", "linear"), help="default: click, the paper's")
    group.add_argument("--dimension", type=count, metavar="K", help="of embeddings (default: 48)")
    group.add_argument("--hidden", type=sizes, metavar="A,B,...", help="hidden layers (default: 598,598,598)")
    group.add_argument("--optimizer", choices=("adam", "adagrad", "sgd"), help="default: adam")
    group.add_argument("--learning-rate", type=number, metavar="X", help="default: 0.001")
    group.add_argument("--schedule", choices=("cosine", "constant"), help="of the rate (default: cosine)")
    group.add_argument("--seed", type=int, metavar="N", help="of the initial parameters, public (default: 0)")


def names(text: str) -> tuple[str, ...]:
    """Column names between commas, for argparse."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def sizes(text: str) -> tuple[int, ...]:
    """Whole numbers between commas, for argparse."""
    return tuple(count(part) for part in names(text))


def run(arguments: argparse.Namespace) -> int:
    """Train and say what came out."""
    # JAX takes seconds to load: only who trains waits.
    from truebatch.cli.job import train  # noqa: PLC0415

    return train(arguments)
