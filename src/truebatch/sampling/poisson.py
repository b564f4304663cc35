"""Poisson sampling, with or without a cap, and sampling of exactly b rows, which is made from it."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from truebatch.sampling.blocks import Int64s, KeyStream, Purpose
from truebatch.sampling.subsets import Cells, choose, values
from truebatch.sampling.tables import binomial_table
from truebatch.sampling.tiling import CHUNK, Placements, Steps, Tiling, chunks, running

RATE_BITS = 64
_ATTEMPT_SHIFT = 32


class PoissonPlan:
    """Every row joins every step by its own coin of probability rate / 2^64.

    A cell is (step, tile). Its count is Binomial(rows of the tile, rate / 2^64) from one block, its members
    a uniform subset of that size: together these are independent coins. When the rate is above one half,
    counts and subsets name the rows left out.

    `cap`: a batch of M > cap rows loses M - cap of its sorted positions, a uniform subset of them. That needs
    the batch's size, which is the sum of its counts, and nothing of its rows.
    `floor`: a batch of fewer rows is drawn again, whole, with the next attempt's blocks.
    """

    def __init__(
        self,
        stream: KeyStream,
        *,
        tiling: Tiling,
        num_steps: int,
        rate: int,
        cap: int | None = None,
        floor: int = 0,
    ) -> None:
        self.tiling = tiling
        self.rate = rate
        self._stream, self._num_steps, self._cap, self._floor = stream, num_steps, cap, floor
        self._inverted = 2 * rate > 2**RATE_BITS
        prob = Fraction(2**RATE_BITS - rate if self._inverted else rate, 2**RATE_BITS)
        self._table = binomial_table(trials=tiling.tile_rows, prob=prob)
        self._last_table = binomial_table(trials=tiling.last_rows, prob=prob)
        widest = max(self._table.last, self._last_table.last, 1)
        self._cell_width = tiling.tile_rows if self._inverted else widest

    @property
    def distance(self) -> Fraction:
        """Total variation distance of all steps' batches to the ideal ones, given uniform blocks."""
        per_cell = max(self._table.distance, self._last_table.distance)
        # Drawing a step again conditions on an event E, which costs a factor of 2 / P(E); P(E) is above 2/3.
        return (3 if self._floor else 1) * self._num_steps * self.tiling.num_tiles * per_cell

    @property
    def num_blocks(self) -> int:
        """A bound on the blocks of the whole schedule: a count and a word for each member, tenfold."""
        return 10 * self._num_steps * self.tiling.num_tiles * (1 + self._cell_width)

    def sizes(self, steps: Steps) -> Iterator[Int64s]:
        """The sizes of the batches, chunk by chunk."""
        for chunk in chunks(steps, CHUNK // self.tiling.num_tiles):
            totals = self._units_and_counts(chunk)[1].sum(axis=1)
            yield totals if self._cap is None else np.minimum(totals, self._cap)

    def batches(self, steps: Steps) -> Iterator[Int64s]:
        """The sorted rows of each step."""
        K = self.tiling.num_tiles
        for chunk in chunks(steps, CHUNK // (K * self._cell_width)):
            units, counts = self._units_and_counts(chunk)
            rows = self._rows(chunk, units, counts)
            totals = counts.sum(axis=1)
            over, ranks, sizes = self._dropped(chunk, totals)
            if len(over):
                starts = running(totals)[over]
                rows = np.delete(rows, ranks + np.repeat(starts, sizes))
                totals[over] = self._cap
            ends = running(totals)
            for i in range(len(chunk)):
                batch = rows[ends[i] : ends[i + 1]]
                yield batch if len(chunk) == 1 else batch.copy()

    def placements(self, start: int, stop: int, steps: Steps) -> Iterator[Placements]:
        """(step, slot, row) for the rows in [start, stop), by step and then by row."""
        if start == stop:
            return
        first, last = self.tiling.touched(start, stop)
        K = last if self._cap is None else self.tiling.num_tiles
        for chunk in chunks(steps, CHUNK // max(K, (last - first) * self._cell_width)):
            units, counts = self._units_and_counts(chunk, num_tiles=K)
            inside = counts[:, first:last]
            row = self._rows(chunk, units[:, first:last], inside)
            ends = running(inside.sum(axis=1))
            lead = counts[:, :first].sum(axis=1) - ends[:-1]
            per_step, place, row = self._between(start, stop, ends, row)
            placed = Placements(
                step=np.repeat(chunk, per_step), slot=place + np.repeat(lead, per_step), row=row
            )
            yield self._close_gaps(chunk, counts.sum(axis=1), per_step, placed)

    def _between(self, start: int, stop: int, ends: Int64s, row: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Of rows listed step by step, those in [start, stop): how many per step, place in the list, row."""
        R, n = self.tiling.tile_rows, self.tiling.num_rows
        if start % R == 0 and (stop % R == 0 or stop == n):
            return np.diff(ends), np.arange(len(row)), row
        place = np.flatnonzero((row >= start) & (row < stop))
        return np.diff(np.searchsorted(place, ends)), place, row[place]

    def _units_and_counts(self, steps: Int64s, *, num_tiles: int | None = None) -> tuple[Int64s, Int64s]:
        """For each (step, tile): the unit of its streams (which names the attempt), and how many members."""
        tiles = np.arange(self.tiling.num_tiles if num_tiles is None else num_tiles)
        units = np.broadcast_to(tiles, (len(steps), len(tiles)))
        counts = self._counts(steps, tiles)
        if self._floor:
            units = units.copy()
            low = np.flatnonzero(counts.sum(axis=1) < self._floor)
            while low.size:
                units[low] += 1 << _ATTEMPT_SHIFT
                counts[low] = self._counts(steps[low], units[low])
                low = low[counts[low].sum(axis=1) < self._floor]
        return units, counts

    def _counts(self, steps: Int64s, units: Int64s) -> Int64s:
        blocks = self._stream.draw(Purpose.COUNT, steps[:, None], units, 0)
        counts = self._table.lookup(blocks)
        has_last = units.shape[-1] == self.tiling.num_tiles
        if has_last and self._last_table is not self._table:
            counts[:, -1] = self._last_table.lookup(blocks[:, -1])
        if self._inverted:
            counts = self.tiling.rows_of(np.arange(units.shape[-1])) - counts
        return counts

    def _rows(self, steps: Int64s, units: Int64s, counts: Int64s) -> Int64s:
        """The members of all these cells, cell by cell, sorted in each."""
        steps = np.repeat(steps, units.shape[1])
        units, counts = units.ravel(), counts.ravel()
        size = max(1, CHUNK // self._cell_width)
        parts = [
            self._members(steps[i : i + size], units[i : i + size], counts[i : i + size])
            for i in range(0, len(steps), size)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, dtype=np.int64)])

    def _members(self, steps: Int64s, units: Int64s, counts: Int64s) -> Int64s:
        tiles = units & ((1 << _ATTEMPT_SHIFT) - 1)
        limits = self.tiling.rows_of(tiles)
        named = limits - counts if self._inverted else counts
        words = choose(
            self._stream, Purpose.MEMBER, Cells(steps=steps, units=units, limits=limits, sizes=named)
        )
        listed = values(words, named)
        if not self._inverted:
            base = np.repeat(tiles * self.tiling.tile_rows, counts)
            np.add(listed, base, out=base, dtype=np.int64, casting="unsafe")
            return base
        member = np.arange(self.tiling.tile_rows) < limits[:, None]
        member[np.repeat(np.arange(len(tiles)), named), listed] = False
        cell, within = np.divmod(np.flatnonzero(member), self.tiling.tile_rows)
        rows: Int64s = within + tiles[cell] * self.tiling.tile_rows
        return rows

    def _dropped(self, steps: Int64s, totals: Int64s) -> tuple[npt.NDArray[np.intp], Int64s, Int64s]:
        """Which steps are over the cap; the sorted positions each of them loses, joined; how many each."""
        none = np.empty(0, dtype=np.int64)
        if self._cap is None:
            return none, none, none
        over = np.flatnonzero(totals > self._cap)
        if not over.size:
            return none, none, none
        sizes = totals[over] - self._cap
        cells = Cells(steps=steps[over], units=np.zeros_like(over), limits=totals[over], sizes=sizes)
        words = choose(self._stream, Purpose.DROP, cells)
        return over, values(words, sizes).astype(np.int64), sizes

    def _close_gaps(self, steps: Int64s, totals: Int64s, per_step: Int64s, placed: Placements) -> Placements:
        """What survives the cut, from the positions before it as slots."""
        over, ranks, sizes = self._dropped(steps, totals)
        if not len(over):
            return placed
        # One increasing list over all steps: (step, dropped position) as a single number.
        stride = int(totals.max()) + 1
        at = np.repeat(np.arange(len(steps)), per_step)
        dropped = np.repeat(over, sizes) * stride + ranks
        here = at * stride + placed.slot
        place = np.searchsorted(dropped, here)
        lost = np.zeros(len(steps), dtype=np.int64)
        lost[over] = sizes
        slot = placed.slot - (place - running(lost)[at])
        survives = dropped[np.minimum(place, len(dropped) - 1)] != here
        return Placements(*(column[survives] for column in placed._replace(slot=slot)))
