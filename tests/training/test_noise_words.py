"""Words: the published blocks of AES, whatever the threads and pieces."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training import noise_words
from truebatch.training.noise_words import SPARE_WORDS, NoiseWords

KEY = Key.for_tests(5)
WORDS = NoiseWords(KEY)


def block(purpose: int, step: int, counter: int) -> bytes:
    key = KEY.derive("noise truebatch-noise/1").to_bytes()
    number = purpose << 120 | step << 64 | counter
    return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(number.to_bytes(16, "big"))


def draw(count: int, *, step: int = 3, first: int = 0, words: NoiseWords = WORDS) -> np.ndarray:
    out = np.full(count + SPARE_WORDS, 77, dtype=np.uint64)
    with ThreadPoolExecutor(4) as pool:
        words.fill(out, step=step, first=first, pool=pool)
    assert (out[count:] == 77).all()  # nothing is written past what was asked for
    return out[:count]


@pytest.mark.parametrize("step", [0, 1, 2**40 - 1])
@pytest.mark.parametrize("first", [0, 2, 10**12])
def test_words_are_halves_of_aes_blocks(step, first):
    for i, word in enumerate(draw(8, step=step, first=first)):
        half = block(1, step, (first + i) // 2)[8 * ((first + i) % 2) :][:8]
        assert int(word) == int.from_bytes(half, "little")


@pytest.mark.parametrize("coordinate", [0, 1, 2**33 + 1])
def test_refinements_are_blocks_of_their_own(coordinate):
    got = WORDS.refinement(step=9, coordinate=coordinate)
    assert got == int.from_bytes(block(2, 9, coordinate), "little")


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_and_pieces_do_not_matter(threads, monkeypatch):
    expected = draw(10_000)
    monkeypatch.setattr(noise_words, "num_threads", lambda: threads)
    monkeypatch.setattr(noise_words, "_PIECE_BYTES", 16 * 37)
    assert np.array_equal(draw(10_000), expected)
    assert np.array_equal(draw(4_000, first=6_000), expected[6_000:])


def test_steps_and_keys_have_words_of_their_own():
    other = NoiseWords(Key.for_tests(6))
    drawn = np.concatenate([draw(2000, step=0), draw(2000, step=1), draw(2000, step=0, words=other)])
    assert len(np.unique(drawn)) == 6000


def test_words_come_in_pairs():
    with pytest.raises(InvalidArgument, match="pairs"):
        draw(4, first=1)
    with pytest.raises(InvalidArgument, match="pairs"):
        draw(5)


def test_the_key_stays_inside():
    assert repr(WORDS) == "NoiseWords(truebatch-noise/1)"
    with pytest.raises(InvalidKey):
        pickle.dumps(WORDS)
