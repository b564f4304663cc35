"""Rows cut into tiles, steps cut into chunks: the arithmetic that both views share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from truebatch.sampling.blocks import Int64s

# Steps are given as a range or as increasing step numbers; a range may be too long to write out.
Steps = range | Int64s

# Working memory of either view, in array entries at a time. Large enough to hide numpy's cost per call,
# small enough to stay near the caches.
CHUNK = 2**18

_LEAST_PER_CELL, _MOST_PER_CELL = 128, 1024


class Placements(NamedTuple):
    """Where rows go: row `row[i]` is at position `slot[i]` of the sorted batch of step `step[i]`."""

    step: Int64s
    slot: Int64s
    row: Int64s


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Rows 0..num_rows-1 in tiles of tile_rows; the last tile may be shorter."""

    num_rows: int
    tile_rows: int

    @property
    def num_tiles(self) -> int:
        """K."""
        return -(-self.num_rows // self.tile_rows)

    @property
    def last_rows(self) -> int:
        """How many rows the last tile has."""
        return self.num_rows - (self.num_tiles - 1) * self.tile_rows

    def rows_of(self, tiles: Int64s) -> Int64s:
        """How many rows each of these tiles has."""
        sizes = np.full(len(tiles), self.tile_rows, dtype=np.int64)
        sizes[tiles == self.num_tiles - 1] = self.last_rows
        return sizes

    def touched(self, start: int, stop: int) -> tuple[int, int]:
        """First tile with a row in [start, stop), and one past the last."""
        return start // self.tile_rows, -(-stop // self.tile_rows)


def tiling_for(*, num_rows: int, batch_size: int, max_tile_rows: int = 2**62) -> Tiling:
    """The tiling of the scheme: tile_rows is the largest power of two with batch_size/num_rows of it <= L.

    L = sqrt(batch_size), kept within 128 and 1024: a step then has about as many cells as a cell has members,
    so that the counts of all cells, which slots need, cost no more than the members of one.

    >>> tiling_for(num_rows=46_000_000, batch_size=65_536).tile_rows == 2**17
    True
    """
    per_cell = min(max(math.isqrt(batch_size), _LEAST_PER_CELL), _MOST_PER_CELL)
    bits = (per_cell * num_rows // batch_size).bit_length() - 1
    bits = min(bits, (num_rows - 1).bit_length(), max_tile_rows.bit_length() - 1)
    return Tiling(num_rows=num_rows, tile_rows=1 << bits)


def chunks(steps: Steps, size: int) -> Iterator[Int64s]:
    """Consecutive pieces of `steps`, at most `size` each, as arrays."""
    for i in range(0, len(steps), max(1, size)):
        piece = steps[i : i + max(1, size)]
        yield np.arange(piece.start, piece.stop, piece.step) if isinstance(piece, range) else piece


def running(sizes: Int64s) -> Int64s:
    """Where each of consecutive groups of these sizes begins, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(sizes)))
