"""How many rows fall into each step of an epoch of balls and bins."""

import numpy as np

from truebatch.sampling.blocks import Int64s, KeyStream, Purpose
from truebatch.sampling.subsets import Cells, choose, uniform_words, values
from truebatch.sampling.tables import poisson_table
from truebatch.sampling.tiling import running

_MEMO_EPOCHS = 2


class BinSizes:
    """Batch sizes of an epoch: multinomial, num_rows rows over num_steps equally likely steps.

    Independent Poisson(b) counts, given their sum N, are N rows thrown independently. When N is short of
    num_rows, the missing rows are thrown as well; when it is over, a uniform subset of the N is taken back.
    Either way num_rows independent throws are left.

    Guarantees:
      - The sizes of an epoch add up to num_rows.
      - Takes time and memory in proportion to num_steps + sqrt(num_rows) an epoch; the last epochs are kept.
    """

    def __init__(self, stream: KeyStream, *, num_rows: int, num_steps: int) -> None:
        self._stream, self._num_rows, self._num_steps = stream, num_rows, num_steps
        self._table = poisson_table(mean=num_rows // num_steps)
        self.distance_per_epoch = num_steps * self._table.distance
        self._memo: dict[int, Int64s] = {}

    def bounds(self, epoch: int, steps: Int64s) -> Int64s:
        """How many rows fall into the steps before each of `steps`."""
        edges = self._memo.get(epoch)
        if edges is None:
            edges = running(self._sizes(epoch))
            self._memo = {**dict(list(self._memo.items())[1 - _MEMO_EPOCHS :]), epoch: edges}
        return edges[steps]

    def _sizes(self, epoch: int) -> Int64s:
        S = self._num_steps
        if S == 1:
            return np.array([self._num_rows])
        sizes = self._table.lookup(self._stream.draw(Purpose.BIN_COUNT, epoch, np.arange(S), 0))
        total = int(sizes.sum())
        missing = self._num_rows - total
        if missing > 0:
            thrown = uniform_words(self._stream, Purpose.BIN_ADD, step=epoch, unit=0, limit=S, size=missing)
            return sizes + np.bincount(thrown.astype(np.int64), minlength=S)
        cells = Cells(
            steps=np.array([epoch]), units=np.array([0]), limits=np.array([total]), sizes=np.array([-missing])
        )
        words = choose(self._stream, Purpose.BIN_DROP, cells)
        taken = values(words, cells.sizes).astype(np.int64)
        edges = running(sizes)
        return sizes - np.diff(np.searchsorted(taken, edges))
