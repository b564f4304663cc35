"""The only source of randomness: AES-256 on numbered blocks."""

import enum
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from truebatch.keys import Key

UInt64s = npt.NDArray[np.uint64]
Int64s = npt.NDArray[np.int64]

# Every block is one 128-bit number with four fields, and no two draws use the same one.
PURPOSE_BITS, COUNTER_BITS, STEP_BITS, UNIT_BITS = 8, 40, 40, 40
_LOW_COUNTER_BITS = 24
_WORD = np.dtype("<u8")  # the byte order of the scheme, whatever the machine's
# glibc's largest threshold is 32 MiB; this stays under it with its header.
_LARGE_BYTES = 31 * 2**20


class Purpose(enum.IntEnum):
    """What a block is drawn for. The numbers are part of the scheme."""

    COUNT = 1
    MEMBER = 2
    DROP = 3
    HALF = 4
    MOVE = 5
    TAG = 6
    ROUND = 7
    BIN_COUNT = 8
    BIN_ADD = 9
    BIN_DROP = 10


class KeyStream:
    """AES-256 in ECB over explicit block numbers: a keyed function, not a generator.

    Guarantees:
      - A block depends on the key and its four fields only: no order, thread or worker changes it.
      - Distinct fields (purpose < 2^8, counter, step and unit < 2^40) are distinct AES inputs.
      - Holds the cipher once per thread and cannot be pickled.
    """

    def __init__(self, key: Key) -> None:
        _keep_freed_pages()
        self._key = key
        self._local = threading.local()

    def _encryptor(self) -> CipherContext:
        context: CipherContext | None = getattr(self._local, "context", None)
        if context is None:
            # ECB on numbers that never repeat is counter mode without a nonce to set for each cell.
            context = Cipher(algorithms.AES256(self._key.to_bytes()), modes.ECB()).encryptor()
            self._local.context = context
        return context

    def draw(self, purpose: Purpose, step: Any, unit: Any, counter: Any) -> UInt64s:
        """AES(purpose, step, unit, counter), fields broadcast against each other; words (low, high) last.

        Input block, as two little-endian 64-bit words:
            low  = purpose * 2^56 + (counter >> 24) * 2^40 + step
            high = unit * 2^24 + (counter mod 2^24)
        """
        step, unit, counter = (np.asarray(field, dtype=np.uint64) for field in (step, unit, counter))
        low = step | np.uint64(purpose << (COUNTER_BITS - _LOW_COUNTER_BITS + STEP_BITS))
        high = unit << np.uint64(_LOW_COUNTER_BITS)
        if counter.size and counter.max() >> _LOW_COUNTER_BITS:
            low = low | (counter >> np.uint64(_LOW_COUNTER_BITS) << np.uint64(STEP_BITS))
            counter = counter & np.uint64((1 << _LOW_COUNTER_BITS) - 1)
        shape = np.broadcast(low, high, counter).shape
        source = np.empty((*shape, 2), dtype=_WORD)
        source[..., 0] = low
        np.bitwise_or(high, counter, out=source[..., 1])
        return self._encrypt(source)

    def _encrypt(self, source: UInt64s) -> UInt64s:
        # update_into asks for one block less a byte of room past the end.
        target = np.empty(source.size + 2, dtype=_WORD)
        if source.size:
            self._encryptor().update_into(source.data.cast("B"), target.data.cast("B"))
        return target[: source.size].reshape(source.shape)


def _keep_freed_pages() -> None:
    """Let the C library reuse freed memory instead of handing it back after every step.

    A step allocates a few hundred kilobytes several times. glibc gives blocks above a threshold back to the
    system at once, and faulting their pages in again takes longer than the cipher. Freeing one large block
    raises the threshold for the process (up to 64 MiB stay cached); it is never touched, so it costs nothing.
    Elsewhere than on glibc this does nothing.
    """
    np.empty(_LARGE_BYTES, dtype=np.uint8)
