"""Work on a stream of items by several threads, given back in the order of the stream."""

import collections
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def num_threads() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    function: Callable[[Item], Result], items: Iterator[Item], *, threads: int | None = None
) -> Iterator[Result]:
    """function(item) for every item, in order, by several threads.

    Guarantees:
      - At most two items more than threads are on their way, and the first is worked on alone: whoever
        wants no more than that pays for no more.
      - Once the iterator is exhausted, closed or has raised, nothing runs any longer and `items` is closed.
    """
    threads = num_threads() if threads is None else threads
    with _closing(items):
        first = next(items, None)
        if first is None:
            return
        yield function(first)
        waiting: collections.deque[Future[Result]] = collections.deque()
        with ThreadPoolExecutor(threads, thread_name_prefix="truebatch-data") as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(function, item))
                    if len(waiting) >= threads + 2:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


@contextlib.contextmanager
def _closing(items: object) -> Iterator[None]:
    """Close a generator at once: a traceback that is kept somewhere would keep it, and its threads, alive."""
    try:
        yield
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


class _End:
    """What a thread puts last: the error that ended it, or none."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def prefetched(items: Iterator[Item], *, depth: int = 2) -> Iterator[Item]:
    """The same items, made by a thread of their own that is at most `depth` items ahead; the first without.

    Guarantees:
      - Once the iterator is exhausted, closed or has raised, the thread has ended and `items` is closed.
      - An error is raised where it would be.
    """
    with _closing(items):
        first = next(items, None)
        if first is None:
            return
        yield first
        yield from _prefetched(items, depth)


def _prefetched(items: Iterator[Item], depth: int) -> Iterator[Item]:
    made: queue.Queue[Item | _End] = queue.Queue(depth)
    closed = threading.Event()

    def work() -> None:
        try:
            for item in items:
                made.put(item)
                if closed.is_set():
                    return
            made.put(_End())
        except Exception as error:  # it is raised again by the reader
            made.put(_End(error))

    thread = threading.Thread(target=work, name="truebatch-data-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := made.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        closed.set()
        with contextlib.suppress(queue.Empty):
            made.get_nowait()  # room for the one item that the thread may be waiting to put
        thread.join()
