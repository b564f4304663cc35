"""Words: the published blocks of AES, whatever the threads and pieces."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training import noise_words
from truebatch.training.noise_words import PIECE, SPARE_WORDS, Kind, NoiseWords

KEY = Key.for_tests(5)
WORDS = NoiseWords(KEY)


def block(purpose: int, step: int, rest: int) -> bytes:
    key = KEY.derive("noise truebatch-noise/2").to_bytes()
    number = purpose << 120 | step << 80 | rest
    return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(number.to_bytes(16, "big"))


def word(purpose: int, step: int, pair: int) -> int:
    piece, j = divmod(pair, 2**18)
    half = block(purpose, step, piece << 32 | 2 + j // 2)[8 * (j % 2) :][:8]
    return int.from_bytes(half, "little")


def draw(
    count: int, *, kind: Kind = Kind.RADIUS, step: int = 3, first: int = 0, words: NoiseWords = WORDS
) -> np.ndarray:
    """Words of a kind, drawn beside the same number of the other."""
    out = {k: np.full(count + SPARE_WORDS, 77, dtype=np.uint64) for k in Kind}
    with ThreadPoolExecutor(4) as pool:
        words.fill(out, step=step, first=first, pool=pool)
    assert all((x[count:] == 77).all() for x in out.values())  # nothing is written past what was asked for
    return out[kind][:count]


@pytest.mark.parametrize("step", [0, 1, 2**40 - 1])
@pytest.mark.parametrize("first", [0, PIECE, 2**20 * PIECE])
@pytest.mark.parametrize("kind", Kind)
def test_words_are_halves_of_aes_blocks(step: int, first: int, kind: Kind) -> None:
    expected = [word(kind.value, step, first + i) for i in range(8)]
    assert draw(8, kind=kind, step=step, first=first).tolist() == expected
    assert draw(7, kind=kind, step=step, first=first).tolist() == expected[:7]


def test_words_go_on_across_the_pieces_of_a_step() -> None:
    found = draw(PIECE + 6)
    for i in (PIECE - 2, PIECE - 1, PIECE, PIECE + 5, 131_071, 131_072):
        assert int(found[i]) == word(1, 3, i)


@pytest.mark.parametrize("pair", [0, 1, 2**18 + 1, 2**33 + 1])
@pytest.mark.parametrize("kind", Kind)
def test_a_single_word_is_that_of_the_stream_and_its_refinement_a_block_of_its_own(
    pair: int, kind: Kind
) -> None:
    refinement = int.from_bytes(block(kind + 2, 9, pair), "little")
    assert WORDS.one(kind, step=9, pair=pair) == (word(kind.value, 9, pair), refinement)


def test_threads_and_calls_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * PIECE + 1000
    expected = draw(count)
    assert np.array_equal(draw(1000, first=2 * PIECE), expected[2 * PIECE :])
    monkeypatch.setattr(noise_words, "_ZEROS", np.zeros(16 * 37, dtype=np.uint8))
    out = np.zeros(count + SPARE_WORDS, dtype=np.uint64)
    with ThreadPoolExecutor(1) as pool:
        WORDS.fill({Kind.RADIUS: out}, step=3, first=0, pool=pool)
    assert np.array_equal(out[:count], expected)


def test_steps_kinds_and_keys_have_words_of_their_own() -> None:
    other = NoiseWords(Key.for_tests(6))
    drawn = [draw(2000, step=0), draw(2000, step=1), draw(2000, step=0, words=other)]
    drawn.append(draw(2000, step=0, kind=Kind.ANGLE))
    assert len(np.unique(np.concatenate(drawn))) == 8000


@pytest.mark.parametrize("first", [2, PIECE // 2, 1])
def test_words_are_drawn_from_the_beginning_of_a_piece(first: int) -> None:
    with pytest.raises(InvalidArgument, match="beginning of a piece"):
        draw(4, first=first)


def test_the_key_stays_inside() -> None:
    assert repr(WORDS) == "NoiseWords(truebatch-noise/2)"
    with pytest.raises(InvalidKey):
        pickle.dumps(WORDS)
