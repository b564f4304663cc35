"""`python -m trust`: break the code in every way we know of, and see whether it is noticed."""

import argparse
import json
import sys
import time
from collections.abc import Sequence

from rich.console import Console

from trust import page
from trust.suite import FAMILIES, MODULES, Result, Verdict, members, run

_WIDEST = 160


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if every family that was asked for is there, and every fault of it is caught."""
    asked = _parser().parse_args(arguments)
    if asked.write and (asked.only or asked.faults):
        print("--write writes the whole table: leave out --only and --faults.", file=sys.stderr)
        return 2
    began = time.monotonic()
    found = members(asked.faults or MODULES, asked.only)
    results: list[Result] = []
    for result in run(found, jobs=asked.jobs):
        results.append(result)
        done = f"{len(results):3} of {len(found)}  {result.seconds:5.1f} s"
        _say(f"{done}  {result.verdict}: {result.fault.number}. {result.fault.name}")
    results.sort(key=lambda result: [member.fault.name for member in found].index(result.fault.name))
    missing = sorted(set(asked.only or FAMILIES) - {result.fault.number for result in results})
    _show(results, missing, time.monotonic() - began, as_json=asked.json)
    if asked.write:
        page.write((result.fault, str(result.verdict)) for result in results)
    return int(bool(missing) or any(result.verdict is not Verdict.CAUGHT for result in results))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trust", description=__doc__)
    parser.add_argument("--only", type=int, nargs="+", default=[], metavar="N", help="some families only")
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default: 2)")
    parser.add_argument("--json", action="store_true", help="results for machines")
    parser.add_argument("--write", action="store_true", help="write the table into docs/trust.md")
    parser.add_argument("--faults", nargs="+", metavar="MODULE", help="other modules that have FAULTS")
    return parser


def _show(results: list[Result], missing: list[int], seconds: float, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(page.as_json(results, missing, seconds), indent=1))
        return
    console = Console() if sys.stdout.isatty() else Console(width=_WIDEST)
    console.print(page.on_terminal(results))
    caught = sum(result.verdict is Verdict.CAUGHT for result in results)
    families = len({result.fault.number for result in results})
    print(f"{caught} of {len(results)} faults of {families} families caught, in {seconds:.0f} seconds.")
    for number in missing:
        print(f"Family {number} has no member: {FAMILIES[number]}.")
    for result in results:
        if result.verdict is not Verdict.CAUGHT:
            print(f"\n{result.verdict}: {result.fault.number}. {result.fault.name}\n{result.said}".rstrip())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
