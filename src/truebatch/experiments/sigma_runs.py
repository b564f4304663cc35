"""A grid's answers: from the cache, and the rest from a pool of processes."""

import csv
import io
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from threadpoolctl import threadpool_limits

from truebatch.accounting.bounds import JSON
from truebatch.errors import InvalidArgument, TruebatchError
from truebatch.experiments.sigma_grids import Point, nominal_epochs
from truebatch.experiments.sigma_points import Answer, open_cache, solve
from truebatch.specs import TruncatedPoisson

Progress = Callable[[int, int, str], None]

COLUMNS = (
    "figure",
    "sampler",
    "num_examples",
    "batch_size",
    "num_steps",
    "num_epochs",
    "epsilon",
    "delta",
    "max_batch_size",
    "sigma_lower",
    "sigma_upper",
    "source_lower",
    "source_upper",
    "adjacency",
)


def no_progress(done: int, total: int, label: str) -> None:
    """Report to nobody."""


def solve_all(
    points: Sequence[Point],
    *,
    cache_dir: Path | None = None,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> tuple[Answer, ...]:
    """The answer to every point, in their order; each one is kept as soon as it is there.

    `progress(done, total, label)` is called once at the start with what the cache holds, and after each
    answer. With workers=1 everything happens in this process.
    """
    workers = os.cpu_count() or 1 if workers is None else workers
    if workers < 1:
        raise InvalidArgument(f"workers must be 1 or more; got workers={workers}.")
    cache = open_cache(cache_dir)
    kept = {point: cache.load(point) for point in points}
    answers = {point: answer for point, answer in kept.items() if answer is not None}
    missing = sorted((point for point in kept if point not in answers), key=_cost, reverse=True)
    progress(len(answers), len(kept), "from the cache")
    for point, answer in _solved(missing, min(workers, len(missing))):
        cache.store(point, answer)
        answers[point] = answer
        progress(len(answers), len(kept), point.label)
    return tuple(answers[point] for point in points)


def _cost(point: Point) -> tuple[bool, float]:
    """What takes longest goes first, so that no worker is left alone with it at the end."""
    return point.dear, point.epsilon * nominal_epochs(point.spec)


def _solved(points: Sequence[Point], workers: int) -> Iterator[tuple[Point, Answer]]:
    if workers <= 1:
        with threadpool_limits(limits=1):
            for point in points:
                yield point, solve(point)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_one_thread
    )
    try:
        waiting = {pool.submit(solve, point): point for point in points}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), future.result()
    except BrokenProcessPool as error:
        raise TruebatchError(
            "a worker process ended before it answered.",
            hint="use workers=1; a script that starts workers needs `if __name__ == '__main__':`.",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _one_thread() -> None:
    """Workers share the cores already: threads of BLAS on top of them only get in each other's way."""
    threadpool_limits(limits=1)


def table(name: str, points: Sequence[Point], answers: Sequence[Answer]) -> str:
    """The numbers of a figure as CSV, one row a point; an unknown end is left empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(name, *pair) for pair in zip(points, answers, strict=True))
    return text.getvalue()


def _row(name: str, point: Point, answer: Answer) -> JSON:
    spec = point.spec
    return {
        "figure": name,
        "sampler": point.curve,
        "num_examples": spec.num_examples,
        "batch_size": spec.batch_size,
        "num_steps": spec.num_steps,
        "num_epochs": f"{nominal_epochs(spec):g}",
        "epsilon": f"{point.epsilon:g}",
        "delta": f"{point.delta:g}",
        "max_batch_size": spec.max_batch_size if isinstance(spec, TruncatedPoisson) else None,
        "sigma_lower": answer.lower,
        "sigma_upper": answer.upper,
        "source_lower": answer.source_lower,
        "source_upper": answer.source_upper,
        "adjacency": point.adjacency.value,
    }
