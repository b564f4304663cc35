"""`truebatch calibrate`: the noise that every sampler needs."""

import argparse
from typing import Any

from truebatch import accounting
from truebatch.accounting import Interval
from truebatch.cli.progress import status
from truebatch.cli.report import Report
from truebatch.cli.request import add_request_options, number, parse_request
from truebatch.errors import InvalidArgument
from truebatch.specs import Sampler

_HELP = "the noise multiplier sigma that each sampler needs for (epsilon, delta)"
_EPILOG = """\
For every sampler: the sigma below which (epsilon, delta) is provably not met, the sigma that suffices,
and for truncated Poisson the cap B of the paper's rule (or of --max-batch-size, or the smallest one for
--overhead). A mechanism may claim (epsilon, delta) only with the second number.

example:
  truebatch calibrate --examples 36672493 --batch-size 65536 --epochs 1 --epsilon 5 --delta 2.7e-8
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "calibrate",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_request_options(parser)
    goal = parser.add_argument_group("the goal")
    goal.add_argument("--epsilon", type=number, required=True, metavar="e", help="privacy parameter epsilon")
    goal.add_argument("--delta", type=number, required=True, metavar="d", help="privacy parameter delta")
    goal.add_argument(
        "--overhead",
        type=number,
        metavar="X",
        help="take the smallest cap B whose sigma is at most (1 + X) times that of no cap",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Calibrate every sampler and print the comparison."""
    eps, dlt = arguments.epsilon, arguments.delta
    if arguments.overhead is not None:
        arguments.max_batch_size = _smallest_cap(arguments)
    goal: dict[str, float | None] = {"epsilon": eps, "delta": dlt}
    request = parse_request(arguments, epsilon=eps, delta=dlt, goal=goal)

    def question(spec: Sampler) -> Interval:
        return accounting.sigma(
            spec, epsilon=eps, delta=dlt, adjacency=arguments.adjacency, dear=arguments.full
        )

    results = request.ask(question, doing="calibrating")
    report = Report(request=request, quantity="sigma", results=results)
    if arguments.json:
        print(report.as_json())
        return 0
    title = f"Noise multiplier sigma for epsilon = {eps:g}, delta = {dlt:g}"
    report.print_table(title, headings=("needed at least", "suffices"))
    for line in _what_follows(results):
        print(line)
    return 0


def _smallest_cap(arguments: argparse.Namespace) -> int:
    if arguments.max_batch_size is not None:
        raise InvalidArgument(
            f"--overhead chooses the cap; it was given with --max-batch-size={arguments.max_batch_size}.",
            hint="give one of the two.",
        )
    bare = argparse.Namespace(**{**vars(arguments), "sampler": ["poisson"]})
    request = parse_request(bare, epsilon=arguments.epsilon, delta=arguments.delta, goal={})
    with status("searching the smallest cap B"):
        return accounting.smallest_max_batch_size(
            num_examples=request.num_examples,
            batch_size=request.batch_size,
            num_steps=request.num_steps,
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            sigma_overhead=arguments.overhead,
        )


def _what_follows(results: dict[str, Interval]) -> list[str]:
    """The comparison in a line: what shuffling needs against Poisson."""
    if "poisson" not in results or "dynamic_shuffle" not in results:
        return []
    poisson, shuffle = results["poisson"].upper.value, results["dynamic_shuffle"]
    if poisson is None or not poisson or shuffle.lower.value is None or shuffle.upper.value is None:
        return []
    least, most = float(shuffle.lower.value / poisson), float(shuffle.upper.value / poisson)
    if least > 1:
        return [
            f"Dynamic shuffling needs at least {least:.3g} times Poisson's noise here; "
            f"{most:.3g} times suffices."
        ]
    return [
        f"No gap is proven here: dynamic shuffling may need as little as {least:.3g} times Poisson's noise, "
        f"and {most:.3g} times suffices."
    ]
