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
from truebatch.batching.shape import Shape, batch_rows, part_name

__all__ = [
    "Batch",
    "Batches",
    "Job",
    "Shape",
    "assemble",
    "batch_rows",
    "block_from_bytes",
    "block_to_bytes",
    "digest_of",
    "part_bytes",
    "part_name",
    "split",
]
