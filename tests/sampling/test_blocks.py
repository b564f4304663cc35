"""Blocks: one AES input per draw, the same bits in every thread."""

import pickle
import threading

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidKey
from truebatch.keys import Key
from truebatch.sampling.blocks import KeyStream, Purpose

KEY = Key.for_tests(11)


def block(purpose: int, step: int, unit: int, counter: int) -> tuple[int, int]:
    """The published packing, one block at a time."""
    low = purpose << 56 | (counter >> 24) << 40 | step
    high = unit << 24 | counter & 0xFFFFFF
    encryptor = Cipher(algorithms.AES256(KEY.to_bytes()), modes.ECB()).encryptor()
    out = encryptor.update(low.to_bytes(8, "little") + high.to_bytes(8, "little"))
    return int.from_bytes(out[:8], "little"), int.from_bytes(out[8:], "little")


FIELDS = [0, 1, 2**24 - 1, 2**24, 2**24 + 5, 2**32, 2**40 - 1]


@pytest.mark.parametrize("step", FIELDS)
@pytest.mark.parametrize("unit", FIELDS)
def test_blocks_are_aes_of_the_packed_fields(step, unit):
    stream = KeyStream(KEY)
    got = stream.draw(Purpose.DROP, step, unit, np.array(FIELDS))
    assert got.tolist() == [list(block(3, step, unit, counter)) for counter in FIELDS]


def test_fields_broadcast():
    stream = KeyStream(KEY)
    got = stream.draw(Purpose.COUNT, np.arange(3)[:, None], np.arange(4), 0)
    assert got.shape == (3, 4, 2)
    assert got[2, 3].tolist() == list(block(1, 2, 3, 0))
    assert stream.draw(Purpose.COUNT, np.empty(0, dtype=np.int64), 0, 0).shape == (0, 2)


def test_distinct_fields_give_distinct_blocks():
    grid = np.meshgrid(FIELDS, FIELDS, FIELDS, indexing="ij")
    drawn = [KeyStream(KEY).draw(p, *(g.ravel() for g in grid)) for p in Purpose]
    assert len(np.unique(np.concatenate(drawn), axis=0)) == len(Purpose) * len(FIELDS) ** 3


def test_threads_share_a_stream_and_draw_the_same():
    stream, got = KeyStream(KEY), {}
    expected = stream.draw(Purpose.MEMBER, 7, 9, np.arange(5000))

    def draw(i):
        got[i] = all(
            np.array_equal(stream.draw(Purpose.MEMBER, 7, 9, np.arange(5000)), expected) for _ in range(20)
        )

    threads = [threading.Thread(target=draw, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == dict.fromkeys(range(6), True)


def test_streams_are_not_pickled():
    with pytest.raises((InvalidKey, TypeError)):
        pickle.dumps(KeyStream(KEY))
