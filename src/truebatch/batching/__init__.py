"""schedule + source -> T batches of one shape."""

from truebatch.batching.assemble import (
    Job,
    assemble,
    block_from_bytes,
    block_to_bytes,
    part_bytes,
    split,
)
from truebatch.batching.batches import Batch, Batches
from truebatch.batching.digest import digest_of
from truebatch.batching.engine import Engine, PartFile, Progress, Task
from truebatch.batching.files import FileBatches, open_batches
from truebatch.batching.gather import GatherBatches, GatherEngine
from truebatch.batching.local import LocalEngine
from truebatch.batching.make import make_batches
from truebatch.batching.plan import Plan, choose_plan
from truebatch.batching.shape import Shape, batch_rows, part_name

__all__ = [
    "Batch",
    "Batches",
    "Engine",
    "FileBatches",
    "GatherBatches",
    "GatherEngine",
    "Job",
    "LocalEngine",
    "PartFile",
    "Plan",
    "Progress",
    "Shape",
    "Task",
    "assemble",
    "batch_rows",
    "block_from_bytes",
    "block_to_bytes",
    "choose_plan",
    "digest_of",
    "make_batches",
    "open_batches",
    "part_bytes",
    "part_name",
    "split",
]
