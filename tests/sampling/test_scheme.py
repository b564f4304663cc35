"""The published scheme, written a second time from its description, one block and one row at a time."""

import bisect
import functools
import hashlib
import hmac
import itertools
import math
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.keys import Key
from truebatch.sampling import permutation, schedule
from truebatch.specs import (
    BallsAndBins,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    TruncatedPoisson,
)

KEY = Key.for_tests(77)
COUNT, MEMBER, DROP, HALF, MOVE, TAG, ROUND, BIN_COUNT, BIN_ADD, BIN_DROP = range(1, 11)


def thresholds(weights: list[int]) -> list[int]:
    """floor(2^128 P(X <= c) + 1/2) for c = 0, 1, ... of the law with these weights, without the last c."""
    total = sum(weights)
    return [(2 * (below << 128) + total) // (2 * total) for below in itertools.accumulate(weights[:-1])]


@functools.cache
def binomial(n: int, yes: int, no: int) -> list[int]:
    return thresholds([math.comb(n, c) * yes**c * no ** (n - c) for c in range(n + 1)])


@functools.cache
def fair_power(j: int) -> list[int]:
    weights = [1]
    for c in range(1 << j):
        weights.append(weights[-1] * ((1 << j) - c) // (c + 1))
    return thresholds(weights)


@functools.cache
def poisson_law(mean: int) -> list[int]:
    # Cut where the terms are below 2^-300 of the sum, over a common denominator.
    last = 12 * mean + 200
    weights = [math.factorial(last)]
    for c in range(1, last + 1):
        weights.append(weights[-1] * mean // c)
    return thresholds(weights)


class Scheme:
    """Everything in whole numbers and lists."""

    def __init__(self, key: Key) -> None:
        extracted = hmac.digest(b"truebatch key v1", key.to_bytes(), hashlib.sha256)
        secret = hmac.digest(extracted, b"sampling truebatch-schedule/1\x01", hashlib.sha256)
        self._aes = Cipher(algorithms.AES256(secret), modes.ECB()).encryptor()

    def block(self, purpose: int, step: int, unit: int, counter: int) -> int:
        low = purpose << 56 | (counter >> 24) << 40 | step
        high = unit << 24 | counter & 0xFFFFFF
        out = self._aes.update(low.to_bytes(8, "little") + high.to_bytes(8, "little"))
        return int.from_bytes(out, "little")

    def words(self, purpose: int, step: int, unit: int, limit: int):
        size, counter = 32 if limit <= 2**31 else 64, 0
        while True:
            block = self.block(purpose, step, unit, counter)
            for i in range(128 // size):
                word = block >> size * i & ((1 << (limit - 1).bit_length()) - 1)
                if word < limit:
                    yield word
            counter += 1

    def subset(self, purpose: int, step: int, unit: int, limit: int, size: int) -> list[int]:
        words, chosen = self.words(purpose, step, unit, limit), set()
        while len(chosen) < size:
            chosen.add(next(words))
        return sorted(chosen)

    def count(self, table: list[int], block: int) -> int:
        """Inverse CDF: how many of the thresholds are at most the block."""
        return bisect.bisect_right(table, block)

    # Poisson, cut Poisson, fixed size.

    def poisson(self, n: int, rate: int, tile_rows: int, t: int, attempt: int = 0) -> list[int]:
        rows = []
        for k in range(-(-n // tile_rows)):
            limit, unit = min(tile_rows, n - k * tile_rows), attempt << 32 | k
            inverted = 2 * rate > 2**64
            yes = 2**64 - rate if inverted else rate
            size = self.count(binomial(limit, yes, 2**64 - yes), self.block(COUNT, t, unit, 0))
            named = self.subset(MEMBER, t, unit, limit, size)
            chosen = sorted(set(range(limit)) - set(named)) if inverted else named
            rows += [k * tile_rows + row for row in chosen]
        return rows

    def cut(self, rows: list[int], cap: int, t: int) -> list[int]:
        if len(rows) <= cap:
            return rows
        dropped = set(self.subset(DROP, t, 0, len(rows), len(rows) - cap))
        return [row for i, row in enumerate(rows) if i not in dropped]

    def fixed_size(self, n: int, b: int, tile_rows: int, t: int) -> list[int]:
        mean, attempt = min(b + 3 * (math.isqrt(b) + 1), n), 0
        while True:
            rows = self.poisson(n, (mean << 64) // n, tile_rows, t, attempt)
            if len(rows) >= b:
                return self.cut(rows, b, t)
            attempt += 1

    # Shuffles, balls and bins.

    def half(self, e: int, node: int, tile: int, digit: int, m: int) -> int:
        place = tile << 16 | digit << 11
        result = (self.block(HALF, e, node, place) & ((1 << m % 128) - 1)).bit_count()
        for j in range(7, 20):
            if m >> j & 1:
                result += self.count(fair_power(j), self.block(HALF, e, node, place + j))
        return result

    def share(self, e: int, node: int, counts: list[int], wanted: int) -> list[int]:
        total = sum(counts)
        if wanted in (0, total):
            return [count if wanted else 0 for count in counts]
        left, undecided = [0] * len(counts), list(counts)
        digits = wanted * 2 ** (math.ceil(total.bit_length() / 2) + 1) // total
        length = math.ceil(total.bit_length() / 2) + 1
        exact = Fraction(wanted, total)
        for digit in range(length):
            # The digits stop where the fraction does.
            if (exact * 2**digit).denominator == 1:
                break
            one = digits >> (length - 1 - digit) & 1
            for k, m in enumerate(undecided):
                zeros = self.half(e, node, k, digit, m)
                left[k] += zeros if one else 0
                undecided[k] = m - zeros if one else zeros
        return left

    def left_child(self, e: int, node: int, counts: list[int], wanted: int) -> list[int]:
        if len(counts) == 1:
            return [wanted]
        left = self.share(e, node, counts, wanted)
        surplus = sum(left) - wanted
        side = left if surplus > 0 else [c - x for c, x in zip(counts, left, strict=True)]
        owners = [k for k, size in enumerate(side) for _ in range(size)]
        for rank in self.subset(MOVE, e, node, len(owners), abs(surplus)) if surplus else []:
            left[owners[rank]] += -1 if surplus > 0 else 1
        return left

    def table(self, e: int, counts: list[int], edges: list[int]) -> list[list[int]]:
        """Counts per tile of each step, from the step edges 0 = edges[0] <= ... <= edges[S] = n."""
        result = [[]] * (len(edges) - 1)

        def descend(node: int, begin: int, end: int, counts: list[int], depth: int) -> None:
            if end == begin:
                return
            if depth == (len(edges) - 2).bit_length():
                result[begin] = counts
                return
            middle = (begin + end) // 2
            left = self.left_child(e, node, counts, edges[middle] - edges[begin])
            right = [c - x for c, x in zip(counts, left, strict=True)]
            descend(2 * node, begin, middle, left, depth + 1)
            descend(2 * node + 1, middle, end, right, depth + 1)

        descend(1, 0, len(edges) - 1, counts, 0)
        return result

    def permutation(self, e: int, tile: int, rows: int, sorted_rows: int) -> list[int]:
        """Row at each position."""
        if rows <= sorted_rows:
            return sorted(range(rows), key=lambda row: self.block(TAG, e, tile, row))
        bits = (rows - 1).bit_length()
        result = []
        for position in range(rows):
            row = self.feistel(e, tile, bits, position)
            while row >= rows:
                row = self.feistel(e, tile, bits, row)
            result.append(row)
        return result

    def feistel(self, e: int, tile: int, bits: int, value: int) -> int:
        a, b = bits // 2, bits - bits // 2
        left, right = value >> b, value & ((1 << b) - 1)
        for i in range(2 * math.ceil(64 / a) + 4):
            half = left if i % 2 else right
            word = self.block(ROUND, e, tile, i // 8 << 16 | half) >> 16 * (i % 8) & 0xFFFF
            if i % 2:
                right ^= word & ((1 << b) - 1)
            else:
                left ^= word & ((1 << a) - 1)
        return left << b | right

    def bin_sizes(self, e: int, n: int, S: int) -> list[int]:
        if S == 1:
            return [n]
        b = n // S
        sizes = [self.count(poisson_law(b), self.block(BIN_COUNT, e, s, 0)) for s in range(S)]
        missing = n - sum(sizes)
        if missing >= 0:
            words = self.words(BIN_ADD, e, 0, S)
            for _ in range(missing):
                sizes[next(words)] += 1
        else:
            owners = [s for s, size in enumerate(sizes) for _ in range(size)]
            for rank in self.subset(BIN_DROP, e, 0, len(owners), -missing):
                sizes[owners[rank]] -= 1
        return sizes

    def epoch(self, e: int, tile_rows: int, edges: list[int], sorted_rows: int) -> list[list[int]]:
        n = edges[-1]
        limits = [min(tile_rows, n - k * tile_rows) for k in range(-(-n // tile_rows))]
        shuffled = [self.permutation(e, k, limit, sorted_rows) for k, limit in enumerate(limits)]
        batches, used = [], [0] * len(limits)
        for counts in self.table(e, limits, edges):
            batch = []
            for k, count in enumerate(counts):
                batch += [k * tile_rows + row for row in shuffled[k][used[k] : used[k] + count]]
                used[k] += count
            batches.append(sorted(batch))
        return batches


def tile_rows(n: int, b: int, most: int) -> int:
    per_cell = min(max(math.isqrt(b), 128), 1024)
    size = 1
    while 2 * size * b <= per_cell * n and size < n and 2 * size <= most:
        size *= 2
    return size


@pytest.mark.parametrize(
    ("n", "b"), [(1, 1), (5, 5), (40, 39), (40, 3), (300, 200), (700, 2), (1000, 333), (700, 690)]
)
def test_poisson_and_its_relatives_are_as_published(n, b):
    scheme, T = Scheme(KEY), 3
    R = tile_rows(n, b, 2**62)
    full = {"num_examples": n, "batch_size": b, "num_steps": T}
    plain, fixed = schedule(Poisson(**full), KEY), schedule(FixedSizeSampling(**full), KEY)
    cut = schedule(TruncatedPoisson(**full, max_batch_size=b), KEY)
    assert plain.tile_rows == R
    for t in range(T):
        rows = scheme.poisson(n, (b << 64) // n, R, t)
        assert plain.members(t).tolist() == rows
        assert cut.members(t).tolist() == scheme.cut(rows, b, t)
        assert fixed.members(t).tolist() == scheme.fixed_size(n, b, R, t)


@pytest.mark.parametrize(("S", "b"), [(1, 1), (1, 7), (7, 1), (5, 30), (3, 450), (4, 400), (7, 300)])
@pytest.mark.parametrize("sorted_rows", [2**12, 2**6])
def test_walks_are_as_published(S, b, sorted_rows, monkeypatch):
    monkeypatch.setattr(permutation, "SORTED_ROWS", sorted_rows)
    scheme, n, E = Scheme(KEY), S * b, 2
    R = tile_rows(n, b, 2**30)
    full = {"num_examples": n, "batch_size": b, "num_steps": S * E}
    dynamic, persistent = schedule(DynamicShuffle(**full), KEY), schedule(PersistentShuffle(**full), KEY)
    bins = schedule(BallsAndBins(**full), KEY)
    assert dynamic.tile_rows == R
    even = [s * b for s in range(S + 1)]
    first = scheme.epoch(0, R, even, sorted_rows)
    for e in range(E):
        steps = slice(e * S, (e + 1) * S)
        assert [x.tolist() for x in dynamic.batches()][steps] == scheme.epoch(e, R, even, sorted_rows)
        assert [x.tolist() for x in persistent.batches()][steps] == first
        sizes = scheme.bin_sizes(e, n, S)
        edges = [sum(sizes[:s]) for s in range(S + 1)]
        assert [x.tolist() for x in bins.batches()][steps] == scheme.epoch(e, R, edges, sorted_rows)
