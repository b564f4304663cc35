"""The embedded engine: one machine, its threads, and a stated budget of memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from truebatch.batching import in_place
from truebatch.batching.buckets import scatter_by_buckets
from truebatch.batching.engine import PartFile, Task
from truebatch.sampling import schedule


@dataclass(frozen=True)
class LocalEngine:
    """The scatter plan: the source is read once from end to end, and rows are written where they belong.

    Guarantees:
      - Memory stays within the task's budget and what Python and its libraries need, at any number of rows.
      - Stopped at any moment, the next run goes on from the last piece of the source that is on disk.
    """

    name: ClassVar[str] = "local"

    def run(self, task: Task) -> Iterator[PartFile]:
        """The parts, in order."""
        task.work.mkdir(mode=0o700, exist_ok=True)
        drawn = schedule(task.job.spec, task.key)
        if in_place.suits(task.job, task.memory):
            yield from in_place.scatter_in_place(task, drawn)
        else:
            yield from scatter_by_buckets(task, drawn)
