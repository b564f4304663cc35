"""Progress on stderr: shown to people, silent in pipes."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from truebatch.batching import Progress as Done


@contextmanager
def status(message: str) -> Iterator[None]:
    """A spinner while something is computed, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(message):
        yield


@contextmanager
def shown_progress() -> Iterator[Callable[["Done"], None]]:
    """A bar for each phase of a long work, with its rate in bytes and the time left; on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[moved]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        phases: dict[str, TaskID] = {}
        moved: dict[str, int] = {}

        def advance(done: "Done") -> None:
            if done.phase not in phases:
                phases[done.phase] = bars.add_task(done.phase, total=done.total, moved="")
            moved[done.phase] = moved.get(done.phase, 0) + done.num_bytes
            bars.update(phases[done.phase], completed=done.done, moved=f"{moved[done.phase] / 1e9:.2f} GB")

        yield advance
