"""float64 finds the same numbers as many digits do, or says that it cannot."""

import functools
import math

import jax
import mpmath
import numpy as np
import pytest

from truebatch.training import normals as normals_module
from truebatch.training.exact_normal import rounded_pair
from truebatch.training.normals import normals, rounded_pairs

SCALE = math.nextafter(2.0**23, 0)  # the largest there is, where float64 is nearest to its limits
MOST = 2**64 - 1


def drawn(radius: np.ndarray, angle: np.ndarray, *, wide: bool = True) -> list[tuple[int, int] | None]:
    """Pairs of numbers, and None where they are undecided."""
    options = {"xla_cpu_prefer_vector_width": "512" if wide else "128"}
    with jax.enable_x64(True):
        # A function of its own each time: JAX remembers what it has traced, and a test changes the margins.
        program = jax.jit(lambda r, a: rounded_pairs(r, a, SCALE), compiler_options=options)
        first, second, decided = (np.asarray(x) for x in program(radius, angle))
    rows = zip(first.tolist(), second.tolist(), decided.tolist(), strict=True)
    return [(int(x), int(y)) if known else None for x, y, known in rows]


def random_words(count: int, *, seed: int, bits: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**bits, count, dtype=np.uint64)


def radius_of(word: int) -> mpmath.mpf:
    return mpmath.sqrt(-2 * mpmath.log((mpmath.mpf(word >> 2) + mpmath.mpf(1) / 2) / mpmath.mpf(2) ** 62))


@functools.cache
def words_near_boundaries() -> tuple[np.ndarray, np.ndarray]:
    """Random radii, each with the angles whose first or second number is nearest to a boundary."""
    rng = np.random.default_rng(1)
    radii, angles = [], []
    with mpmath.workprec(160):
        for word in random_words(700, seed=2).tolist():
            reach = radius_of(word) * SCALE
            edge = mpmath.mpf(int(rng.uniform(0.01, 0.99) * float(reach))) + mpmath.mpf(1) / 2
            turn = (mpmath.acos, mpmath.asin)[int(rng.integers(2))]
            middle = int((turn(edge / reach) * 2 / mpmath.pi - mpmath.mpf(1) / 2) * mpmath.mpf(2) ** 64)
            for offset in (-1, 0, 1):
                radii.append(word)
                angles.append((middle + offset) % 2**64)
    return np.array(radii, dtype=np.uint64), np.array(angles, dtype=np.uint64)


def exact(radius: int, angle: int) -> tuple[int, int] | None:
    """The numbers of two words, if every refinement agrees."""
    ends = (0, 2**128 - 1)
    found = {rounded_pair(radius, angle, r, s, scale=SCALE) for r in ends for s in ends}
    return found.pop() if len(found) == 1 else None


def wrong(radius: np.ndarray, angle: np.ndarray, pairs: list[tuple[int, int] | None]) -> int:
    rows = zip(radius.tolist(), angle.tolist(), pairs, strict=True)
    return sum(pair is not None and pair != exact(r, a) for r, a, pair in rows)


def test_normals_are_within_their_stated_error() -> None:
    rng = np.random.default_rng(2)
    tails = np.concatenate(
        [np.exp2(-rng.uniform(0, 30, 1500)), 1 - np.exp2(-rng.uniform(1, 26, 800)), rng.uniform(0, 1, 700)]
    )
    units = [min(max(int(tail * 2**62), 2**32), 2**62 - 2**36) for tail in tails.tolist()]
    radius = np.array([4 * unit + i % 4 for i, unit in enumerate(units)], dtype=np.uint64)
    angle = random_words(len(radius), seed=3)
    angle[:8] = [0, 1, 2**63 - 1, 2**63, MOST, 2**62, 3 * 2**62, 2**53]
    with jax.enable_x64(True):
        x, y, _ = (np.asarray(v).tolist() for v in jax.jit(normals)(radius, angle))
    errors = []
    with mpmath.workprec(160):
        for r, a, *got in zip(radius.tolist(), angle.tolist(), x, y, strict=True):
            signed = mpmath.mpf(a - 2**64 if a >= 2**63 else a) + mpmath.mpf(1) / 2
            phi = (signed / mpmath.mpf(2) ** 64 + mpmath.mpf(1) / 2) * mpmath.pi / 2
            true = radius_of(r) * mpmath.cos(phi), radius_of(r) * mpmath.sin(phi)
            for value, expected, bit in zip(got, true, (1, 2), strict=True):
                errors.append(abs(float(mpmath.mpf(value) - (-expected if r & bit else expected))))
    assert max(errors) < 6e-15
    assert max(errors) > 1e-16


@pytest.mark.parametrize("wide", [True, False])
def test_random_words_are_right_and_decided(wide: bool) -> None:
    radius, angle = random_words(1500, seed=4), random_words(1500, seed=5)
    pairs = drawn(radius, angle, wide=wide)
    assert wrong(radius, angle, pairs) == 0
    assert None not in pairs


def test_words_beside_a_boundary_are_right_or_undecided() -> None:
    pairs = drawn(*words_near_boundaries())
    assert wrong(*words_near_boundaries(), pairs) == 0
    assert pairs.count(None) > 0.99 * len(pairs)


def test_without_the_margins_floats_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin of the tests above: what they would see if a margin were too small."""
    monkeypatch.setattr(normals_module, "_NEAR_MARGIN", 0.0)
    monkeypatch.setattr(normals_module, "_FAR_MARGIN", 0.0)
    pairs = drawn(*words_near_boundaries())
    assert wrong(*words_near_boundaries(), pairs) > len(pairs) / 10


def test_in_the_far_tail_the_wide_margin_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below 2^-16 a radius word may stand for several numbers: seen where the angle is at a boundary."""
    radius = random_words(40_000, seed=6, bits=36) + np.uint64(2**34)
    angle = random_words(40_000, seed=7)
    monkeypatch.setattr(normals_module, "_FAR_MARGIN", 2.0**-46)
    narrow = drawn(radius, angle)
    monkeypatch.undo()
    pairs = drawn(radius, angle)
    lost = [i for i, pair in enumerate(pairs) if pair is None and narrow[i] is not None]
    assert lost
    assert wrong(radius[lost], angle[lost], [narrow[i] for i in lost]) > 0
    assert wrong(radius[:300], angle[:300], pairs[:300]) == 0


def test_the_ends_are_left_to_many_digits() -> None:
    radius = np.array(
        [0, 3, 4 * 2**32 - 1, 4 * 2**32, 4 * (2**62 - 2**36) - 1, 4 * (2**62 - 2**36), MOST], dtype=np.uint64
    )
    angle = np.full(len(radius), 2**61 + 12_345, dtype=np.uint64)
    found = [pair is not None for pair in drawn(radius, angle)]
    assert found == [False, False, False, True, True, False, False]


def test_few_pairs_are_undecided() -> None:
    radius, angle = random_words(2**21, seed=8), random_words(2**21, seed=9)
    assert drawn(radius, angle).count(None) < 12  # one is expected
