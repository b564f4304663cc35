"""The random words of the noise: AES-256 on numbered blocks, addressed by step and coordinate."""

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
# Coordinates are drawn in pieces of this many, 4 MiB: part of the scheme.
PIECE = 2**19
# Its encryption is the key stream. Not a bytes object: those are encrypted without letting other threads run.
_ZEROS = np.zeros(2**20, dtype=np.uint8)
# update_into asks for one block less a byte of room past the end.
SPARE_WORDS = 2


class NoiseWords:
    """A keyed function from (step, coordinate) to bits: no state, nothing to advance.

    A block is AES-256, under the key derived for this scheme, of 16 bytes: purpose in 1, step in 5, and 10
    more, all big-endian. Piece p is coordinates p 2^19 to (p+1) 2^19 - 1. Its coordinate number j has the
    word in half j mod 2, little-endian, of the block (1, step, p in 6 bytes, 2 + j div 2 in 4). Coordinate i
    has as its refinement the block (2, step, i in 10 bytes).

    The words of a piece are what GCM makes of zeros with the first 12 bytes as nonce: the blocks of counter
    mode, by code that uses processors' widest instructions for AES, at twice the speed.

    Guarantees:
      - The same bits on any machine, in any thread, in any order, after any retry.
      - No block is used for two purposes, steps or counters.
      - `repr` is free of the key, and pickling raises.
    """

    def __init__(self, key: Key) -> None:
        self._key = key.derive(f"{_PURPOSE} {SCHEME}")

    def fill(self, out: UInt64s, *, step: int, first: int, pool: ThreadPoolExecutor) -> None:
        """Write the words of coordinates first, first + 1, ... of a step; `first` begins a piece.

        The last SPARE_WORDS of `out` are working room.
        """
        count = len(out) - SPARE_WORDS
        if first % PIECE or count < 0 or count % 2:
            raise InvalidArgument(
                f"words come in pairs, from the beginning of a piece of {PIECE} on; "
                f"got first={first}, count={count}."
            )
        # A stream mode writes as much as it reads: pieces do not touch each other's words.
        jobs = [
            pool.submit(self._stream, out, step, (first + start) // PIECE, start, min(start + PIECE, count))
            for start in range(0, count, PIECE)
        ]
        for job in jobs:
            job.result()

    def _stream(self, out: UInt64s, step: int, piece: int, start: int, stop: int) -> None:
        nonce = _prefix(_WORDS, step) + piece.to_bytes(6, "big")
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.GCM(nonce)).encryptor()
        target = out.view(np.uint8).data[start * _WORD_BYTES :]
        size = (stop - start) * _WORD_BYTES
        for begin in range(0, size, len(_ZEROS)):
            length = min(len(_ZEROS), size - begin)
            encryptor.update_into(_ZEROS.data[:length], target[begin : begin + length + _BLOCK_BYTES - 1])

    def refinement(self, *, step: int, coordinate: int) -> int:
        """128 more bits for one coordinate, as a whole number."""
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.ECB()).encryptor()
        block = encryptor.update(_prefix(_REFINEMENT, step) + coordinate.to_bytes(10, "big"))
        return int.from_bytes(block, "little")

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


def _prefix(purpose: int, step: int) -> bytes:
    return bytes((purpose,)) + step.to_bytes(5, "big")
