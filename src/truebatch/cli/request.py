"""The options that calibrate and account share, and the specs they stand for."""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from truebatch.accounting import Adjacency, Interval, has_dearer_bounds, max_batch_size_by_rule
from truebatch.cli.progress import status
from truebatch.errors import (
    CalibrationFailed,
    InvalidArgument,
    InvalidSpec,
    TruebatchError,
    UnknownAnalysis,
)
from truebatch.specs import SAMPLERS, Sampler, TruncatedPoisson, nearest_multiple, steps_for_epochs

_WHOLE_EPOCHS = ("deterministic", "persistent_shuffle", "dynamic_shuffle", "balls_and_bins")


def number(text: str) -> float:
    """A finite float, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed; got {text!r}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"a finite number is needed; got {text!r}")
    return value


def count(text: str) -> int:
    """A whole number of at least 1, for argparse; 1_000 and 1e6 are understood."""
    try:
        value = int(text)
    except ValueError:
        as_float = number(text)
        if as_float != int(as_float):
            raise argparse.ArgumentTypeError(f"a whole number is needed; got {text!r}") from None
        value = int(as_float)
    if not 1 <= value <= 2**62:
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 2^62 is needed; got {text!r}")
    return value


def sampler_name(text: str) -> str:
    """One of the samplers; hyphens and underscores are the same."""
    name = text.strip().lower().replace("-", "_")
    if name not in SAMPLERS:
        known = ", ".join(SAMPLERS)
        raise argparse.ArgumentTypeError(f"sampler must be one of {known}; got {text!r}")
    return name


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """The data, the batches, and how neighbours are told apart."""
    group = parser.add_argument_group("the run")
    group.add_argument("--examples", type=count, required=True, metavar="N", help="number of examples n")
    group.add_argument("--batch-size", type=count, required=True, metavar="b", help="target batch size b")
    length = group.add_mutually_exclusive_group(required=True)
    length.add_argument("--epochs", type=number, metavar="E", help="epochs; the steps are E round(n/b)")
    length.add_argument("--steps", type=count, metavar="T", help="steps, instead of epochs")
    group.add_argument("--max-batch-size", type=count, metavar="B", help="cap of truncated Poisson batches")
    group.add_argument(
        "--sampler",
        type=sampler_name,
        action="append",
        metavar="NAME",
        help=f"only this sampler (may be repeated): {', '.join(SAMPLERS)}",
    )
    group.add_argument(
        "--round-examples",
        action="store_true",
        help="with --sampler: take the nearest number of examples that the batch size divides",
    )
    group.add_argument(
        "--adjacency",
        choices=[str(a) for a in Adjacency],
        default=str(Adjacency.ZERO_OUT),
        help="what neighbouring data sets are (default: %(default)s, the paper's notion)",
    )
    group.add_argument(
        "--full",
        action="store_true",
        help="also the bounds that take longer than about a second (up to a minute)",
    )
    group.add_argument("--json", action="store_true", help="machine-readable result on stdout")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked, and the spec of each sampler that can run it; `why` for those that cannot."""

    specs: dict[str, Sampler]
    why: dict[str, str]
    inputs: dict[str, Any]
    num_examples: int
    batch_size: int
    num_steps: int
    rounded_examples: int | None
    named: bool
    dearer: tuple[str, ...]

    @property
    def num_epochs(self) -> float:
        """E = b T / n."""
        return self.batch_size * self.num_steps / self.num_examples

    def ask(self, question: Callable[[Sampler], Interval], *, doing: str) -> dict[str, Interval]:
        """The answer for every sampler; one that has none says why, unless it was asked for by name."""
        results: dict[str, Interval] = {}
        for name, spec in self.specs.items():
            with status(f"{doing} {name}"):
                try:
                    results[name] = question(spec)
                except (UnknownAnalysis, CalibrationFailed) as error:
                    if self.named:
                        raise
                    self.why[name] = error.message
        return results


def parse_request(
    arguments: argparse.Namespace, *, epsilon: float, delta: float, goal: dict[str, float | None]
) -> Request:
    """Specs for the samplers asked for, or for all of them; the goal's numbers are repeated in the result.

    Asked for by name, a sampler must be able to run as it is (or with --round-examples). In the comparison
    of all, those that walk through whole epochs are taken at the nearest n that b divides, and that is said.
    """
    n, b = arguments.examples, arguments.batch_size
    if b > n:
        raise InvalidSpec(
            f"batch_size must be at most num_examples; got batch_size={b}, num_examples={n}.",
            hint="a batch of all examples is --batch-size equal to --examples.",
        )
    if not 0 < delta < 1:
        raise InvalidArgument(f"delta must be above 0 and below 1; got delta={delta:g}.")
    if epsilon < 0:
        raise InvalidArgument(f"epsilon must be 0 or more; got epsilon={epsilon:g}.")
    num_steps = num_steps_of(arguments, n, b)
    names = arguments.sampler or list(SAMPLERS)
    rounds = arguments.round_examples or not arguments.sampler
    nearest = nearest_multiple(n, b)
    specs: dict[str, Sampler] = {}
    why: dict[str, str] = {}
    for name in dict.fromkeys(names):
        examples = nearest if name in _WHOLE_EPOCHS and rounds else n
        try:
            specs[name] = make_spec(name, examples, b, num_steps, arguments.max_batch_size, epsilon, delta)
        except TruebatchError as error:
            if arguments.sampler:
                raise _with_flag(error, n, b, nearest) from error
            why[name] = error.message
    shuffled = any(name in _WHOLE_EPOCHS for name in specs)
    return Request(
        specs=specs,
        why=why,
        inputs={
            "examples": n,
            "batch_size": b,
            "steps": num_steps,
            "epochs": b * num_steps / n if arguments.epochs is None else arguments.epochs,
            **goal,
            "adjacency": arguments.adjacency,
        },
        num_examples=n,
        batch_size=b,
        num_steps=num_steps,
        rounded_examples=nearest if shuffled and rounds and nearest != n else None,
        named=bool(arguments.sampler),
        dearer=() if arguments.full else _with_dearer_bounds(specs, Adjacency(arguments.adjacency)),
    )


def _with_dearer_bounds(specs: dict[str, Sampler], adjacency: Adjacency) -> tuple[str, ...]:
    return tuple(name for name, spec in specs.items() if has_dearer_bounds(spec, adjacency=adjacency))


def num_steps_of(arguments: argparse.Namespace, n: int, b: int) -> int:
    """T, from --steps or --epochs."""
    if arguments.steps is not None:
        return int(arguments.steps)
    if arguments.epochs <= 0:
        raise InvalidArgument(
            f"epochs must be above 0; got epochs={arguments.epochs:g}.", hint="or give --steps instead."
        )
    if arguments.epochs * (n / b) > 2**62:
        raise InvalidArgument(f"epochs make more than 2^62 steps; got epochs={arguments.epochs:g}.")
    return steps_for_epochs(num_examples=n, batch_size=b, num_epochs=arguments.epochs)


def make_spec(
    name: str, n: int, b: int, num_steps: int, cap: int | None, epsilon: float, delta: float
) -> Sampler:
    """The spec of this name; truncated Poisson's cap, where none is given, follows from the goal."""
    if name != TruncatedPoisson.name:
        return SAMPLERS[name](num_examples=n, batch_size=b, num_steps=num_steps)
    if cap is None:
        cap = max_batch_size_by_rule(
            num_examples=n, batch_size=b, num_steps=num_steps, epsilon=epsilon, delta=delta
        )
    return TruncatedPoisson(num_examples=n, batch_size=b, num_steps=num_steps, max_batch_size=cap)


def _with_flag(error: TruebatchError, n: int, b: int, nearest: int) -> TruebatchError:
    if n % b == 0 or "must divide" not in error.message:
        return error
    hint = f"pass --round-examples to account for num_examples={nearest}, or use truncated_poisson."
    return type(error)(error.message, hint=hint)
