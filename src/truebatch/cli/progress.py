"""Progress on stderr: shown to people, silent in pipes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def status(message: str) -> Iterator[None]:
    """A spinner while something is computed, on a terminal only."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(message):
        yield
