"""Sources that fail once, in ways that workers of a cluster do."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from truebatch.data import TableSource


def fail() -> None:
    raise OSError("the worker is gone")


def kill_executor() -> None:
    """SIGKILL to the process that started the one that started this: Spark's executor, above its Python."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)


@dataclass(frozen=True)
class FailsOnce:
    """A table whose row `row` brings misfortune to the first who reads it; `marker` says that it has."""

    table: pa.Table
    marker: Path
    row: int
    how: Callable[[], None] = fail

    @property
    def schema(self) -> pa.Schema:
        return TableSource(self.table).schema

    @property
    def num_rows(self) -> int:
        return len(self.table)

    def identity(self) -> dict[str, object]:
        return {"rows": len(self.table)}

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        if start <= self.row < stop and not self.marker.exists():
            self.marker.touch()
            self.how()
        return TableSource(self.table).read(start, stop)
