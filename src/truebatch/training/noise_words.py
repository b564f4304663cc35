"""The random words of the noise: AES-256 on numbered blocks, addressed by step and pair."""

import enum
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key

UInt64s = npt.NDArray[np.uint64]

# Other words for the same key are another version.
SCHEME = "truebatch-noise/2"
_PURPOSE = "noise"
STEP_LIMIT = 2**40
# Pairs are drawn in pieces of this many, 2 MiB of words of each kind: part of the scheme.
PIECE = 2**18
_BLOCK_BYTES, _WORD_BYTES = 16, 8
# Its encryption is the key stream. Not a bytes object: those are encrypted without letting other threads run.
_ZEROS = np.zeros(2**20, dtype=np.uint8)
# Fewer words than this are drawn before a thread has begun.
_WORTH_A_THREAD = 2**14
# update_into asks for one block less a byte of room past the end.
SPARE_WORDS = 2


class Kind(enum.IntEnum):
    """What words are for: the first byte of a block's number. Refinements have that plus 2."""

    RADIUS = 1
    ANGLE = 2


class NoiseWords:
    """A keyed function from (step, pair) to bits: no state, nothing to advance.

    A block is AES-256, under the key derived for this scheme, of 16 bytes: purpose in 1, step in 5, and 10
    more, all big-endian. Piece c is pairs c 2^18 to (c+1) 2^18 - 1. Its pair number j has as its word of a
    kind half j mod 2, little-endian, of the block (kind, step, c in 6 bytes, 2 + j div 2 in 4). Pair p has as
    the refinement of that word the block (kind + 2, step, p in 10 bytes).

    The words of a piece are what GCM makes of zeros with the first 12 bytes as nonce: the blocks of counter
    mode, by code that uses processors' widest instructions for AES, at twice the speed.

    Guarantees:
      - The same bits on any machine, in any thread, in any order, after any retry.
      - No block is used for two purposes, steps or counters.
      - `repr` is free of the key, and pickling raises.
    """

    def __init__(self, key: Key) -> None:
        self._key = key.derive(f"{_PURPOSE} {SCHEME}")

    def fill(self, out: Mapping[Kind, UInt64s], *, step: int, first: int, pool: ThreadPoolExecutor) -> None:
        """Write the words of pairs first, first + 1, ... of a step; `first` begins a piece.

        The last SPARE_WORDS of each array are working room.
        """
        jobs = []
        for kind, words in out.items():
            count = len(words) - SPARE_WORDS
            if first % PIECE or count < 0:
                raise InvalidArgument(
                    f"words are drawn from the beginning of a piece of {PIECE} on; "
                    f"got first={first}, count={count}."
                )
            # A stream mode writes as much as it reads: pieces do not touch each other's words.
            for start in range(0, count, PIECE):
                stop, piece = min(start + PIECE, count), (first + start) // PIECE
                draw = partial(self._stream, words, kind, step, piece, start, stop)
                if stop - start < _WORTH_A_THREAD:
                    draw()
                else:
                    jobs.append(pool.submit(draw))
        for job in jobs:
            job.result()

    def _stream(self, out: UInt64s, kind: Kind, step: int, piece: int, start: int, stop: int) -> None:
        nonce = _prefix(kind, step) + piece.to_bytes(6, "big")
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.GCM(nonce)).encryptor()
        target = out.view(np.uint8).data[start * _WORD_BYTES :]
        size = (stop - start) * _WORD_BYTES
        for begin in range(0, size, len(_ZEROS)):
            length = min(len(_ZEROS), size - begin)
            encryptor.update_into(_ZEROS.data[:length], target[begin : begin + length + _BLOCK_BYTES - 1])

    def one(self, kind: Kind, *, step: int, pair: int) -> tuple[int, int]:
        """A pair's word of a kind and its refinement of 128 bits, as whole numbers."""
        piece, j = divmod(pair, PIECE)
        halves = self._block(kind, step, piece.to_bytes(6, "big") + (2 + j // 2).to_bytes(4, "big"))
        word = halves[_WORD_BYTES * (j % 2) :][:_WORD_BYTES]
        return int.from_bytes(word, "little"), int.from_bytes(
            self._block(kind + 2, step, pair.to_bytes(10, "big")), "little"
        )

    def _block(self, purpose: int, step: int, rest: bytes) -> bytes:
        encryptor = Cipher(algorithms.AES256(self._key.to_bytes()), modes.ECB()).encryptor()
        return encryptor.update(_prefix(purpose, step) + rest)

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
