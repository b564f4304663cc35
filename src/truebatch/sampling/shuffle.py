"""Samplers that walk through the rows: in order, shuffled, or thrown into bins, epoch by epoch."""

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from truebatch.sampling.blocks import Int64s, KeyStream
from truebatch.sampling.permutation import TilePermutations
from truebatch.sampling.splits import Bounds, SplitTree
from truebatch.sampling.tiling import CHUNK, Placements, Steps, Tiling, chunks, running

_WINDOW_COUNTS = 2**18


class InOrderPlan:
    """Batch t holds rows (t mod S) b .. (t mod S) b + b - 1."""

    distance = Fraction(0)
    num_blocks = 0

    def __init__(self, *, num_rows: int, batch_size: int) -> None:
        self.tiling = Tiling(num_rows=num_rows, tile_rows=1)
        self._b, self._S = batch_size, num_rows // batch_size

    def sizes(self, steps: Steps) -> Iterator[Int64s]:
        """b, for every step."""
        yield np.full(len(steps), self._b)

    def batches(self, steps: range) -> Iterator[Int64s]:
        """The rows of each step."""
        for t in steps:
            yield np.arange(t % self._S * self._b, (t % self._S + 1) * self._b)

    def placements(self, start: int, stop: int, steps: Steps) -> Iterator[Placements]:
        """(step, slot, row) for the rows in [start, stop), by step and then by row."""
        for t in steps if isinstance(steps, range) else steps.tolist():
            low = t % self._S * self._b
            row = np.arange(max(start, low), min(stop, low + self._b))
            if row.size:
                yield Placements(step=np.full(row.size, t), slot=row - low, row=row)


class WalkPlan:
    """Each epoch is a uniform partition of the rows into its steps' batches.

    How many rows of each tile go to each step is drawn by `SplitTree`; which ones, by a keyed permutation of
    the tile: its first rows go to step 0, the next to step 1, and so on.

    `bounds` gives the sizes: multiples of b for shuffles, random for balls and bins. A persistent plan draws
    every epoch as epoch 0.
    """

    def __init__(
        self,
        stream: KeyStream,
        *,
        tiling: Tiling,
        steps_per_epoch: int,
        num_epochs: int,
        bounds: Bounds,
        bounds_distance: Fraction = Fraction(0),
        persistent: bool = False,
    ) -> None:
        self.tiling = tiling
        self._S, self._E, self._bounds, self._persistent = steps_per_epoch, num_epochs, bounds, persistent
        self._bounds_distance = bounds_distance
        self._tree = SplitTree(stream, tiling=tiling, num_steps=steps_per_epoch, bounds=bounds)
        self._permutations = TilePermutations(stream, tiling)

    @property
    def distance(self) -> Fraction:
        """Total variation distance of all epochs' counts to the ideal ones, given uniform blocks."""
        return self._bounds_distance + self._num_draws * self._tree.distance_per_epoch

    @property
    def num_blocks(self) -> int:
        """A bound on the blocks of the whole schedule."""
        # The sizes of balls and bins use fewer blocks than there are rows: a factor of two has room for them.
        return 2 * self._num_draws * (self._tree.blocks_per_epoch + self._permutations.blocks_per_epoch)

    @property
    def _num_draws(self) -> int:
        return 1 if self._persistent else self._E

    def sizes(self, steps: Steps) -> Iterator[Int64s]:
        """The sizes of the batches, chunk by chunk."""
        for chunk in chunks(steps, CHUNK):
            sizes = np.empty_like(chunk)
            epochs = chunk // self._S
            for epoch in np.unique(epochs):
                some = epochs == epoch
                step = chunk[some] % self._S
                sizes[some] = self._bounds(self._drawn(int(epoch)), step + 1) - self._bounds(
                    self._drawn(int(epoch)), step
                )
            yield sizes

    def batches(self, steps: range) -> Iterator[Int64s]:
        """The sorted rows of each step."""
        K = self.tiling.num_tiles
        for epoch, first, last in self._windows(steps, num_tiles=K):
            at, _, row = self._window(epoch, first, last, 0, K)
            ends = np.searchsorted(at, np.arange(last - first + 1))
            for i in range(last - first):
                batch = row[ends[i] : ends[i + 1]]
                yield batch if last - first == 1 else batch.copy()

    def placements(self, start: int, stop: int, steps: Steps) -> Iterator[Placements]:
        """(step, slot, row) for the rows in [start, stop), by step and then by row."""
        if start == stop or not len(steps):
            return
        low, high = self.tiling.touched(start, stop)
        hull = steps if isinstance(steps, range) else range(int(steps[0]), int(steps[-1]) + 1)
        for epoch, first, last in self._windows(hull, num_tiles=high - low):
            base = epoch * self._S
            if not isinstance(steps, range):
                wanted = np.zeros(last - first, dtype=np.bool_)
                some = slice(*np.searchsorted(steps, (base + first, base + last)))
                wanted[steps[some] - base - first] = True
                if not wanted.any():
                    continue
            at, slot, row = self._window(epoch, first, last, low, high)
            keep = (row >= start) & (row < stop)
            if not isinstance(steps, range):
                keep &= wanted[at]
            yield Placements(step=at[keep] + (base + first), slot=slot[keep], row=row[keep])

    def _drawn(self, epoch: int) -> int:
        return 0 if self._persistent else epoch

    def _windows(self, steps: range, *, num_tiles: int) -> Iterator[tuple[int, int, int]]:
        """(epoch, first, last): runs of steps of one epoch, few enough to be held at once."""
        members_per_step = -(-self.tiling.num_rows * num_tiles // (self._S * self.tiling.num_tiles))
        size = max(1, min(CHUNK // members_per_step, _WINDOW_COUNTS // self.tiling.num_tiles))
        t = steps.start
        while t < steps.stop:
            epoch, first = divmod(t, self._S)
            last = min(first + size, self._S, first + steps.stop - t)
            yield epoch, first, last
            t += last - first

    def _window(
        self, epoch: int, first: int, last: int, low: int, high: int
    ) -> tuple[Int64s, Int64s, Int64s]:
        """The members of tiles low..high-1 in steps first..last-1: (step - first, slot, row), sorted."""
        drawn = self._drawn(epoch)
        counts, earlier = self._tree.window(drawn, first, last)
        inside = counts[:, low:high]
        row = self._permutations.rows(drawn, np.arange(low, high), earlier[0, low:high], inside.sum(axis=0))
        at = np.repeat(np.tile(np.arange(last - first), high - low), inside.T.ravel())
        # One sort by (step, row), as a single number.
        shift = self.tiling.num_rows.bit_length()
        key = at << shift | row
        key.sort()
        at, row = key >> shift, key & ((1 << shift) - 1)
        per_step = inside.sum(axis=1)
        lead = counts[:, :low].sum(axis=1) - running(per_step)[:-1]
        return at, np.arange(len(row)) + np.repeat(lead, per_step), row
