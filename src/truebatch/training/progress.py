"""A progress bar for those who watch a run: steps, examples per second, epsilon so far."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from truebatch.training.train import Progress

# Epsilon takes up to a second to find, so it is asked for this many times in a run.
_EPSILONS = 20


@contextmanager
def show_progress() -> Iterator[Callable[[Progress], None]]:
    """What to pass to `train` as `watch`: a bar on stderr on a terminal, and nothing in pipes.

    with show_progress() as watch:
        train(model, batches, ..., watch=watch)
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
    )
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=None, said="")
        epsilon = ""

        def watch(progress: Progress) -> None:
            nonlocal epsilon
            if progress.step % max(1, progress.num_steps // _EPSILONS) == 0:
                epsilon = said_epsilon(progress)
            speed = f"{progress.examples_per_s:,.0f} examples/s"
            metrics = " ".join(f"{name} {value:.4f}" for name, value in progress.metrics.items())
            said = "  ".join(part for part in (speed, epsilon, metrics) if part)
            bar.update(task, total=progress.num_steps, completed=progress.step, said=said)

        yield watch


def said_epsilon(progress: Progress) -> str:
    """Epsilon so far, in the words of the claim: never as a promise where there is none."""
    epsilon = progress.epsilon()
    if epsilon is None:
        return "not private"
    said = f"epsilon {epsilon:.3g}"
    return said if progress.claim.is_private else f"({said}, not guaranteed)"
