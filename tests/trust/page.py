"""The table of faults: on a terminal, as JSON, and in docs/trust.md."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from trust.fault import Fault
from trust.suite import FAMILIES, Result, Verdict

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"
BEGIN, END = "<!-- the table: written by `make trust` -->", "<!-- end of the table -->"
_HEADS = ("fault", "how it is injected", "result", "by which check", "false alarm", "power")


def chance(value: float) -> str:
    """A probability in few digits; one that is next to 1 by what is missing.

    >>> chance(0.0), chance(1.0), chance(2.5e-7), chance(0.93), chance(1 - 2e-9)
    ('0', '1', '2.5e-07', '0.93', '1 - 2e-09')
    """
    if value in (0, 1):
        return f"{value:g}"
    missing = 1 - value
    return f"1 - {missing:.1g}" if missing < 1e-3 else f"{value:.2g}"


def cells(fault: Fault, verdict: str) -> tuple[str, ...]:
    """One line of the table, without how long it took: that changes from run to run."""
    check, how = fault.check, fault.how.removesuffix(".") + "."
    return fault.name, how, verdict, check.name, chance(check.false_alarm), chance(check.power)


def on_terminal(results: Sequence[Result]) -> Table:
    """All results, with their seconds."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, expand=True)
    for head in ("", *_HEADS, "s"):
        table.add_column(head, justify="right" if head in {"", "false alarm", "power", "s"} else "left")
    for result in results:
        number, verdict = str(result.fault.number), str(result.verdict)
        style = "" if result.verdict is Verdict.CAUGHT else "bold red"
        row = [number, *cells(result.fault, verdict), f"{result.seconds:.1f}"]
        table.add_row(*(Text(cell, style=style) for cell in row))
    return table


def as_json(results: Sequence[Result], missing: Sequence[int], seconds: float) -> dict[str, Any]:
    """All results as plain values; `said` is what the check said of the broken code."""
    return {
        "holds": not missing and all(result.verdict is Verdict.CAUGHT for result in results),
        "missing_families": list(missing),
        "seconds": round(seconds, 1),
        "faults": [
            {
                "family": result.fault.number,
                "fault": result.fault.name,
                "how": result.fault.how,
                "result": str(result.verdict),
                "check": result.fault.check.name,
                "false_alarm": result.fault.check.false_alarm,
                "power": result.fault.check.power,
                "seconds": round(result.seconds, 1),
                "said": result.said,
            }
            for result in results
        ],
    }


def as_markdown(lines: Iterable[tuple[Fault, str]]) -> str:
    """The table of the page, family by family."""
    found = list(lines)
    parts = []
    for number, family in FAMILIES.items():
        rows = [cells(fault, verdict) for fault, verdict in found if fault.number == number]
        if rows:
            parts.append(f"### {number}. {family}\n")
            parts.append("| " + " | ".join(_HEADS) + " |")
            parts.append("| --- | --- | --- | --- | ---: | ---: |")
            parts += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
            parts.append("")
    return "\n".join(parts)


def write(lines: Iterable[tuple[Fault, str]], page: Path = PAGE) -> None:
    """Put the table in its place on the page; the rest is left as it is."""
    text = page.read_text()
    place = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not place.search(text):
        raise ValueError(f"{page} must have the lines {BEGIN!r} and {END!r}.")
    table = as_markdown(lines)
    page.write_text(place.sub(lambda _: f"{BEGIN}\n\n{table}\n{END}", text))
