"""Words: the published blocks of AES, whatever the threads and pieces."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training import noise_words
from truebatch.training.noise_words import PIECE, SPARE_WORDS, NoiseWords

KEY = Key.for_tests(5)
WORDS = NoiseWords(KEY)


def block(purpose: int, step: int, rest: int) -> bytes:
    key = KEY.derive("noise truebatch-noise/1").to_bytes()
    number = purpose << 120 | step << 80 | rest
    return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(number.to_bytes(16, "big"))


def word(step: int, coordinate: int) -> int:
    piece, j = divmod(coordinate, 2**19)
    half = block(1, step, piece << 32 | 2 + j // 2)[8 * (j % 2) :][:8]
    return int.from_bytes(half, "little")


def draw(count: int, *, step: int = 3, first: int = 0, words: NoiseWords = WORDS) -> np.ndarray:
    out = np.full(count + SPARE_WORDS, 77, dtype=np.uint64)
    with ThreadPoolExecutor(4) as pool:
        words.fill(out, step=step, first=first, pool=pool)
    assert (out[count:] == 77).all()  # nothing is written past what was asked for
    return out[:count]


@pytest.mark.parametrize("step", [0, 1, 2**40 - 1])
@pytest.mark.parametrize("first", [0, PIECE, 2**20 * PIECE])
def test_words_are_halves_of_aes_blocks(step, first):
    assert draw(8, step=step, first=first).tolist() == [word(step, first + i) for i in range(8)]


def test_words_go_on_across_the_pieces_of_a_step():
    found = draw(PIECE + 6)
    for i in (PIECE - 2, PIECE - 1, PIECE, PIECE + 5, 262_143, 262_144):
        assert int(found[i]) == word(3, i)


@pytest.mark.parametrize("coordinate", [0, 1, 2**33 + 1])
def test_refinements_are_blocks_of_their_own(coordinate):
    got = WORDS.refinement(step=9, coordinate=coordinate)
    assert got == int.from_bytes(block(2, 9, coordinate), "little")


def test_threads_and_calls_do_not_matter(monkeypatch):
    count = 2 * PIECE + 1000
    expected = draw(count)
    assert np.array_equal(draw(1000, first=2 * PIECE), expected[2 * PIECE :])
    monkeypatch.setattr(noise_words, "_ZEROS", np.zeros(16 * 37, dtype=np.uint8))
    out = np.zeros(count + SPARE_WORDS, dtype=np.uint64)
    with ThreadPoolExecutor(1) as pool:
        WORDS.fill(out, step=3, first=0, pool=pool)
    assert np.array_equal(out[:count], expected)


def test_steps_and_keys_have_words_of_their_own():
    other = NoiseWords(Key.for_tests(6))
    drawn = np.concatenate([draw(2000, step=0), draw(2000, step=1), draw(2000, step=0, words=other)])
    assert len(np.unique(drawn)) == 6000


@pytest.mark.parametrize(("count", "first"), [(4, 2), (5, 0), (4, PIECE // 2), (4, 1)])
def test_words_come_in_pairs_from_the_beginning_of_a_piece(count, first):
    with pytest.raises(InvalidArgument, match="pairs"):
        draw(count, first=first)


def test_the_key_stays_inside():
    assert repr(WORDS) == "NoiseWords(truebatch-noise/1)"
    with pytest.raises(InvalidKey):
        pickle.dumps(WORDS)
