"""`truebatch account`: the epsilon that holds, and the verdict on a claim."""

import argparse
from typing import Any

from truebatch import accounting
from truebatch.accounting import Interval
from truebatch.cli.report import Report
from truebatch.cli.request import add_request_options, number, parse_request
from truebatch.errors import InvalidArgument
from truebatch.specs import Sampler

_HELP = "the epsilon that holds for a given sigma, and the verdict on a claimed one"
_EPILOG = """\
For every sampler: the epsilon that is proven to leak at least, and the epsilon that may be claimed at most.
With --claimed-epsilon, the verdict: 'holds' (the upper end is within the claim), 'refuted' (the lower end
is above it: no analysis can rescue the claim), or 'unknown' (the truth is somewhere between).

example:
  truebatch account --examples 36672493 --batch-size 65536 --epochs 1 --sigma 0.5472 --delta 2.7e-8 \\
      --claimed-epsilon 5
"""


def add_parser(commands: "argparse._SubParsersAction[Any]") -> None:
    """Register the command."""
    parser = commands.add_parser(
        "account",
        help=_HELP,
        description=_HELP[0].upper() + _HELP[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_request_options(parser)
    goal = parser.add_argument_group("the mechanism and the claim")
    goal.add_argument("--sigma", type=number, required=True, metavar="s", help="noise multiplier used")
    goal.add_argument("--delta", type=number, required=True, metavar="d", help="privacy parameter delta")
    goal.add_argument("--claimed-epsilon", type=number, metavar="e", help="the claim to judge")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Account for every sampler and judge the claim."""
    sgm, dlt, claim = arguments.sigma, arguments.delta, arguments.claimed_epsilon
    if sgm <= 0:
        raise InvalidArgument(f"sigma must be above 0; got sigma={sgm:g}.")
    if claim is not None and claim < 0:
        raise InvalidArgument(f"claimed epsilon must be 0 or more; got {claim:g}.")
    goal: dict[str, float | None] = {"sigma": sgm, "delta": dlt, "claimed_epsilon": claim}
    request = parse_request(arguments, epsilon=1.0 if claim is None else claim, delta=dlt, goal=goal)

    def question(spec: Sampler) -> Interval:
        return accounting.epsilon(
            spec, sigma=sgm, delta=dlt, adjacency=arguments.adjacency, dear=arguments.full
        )

    results = request.ask(question, doing="accounting for")
    verdict = None
    if claim is not None:
        verdict = {name: judge(ends, claim) for name, ends in results.items()}
        verdict |= dict.fromkeys(request.why, "unknown")
    report = Report(request=request, quantity="epsilon", results=results, verdict=verdict)
    if arguments.json:
        print(report.as_json())
        return 0
    claimed = "" if claim is None else f"; claimed: {claim:g}"
    title = f"epsilon at delta = {dlt:g} with sigma = {sgm:g}{claimed}"
    report.print_table(title, headings=("proven at least", "may be claimed"))
    return 0


def judge(ends: Interval, claim: float) -> str:
    """'holds', 'refuted' or 'unknown', by the end of the interval that can say so."""
    if ends.upper.value is not None and ends.upper.value <= claim:
        return "holds"
    if ends.lower.value is not None and ends.lower.value > claim:
        return "refuted"
    return "unknown"
