"""What calibrate and account print: one table for people, one object for machines."""

import json
import math
import sys
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from truebatch.accounting import Bound, Interval
from truebatch.cli.request import Request
from truebatch.specs import TruncatedPoisson

_LABELS = {
    "deterministic": "deterministic (D)",
    "poisson": "Poisson",
    "truncated_poisson": "truncated Poisson (P)",
    "persistent_shuffle": "persistent shuffle (SP)",
    "dynamic_shuffle": "dynamic shuffle (SD)",
    "balls_and_bins": "balls-and-bins",
    "fixed_size": "fixed size",
}


@dataclass(frozen=True, kw_only=True)
class Report:
    """One number of every sampler, as an interval; and, where a claim was made, the verdict on it."""

    request: Request
    quantity: str
    results: dict[str, Interval]
    verdict: dict[str, str] | None = None

    def as_json(self) -> str:
        """The object that scripts may rely on; an unknown end is null, with a why."""
        samplers: dict[str, Any] = {}
        for name, interval in self.results.items():
            spec = self.request.specs[name]
            ends = {"lower": interval.lower, "upper": interval.upper}
            entry: dict[str, Any] = {
                self.quantity: {side: _plain(bound) for side, bound in ends.items()},
                "source": {side: bound.source for side, bound in ends.items()},
            }
            unknown = [bound.source for bound in ends.values() if _plain(bound) is None]
            if unknown:
                entry["why"] = "; ".join(dict.fromkeys(unknown))
            if isinstance(spec, TruncatedPoisson):
                entry["max_batch_size"] = spec.max_batch_size
            if spec.num_examples != self.request.num_examples:
                entry["num_examples"] = spec.num_examples
            samplers[name] = entry
        for name, why in self.request.why.items():
            samplers[name] = {self.quantity: {"lower": None, "upper": None}, "why": why}
        whole = {"inputs": self.request.inputs, "samplers": samplers, "verdict": self.verdict}
        return json.dumps(whole, indent=2, allow_nan=False)

    def print_table(self, title: str, *, headings: tuple[str, str]) -> None:
        """One row a sampler, the end that may be used last, and where it comes from; then the notes."""
        table = Table(title=title, title_justify="left", title_style="", box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("sampler", no_wrap=True)
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        if self.verdict is not None:
            table.add_column("claim", no_wrap=True)
        table.add_column("what the last number rests on", ratio=1)
        for name, interval in self.results.items():
            spec = self.request.specs[name]
            cap = f", B = {spec.max_batch_size:,}" if isinstance(spec, TruncatedPoisson) else ""
            cells = [_LABELS[name] + cap, _shown(interval.lower, up=False), _shown(interval.upper, up=True)]
            table.add_row(*cells, *self._verdict_cell(name), interval.upper.source)
        for name, why in self.request.why.items():
            table.add_row(_LABELS[name], "?", "?", *self._verdict_cell(name), why)
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120, highlight=False)
        console.print(table)
        for line in self._notes():
            console.print(line, soft_wrap=True)

    def _verdict_cell(self, name: str) -> list[str]:
        return [] if self.verdict is None else [self.verdict[name]]

    def _notes(self) -> list[str]:
        """What a reader must know beside the numbers."""
        request = self.request
        lines = [
            f"Adjacency: {request.inputs['adjacency']}. "
            f"Steps: {request.num_steps:,} ({request.num_epochs:.6g} epochs)."
        ]
        if request.rounded_examples is not None:
            near, b = request.rounded_examples, request.batch_size
            lines.append(
                f"Samplers that walk through whole epochs are taken at n = {near:,} = {near // b:,} x {b:,}, "
                f"the nearest to {request.num_examples:,} that the batch size divides."
            )
        if request.dearer:
            lines.append(f"Tighter bounds that take longer exist for {', '.join(request.dearer)}: --full.")
        return lines


def _plain(bound: Bound) -> float | None:
    value = bound.value
    return None if value is None or not math.isfinite(value) else float(value)


def _shown(bound: Bound, *, up: bool) -> str:
    """Six significant digits, rounded away from the truth."""
    value = _plain(bound)
    if value is None:
        return "?" if bound.value is None else "infinite"
    if value == 0:
        return "0"
    scale = 10.0 ** (5 - math.floor(math.log10(abs(value))))
    rounded = (math.ceil if up else math.floor)(value * scale) / scale
    return f"{rounded:.6g}"
