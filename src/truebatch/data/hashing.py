"""The hash that puts values into buckets, `truebatch-hash/1`: public, keyed by column, the same everywhere.

Words have 64 bits. `mix` is the finalizer of SplitMix64 (Steele, Lea and Flood, "Fast splittable
pseudorandom number generators", 2014). Column j, counted from 0, has the seed mix((j + 1) G), where G is
2^64 / golden ratio.

- An integer v (also a truth value, date, time): mix(seed xor v), v in two's complement.
- A value of L bytes: h = seed xor (L + 1) G, then h = mix(h xor w) for every word w of its bytes,
  little-endian and filled up with zeros. A value of more than 256 bytes stands for its BLAKE2b digest of 32.

The bucket of h among k is the upper half of h, times k, divided by 2^32.
"""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

SCHEME = "truebatch-hash/1"

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_LONG = 256
_HALF = np.uint64(32)


def mix(words: Words) -> Words:
    """A bijection of words in which every bit of the input moves half of the bits."""
    words = words ^ (words >> np.uint64(30))
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def seed_of(column: int) -> np.uint64:
    """The seed of a column, by its place among the categorical ones."""
    return np.uint64(mix(np.array([column + 1], np.uint64) * _GOLDEN)[0])


def hashes(array: pa.Array, column: int) -> Words:
    """A word for each value of an array of integers, truth values, dates, times, text or bytes.

    What stands for a null is no value of meaning.
    """
    kind = array.type
    if pat.is_boolean(kind):
        array = array.cast(pa.uint8())
    elif not (pat.is_integer(kind) or pat.is_temporal(kind)):
        return _hashes_of_bytes(array.cast(pa.large_binary()), seed_of(column))
    width = array.type.bit_width // 8
    sign = "u" if pat.is_unsigned_integer(array.type) else "i"
    data = array.buffers()[1]
    if data is None:  # no value at all
        return np.zeros(len(array), np.uint64)
    numbers = np.frombuffer(data, f"{sign}{width}", count=len(array), offset=array.offset * width)
    return mix(numbers.astype(np.int64, copy=False).view(np.uint64) ^ seed_of(column))


def buckets_of(words: Words, count: int) -> Words:
    """A bucket from 0 to count - 1 for each word."""
    places = words >> _HALF
    places *= np.uint64(count)
    places >>= _HALF
    return places


def _hashes_of_bytes(array: pa.Array, seed: np.uint64) -> Words:
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=array.offset * 8)
    values = np.frombuffer(data if data is not None else b"", np.uint8)[ends[0] : ends[-1]]
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    if len(lengths) and lengths.max() > _LONG:
        return _hashes_of_bytes(_with_digests(array), seed)
    # Eight bytes can be read from every offset, and what follows a value is masked away.
    padded = np.concatenate([values, np.zeros(8, np.uint8)])
    words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
    found: Words = seed ^ ((lengths + 1).view(np.uint64) * _GOLDEN)
    active: npt.NDArray[np.int64] | slice = slice(None)
    for at in range(0, int(lengths.max(initial=0)), 8):
        left = lengths[active] - at
        if (left <= 0).any():
            active = np.flatnonzero(lengths > at)
            left = lengths[active] - at
        kept = np.minimum(left, 8).view(np.uint64) * np.uint64(8)
        word = words[starts[active] + at] & (np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(64) - kept))
        found[active] = mix(found[active] ^ word)
    return found


def _with_digests(array: pa.Array) -> pa.Array:
    def short(value: bytes | None) -> bytes | None:
        if value is None or len(value) <= _LONG:
            return value
        return hashlib.blake2b(value, digest_size=32).digest()

    return pa.array([short(value) for value in array.to_pylist()], pa.large_binary())
