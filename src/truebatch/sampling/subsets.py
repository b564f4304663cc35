"""Uniform subsets without replacement, many at once: the first distinct words of a stream."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from truebatch.sampling.blocks import Int64s, KeyStream, Purpose

# A legal 32-bit word is below 2^31 and a legal 64-bit word below 2^62, so all ones can stand for "none".
_NARROW_LIMIT = 2**31
# Cells short of a value are topped up from this many further words, one at a time, before starting over.
_FEW = 4

Words = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Requests for subsets: of `limits[c]` numbers, `sizes[c]`, from the stream (steps[c], units[c])."""

    steps: Int64s
    units: Int64s
    limits: Int64s
    sizes: Int64s

    def take(self, rows: Int64s) -> "Cells":
        """Some of the cells."""
        return Cells(
            steps=self.steps[rows], units=self.units[rows], limits=self.limits[rows], sizes=self.sizes[rows]
        )


def choose(stream: KeyStream, purpose: Purpose, cells: Cells) -> Words:
    """For each cell, a uniform subset of `size` of the numbers 0..limit-1.

    The stream of a cell is its blocks with counters 0, 1, 2, ..., each cut into words: four of
    32 bits when limit <= 2^31, else two of 64 bits, lowest bits first. Of a word the lowest
    ceil(log2(limit)) bits are kept; what is then not below the limit is passed over. The subset is the first
    `size` distinct values.

    Guarantees:
      - Row c holds sizes[c] values in increasing order, then `absent`.
      - Given independent uniform blocks, every subset of that size is equally likely, without error.
      - A cell's subset depends on its own blocks only, not on the cells computed beside it.
    """
    wide = cells.limits > _NARROW_LIMIT
    if not wide.any():
        return _choose(stream, purpose, cells, np.dtype("<u4"))
    result = np.full((len(wide), int(cells.sizes.max())), 2**64 - 1, dtype=np.uint64)
    for rows, kind in ((np.flatnonzero(wide), "<u8"), (np.flatnonzero(~wide), "<u4")):
        if rows.size:
            part = _choose(stream, purpose, cells.take(rows), np.dtype(kind))
            part = part[:, : result.shape[1]]
            padded = np.where(part == absent(part), absent(result), part.astype(np.uint64))
            result[rows, : part.shape[1]] = padded
    return result


def uniform_words(
    stream: KeyStream, purpose: Purpose, *, step: int, unit: int, limit: int, size: int
) -> Words:
    """`size` independent uniform numbers below the limit: the first legal words of a stream."""
    kind = np.dtype("<u8" if limit > _NARROW_LIMIT else "<u4")
    one = np.array([step]), np.array([unit]), np.array([limit]), np.array([size])
    cells = Cells(steps=one[0], units=one[1], limits=one[2], sizes=one[3])
    num_words = size + _FEW
    while True:
        words = _Reader(stream, purpose, kind).words(cells, num_words)[0, :size]
        if (words != absent(words)).all():
            return words
        num_words *= 2


def absent(words: Words) -> Any:
    """The value that stands for no word: all ones."""
    return words.dtype.type(np.iinfo(words.dtype).max)


def values(words: Words, sizes: Int64s) -> Words:
    """The values in what `choose` returned, cell by cell, without the absent ones."""
    # Comparing narrow numbers is twice as fast.
    kind = np.int16 if words.shape[1] < 2**15 else np.int64
    columns: Words = np.arange(words.shape[1]).astype(kind)
    wanted: Words = sizes.astype(kind)
    listed: Words = words[columns < wanted[:, None]]
    return listed


def _choose(stream: KeyStream, purpose: Purpose, cells: Cells, kind: np.dtype[Any]) -> Words:
    """One pass over as many words as values are wanted, then more words for the cells that fell short."""
    sizes, reader = cells.sizes, _Reader(stream, purpose, kind)
    # A few words more than wanted: they are what replaces a repeated one.
    ahead = reader.words(cells, int(sizes.max(initial=0)) + _FEW)
    none = absent(ahead)
    words = ahead.copy()
    least = int(sizes.min(initial=0))
    np.copyto(words[:, least:], none, where=np.arange(least, words.shape[1]) >= sizes[:, None])
    words.sort(axis=1)
    repeats = words[:, 1:] == words[:, :-1]
    repeats &= words[:, 1:] != none
    short = repeats.any(axis=1)
    uneven = np.flatnonzero((cells.limits & (cells.limits - 1) != 0) & (sizes > 0))
    short[uneven] |= words[uneven, sizes[uneven] - 1] == none
    rows = np.flatnonzero(short)
    if rows.size:
        some = words[rows]
        some[:, 1:][repeats[rows]] = none
        words[rows] = _fill(reader, cells.take(rows), some, ahead[rows])
    return words


@dataclass(frozen=True)
class _Reader:
    """The streams of one purpose."""

    stream: KeyStream
    purpose: Purpose
    kind: np.dtype[Any]

    def words(self, cells: Cells, num_words: int) -> Words:
        """The first num_words (or a few more) legal words of each cell in order, then perhaps `absent`."""
        words = self._raw(cells, num_words)
        uneven = np.flatnonzero(cells.limits & (cells.limits - 1))
        if uneven.size:
            # Up to half of these words are passed over: read more of them and close the gaps.
            some = cells.take(uneven)
            raw = self._raw(some, 2 * num_words + 6 * math.isqrt(num_words) + 8)
            legal = raw < some.limits[:, None].astype(self.kind)
            held = legal.sum(axis=1)
            front = np.arange(words.shape[1]) < held[:, None]
            closed = np.full(front.shape, absent(words))
            closed[front] = raw[legal & (legal.cumsum(axis=1) <= words.shape[1])]
            words[uneven] = closed
        return words

    def _raw(self, cells: Cells, num_words: int) -> Words:
        counters = np.arange(-(-num_words * self.kind.itemsize // 16))
        blocks = self.stream.draw(self.purpose, cells.steps[:, None], cells.units[:, None], counters)
        words = blocks.view(self.kind).reshape(len(cells.limits), len(counters) * 16 // self.kind.itemsize)
        words &= _all_ones(cells.limits - 1).astype(self.kind)[:, None]
        return words


def _all_ones(values: Int64s) -> Int64s:
    """The smallest 2^k - 1 that is at least each value."""
    for shift in (1, 2, 4, 8, 16, 32):
        values = values | (values >> shift)
    return values


def _fill(reader: _Reader, cells: Cells, words: Words, ahead: Words) -> Words:
    """Complete cells whose first `size` words held repeats or gaps, now marked absent."""
    words.sort(axis=1)
    held = (words != absent(words)).sum(axis=1)
    rows = np.arange(len(held))
    for extra in range(_FEW):
        rows = rows[held[rows] < cells.sizes[rows]]
        word = ahead[rows, cells.sizes[rows] + extra]
        new = (word != absent(words)) & ~(words[rows] == word[:, None]).any(axis=1)
        words[rows[new], held[rows[new]]] = word[new]
        held[rows[new]] += 1
    words.sort(axis=1)
    rows = np.flatnonzero(held < cells.sizes)
    if rows.size:
        words[rows] = absent(words)
        words[rows, : cells.sizes[rows].max()] = _start_over(reader, cells.take(rows))
    return words


def _start_over(reader: _Reader, cells: Cells) -> Words:
    """The definition of `choose`, word by word, over as long a stretch of each stream as it takes."""
    sizes = cells.sizes
    result = np.full((len(sizes), int(sizes.max())), np.iinfo(reader.kind).max, dtype=reader.kind)
    waiting = np.arange(len(sizes))
    num_words = int(sizes.max()) * 3 // 2 + 16
    while waiting.size:
        words = reader.words(cells.take(waiting), num_words)
        fresh = _first_occurrences(words)
        rank = fresh.cumsum(axis=1)
        done = np.flatnonzero(rank[:, -1] >= sizes[waiting])
        fresh &= rank <= sizes[waiting, None]
        values = np.where(fresh[done], words[done], absent(words))
        values.sort(axis=1)
        result[waiting[done]] = values[:, : result.shape[1]]
        waiting = np.delete(waiting, done)
        num_words *= 2
    return result


def _first_occurrences(words: Words) -> npt.NDArray[np.bool_]:
    """Where, in stream order, a legal value appears for the first time in its row."""
    if words.dtype.itemsize == 4:
        # Sorting (value, position) as one number is much faster than a stable argsort.
        packed = words.astype(np.uint64) << np.uint64(32) | np.arange(words.shape[1], dtype=np.uint64)
        packed.sort(axis=1)
        values, order = packed >> np.uint64(32), (packed & np.uint64(2**32 - 1)).astype(np.intp)
        first = values != np.uint64(2**32 - 1)
    else:
        order = words.argsort(axis=1, kind="stable")
        values = np.take_along_axis(words, order, axis=1)
        first = values != absent(words)
    first[:, 1:] &= values[:, 1:] != values[:, :-1]
    result: npt.NDArray[np.bool_] = np.empty_like(first)
    np.put_along_axis(result, order, first, axis=1)
    return result
