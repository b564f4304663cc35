"""The random words of the noise: AES-256 in counter mode, addressed by step and coordinate."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key

UInt64s = npt.NDArray[np.uint64]

# Other words for the same key are another version.
SCHEME = "truebatch-noise/1"
_PURPOSE = "noise"
_WORDS, _REFINEMENT = 1, 2  # the first byte of a block's number
STEP_LIMIT = 2**40
_BLOCK_BYTES, _WORD_BYTES = 16, 8
_PIECE_BYTES = 2**20
# Its encryption is the key stream. Not a bytes object: those are encrypted without letting other threads run.
_ZEROS = np.zeros(_PIECE_BYTES, dtype=np.uint8)
# update_into asks for one block less a byte of room past the end.
SPARE_WORDS = 2


class NoiseWords:
    """A keyed function from (step, coordinate) to bits: no state, nothing to advance.

    Block (purpose, step, counter) is AES-256, under the key derived for this scheme, of 16 bytes: purpose,
    step in 7 bytes and counter in 8, big-endian. Coordinate i has the word in half i mod 2 of block
    (1, step, i div 2), little-endian, and as its refinement block (2, step, i).

    Guarantees:
      - The same bits on any machine, in any thread, in any order, after any retry.
      - No block is used for two purposes, steps or counters.
      - `repr` is free of the key, and pickling raises.
    """

    def __init__(self, key: Key) -> None:
        self._key = key.derive(f"{_PURPOSE} {SCHEME}")

    def fill(self, out: UInt64s, *, step: int, first: int, pool: ThreadPoolExecutor) -> None:
        """Write the words of coordinates first, first + 1, ... of a step; `first` and the number are even.

        The last SPARE_WORDS of `out` are working room.
        """
        count = len(out) - SPARE_WORDS
        if first % 2 or count % 2 or count < 0:
            raise InvalidArgument(f"words come in pairs; got first={first}, count={count}.")
        share = -(-count // num_threads() // 2) * 2
        starts = range(0, count, max(share, 2))
        # A stream mode writes as much as it reads: shares do not touch each other's words.
        jobs = [
            pool.submit(self._stream, out, step, first, start, min(start + share, count)) for start in starts
        ]
        for job in jobs:
            job.result()

    def _stream(self, out: UInt64s, step: int, first: int, start: int, stop: int) -> None:
        number = _block_number(_WORDS, step, (first + start) // 2)
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.CTR(number)).encryptor()
        target = out.view(np.uint8).data[start * _WORD_BYTES :]
        size = (stop - start) * _WORD_BYTES
        for begin in range(0, size, _PIECE_BYTES):
            length = min(_PIECE_BYTES, size - begin)
            encryptor.update_into(_ZEROS.data[:length], target[begin : begin + length + _BLOCK_BYTES - 1])

    def refinement(self, *, step: int, coordinate: int) -> int:
        """128 more bits for one coordinate, as a whole number."""
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.ECB()).encryptor()
        return int.from_bytes(encryptor.update(_block_number(_REFINEMENT, step, coordinate)), "little")

    def __reduce__(self) -> NoReturn:
        raise InvalidKey(
            "the noise holds its key and is never pickled.",
            hint="ship key.to_bytes() on purpose and build it there.",
        )

    def __repr__(self) -> str:
        return f"NoiseWords({SCHEME})"


def num_threads() -> int:
    """How many threads draw words: one a processor, and four at most, since memory is no faster than that."""
    return max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2))


def _block_number(purpose: int, step: int, counter: int) -> bytes:
    return bytes((purpose,)) + step.to_bytes(7, "big") + counter.to_bytes(8, "big")
