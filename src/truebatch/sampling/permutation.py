"""Keyed permutations of the rows of one tile, without storing them."""

import numpy as np
import numpy.typing as npt

from truebatch.sampling.blocks import Int64s, KeyStream, Purpose
from truebatch.sampling.tiling import CHUNK, Tiling, running

# Tiles up to this size are shuffled outright, by sorting 128-bit tags: exactly uniform.
# Larger ones go through a Feistel network, whose halves then have at least 6 bits.
SORTED_ROWS = 2**12
# The Feistel network's round words have 16 bits and its halves at most 15.
MAX_TILE_ROWS = 2**30

_LANES = 8  # 16-bit words in a block: one block serves this many rounds for one input half
_LANE_SHIFT = 16
_MOST_TABULATED = 2**20


def num_rounds(*, bits: int) -> int:
    """Rounds of the Feistel network on 2^bits rows: 2 * ceil(64 / floor(bits/2)) + 4.

    With halves of h bits the best published distinguisher for many independent networks of R >= 6 rounds
    needs about 2^(h (R - 4)) evaluations (Patarin, "Generic attacks on Feistel schemes", 2001); this many
    rounds put that at 2^128 or more.

    >>> [num_rounds(bits=bits) for bits in (13, 17, 26, 30)]
    [26, 20, 14, 14]
    """
    return 2 * -(-64 // (bits // 2)) + 4


class TilePermutations:
    """For each (epoch, tile), a permutation of the tile's rows: position -> row within the tile.

    Guarantees:
      - For every tile, a bijection of 0..rows-1.
      - Tiles up to SORTED_ROWS: uniform without error, given uniform blocks.
      - Larger tiles: cost and memory per position do not grow with the tile.
    """

    def __init__(self, stream: KeyStream, tiling: Tiling) -> None:
        self._stream, self._tiling = stream, tiling

    @property
    def blocks_per_epoch(self) -> int:
        """A bound on the blocks of an epoch: one for each round of each row, walking at most doubled."""
        return self._tiling.num_rows * 2 * num_rounds(bits=max(2, self._tiling.tile_rows.bit_length()))

    def rows(self, epoch: int, tiles: Int64s, firsts: Int64s, sizes: Int64s) -> Int64s:
        """Rows (global ids) at positions first..first+size-1 of each tile, tile after tile.

        `tiles` are consecutive.
        """
        result = np.empty(int(sizes.sum()), dtype=np.int64)
        ends = running(sizes)
        T = self._tiling
        per_call = max(1, CHUNK // (T.tile_rows if T.tile_rows <= SORTED_ROWS else 2**10))
        i = 0
        while i < len(tiles):
            # The last tile has a size of its own, and goes alone.
            j = min(i + per_call, len(tiles))
            if j == len(tiles) and tiles[-1] == T.num_tiles - 1 and T.last_rows < T.tile_rows and j - i > 1:
                j -= 1
            rows = int(T.rows_of(tiles[i:j])[0])
            piece = sizes[i:j]
            tile = np.repeat(tiles[i:j], piece)
            within = np.arange(len(tile)) + np.repeat(firsts[i:j] - running(piece)[:-1], piece)
            method = self._sorted if rows <= SORTED_ROWS else self._walked
            result[ends[i] : ends[j]] = method(epoch, tile, within, rows) + tile * T.tile_rows
            i = j
        return result

    def _sorted(self, epoch: int, tile: Int64s, position: Int64s, num_rows: int) -> Int64s:
        """Position p holds the row with the p-th smallest tag."""
        if not tile.size:
            return position
        wanted = np.arange(tile[0], tile[-1] + 1)
        tags = self._stream.draw(Purpose.TAG, epoch, wanted[:, None], np.arange(num_rows))
        high = tags[..., 1]
        order = high.argsort(axis=1)
        ranked = np.take_along_axis(high, order, axis=1)
        for i in np.flatnonzero((ranked[:, 1:] == ranked[:, :-1]).any(axis=1)):
            order[i] = np.lexsort((tags[i, :, 0], high[i]))
        rows: Int64s = order[tile - tile[0], position]
        return rows

    def _walked(self, epoch: int, tile: Int64s, position: Int64s, num_rows: int) -> Int64s:
        """A Feistel network on the next power of two, repeated until it lands inside the tile."""
        network = Feistel(self._stream, bits=(num_rows - 1).bit_length())
        row = network.apply(epoch, tile, position)
        outside = np.flatnonzero(row >= num_rows)
        while outside.size:
            row[outside] = network.apply(epoch, tile[outside], row[outside])
            outside = outside[row[outside] >= num_rows]
        return row


class Feistel:
    """A balanced (or one bit off) Feistel network on `bits` bits with AES round functions.

    The value is split into a left half of floor(bits/2) bits and a right half of the rest. Even rounds do
    left ^= F(right), odd rounds right ^= F(left), and F of round i keeps the low bits of the 16-bit word
    i mod 8 of the block (ROUND, epoch, tile, floor(i/8) * 2^16 + half).
    """

    def __init__(self, stream: KeyStream, *, bits: int) -> None:
        self._stream = stream
        self._left_bits = bits // 2
        self._right_bits = bits - bits // 2
        self._rounds = num_rounds(bits=bits)

    def apply(self, epoch: int, tile: Int64s, value: Int64s) -> Int64s:
        """The images of the values, each in its own tile's permutation; tiles in increasing order."""
        if not value.size:
            return value
        bits, num_tiles = self._right_bits, int(tile[-1] - tile[0]) + 1
        num_lanes = -(-self._rounds // _LANES)
        num_blocks = num_tiles * num_lanes << bits
        # Whole tables of the round functions pay off once most entries are read, and while they stay small.
        tabulate = num_blocks <= 2 * value.size * self._rounds and num_blocks <= _MOST_TABULATED
        # Each half carries its tile's place in the table above its own bits.
        place = (tile - tile[0]) << bits
        left, right = place | value >> bits, place | value & ((1 << bits) - 1)
        for lane in range(num_lanes):
            table = self._table(epoch, tile, lane) if tabulate else None
            for i in range(lane * _LANES, min((lane + 1) * _LANES, self._rounds)):
                source, target = (left, right) if i % 2 else (right, left)
                if table is None:
                    words = self._words(epoch, tile, lane, source & ((1 << bits) - 1))[:, i % _LANES]
                else:
                    words = table[:, i % _LANES][source]
                target ^= words & np.uint16((1 << (self._right_bits if i % 2 else self._left_bits)) - 1)
        result: Int64s = (left - place) << bits | (right - place)
        return result

    def _table(self, epoch: int, tile: Int64s, lane: int) -> npt.NDArray[np.uint16]:
        """The words of eight rounds, one line for each (tile, half)."""
        tiles = np.arange(tile[0], tile[-1] + 1)
        return self._words(epoch, tiles[:, None], lane, np.arange(1 << self._right_bits)).reshape(-1, _LANES)

    def _words(self, epoch: int, tile: Int64s, lane: int, half: Int64s) -> npt.NDArray[np.uint16]:
        return self._stream.draw(Purpose.ROUND, epoch, tile, (lane << _LANE_SHIFT) + half).view("<u2")
