"""The noise is what the accountant assumes: its law, its keys, its grid."""

import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training import noise as noise_module
from truebatch.training import noise_pairs
from truebatch.training.exact_normal import rounded_pair
from truebatch.training.noise import Noise, statistical_distance
from truebatch.training.noise_words import Kind, NoiseWords
from truebatch.training.normals import Pairs, rounded_pairs

KEY = Key.for_tests(8)
SHAPES = {"table": (4001, 300), "dense": [(2000, 60), (150_001,)], "bias": (598,), "scalar": ()}
NOISE = Noise(KEY, sigma=0.7, clip_norm=2.0)


def zeros(shapes=SHAPES):
    return jax.tree.map(lambda s: jnp.zeros(s, jnp.float32), shapes, is_leaf=lambda s: isinstance(s, tuple))


def leaves(step: int, *, noise: Noise = NOISE, shapes=SHAPES) -> list[np.ndarray]:
    return [np.asarray(leaf).ravel() for leaf in jax.tree.leaves(noise.add(step, zeros(shapes)))]


def coordinates(step: int, count: int, *, noise: Noise = NOISE) -> np.ndarray:
    return np.asarray(noise.add(step, jnp.zeros(count, jnp.float32)))


def numbers(step: int, count: int, noise: Noise = NOISE, *, first: int = 0) -> list[int]:
    """The noise by its definition, from the even coordinate `first` of a sum that is one sheet."""
    words, scale, found = NoiseWords(KEY), noise.sigma * noise.clip_norm / noise.grid, []
    for pair in range(first // 2, (first + count + 1) // 2):
        (w, r), (a, s) = (words.one(kind, step=step, pair=pair) for kind in (Kind.RADIUS, Kind.ANGLE))
        found += rounded_pair(w, a, r, s, scale=scale)
    return found[:count]


# --- the law


def test_every_leaf_has_the_stated_deviation_and_no_mean():
    for leaf in leaves(0):
        if leaf.size > 100_000:
            assert leaf.std() == pytest.approx(1.4, rel=0.01)
        assert abs(leaf.mean()) < 6 * 1.4 / np.sqrt(leaf.size)


def test_leaves_and_steps_are_uncorrelated():
    size = 120_000
    columns = [leaf[:size] for step in (0, 1, 2**30) for leaf in leaves(step) if leaf.size >= size]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert len(columns) == 9
    assert np.abs(correlations).max() < 6 / np.sqrt(size)


def ks(values: np.ndarray) -> float:
    return stats.kstest(values, stats.norm(scale=1.4).cdf).pvalue


def test_the_law_is_normal_by_kolmogorov_and_smirnov():
    values = coordinates(3, 2**21)
    assert ks(values) > 1e-6
    assert ks(values * 1.01) < 1e-6  # the test would see one percent


def neighbours(values: np.ndarray) -> tuple[float, float]:
    """How many values near zero share a grid point with another, and how many of a normal law would."""
    steps = np.round(values / NOISE.grid).astype(np.int64)
    steps = steps[np.abs(steps) < 2**21]
    density = NOISE.grid / 1.4 * stats.norm.pdf(0)
    points = np.arange(-(2**21) + 1, 2**21)
    rate = values.size * density * np.exp(-((points * NOISE.grid / 1.4) ** 2) / 2)
    return float(steps.size - np.unique(steps).size), float((rate - 1 + np.exp(-rate)).sum())


def test_as_many_values_meet_as_on_the_grid_and_not_as_of_23_bits():
    """Repeats are Poisson at each grid point; a uniform float32 has so few values that many more meet."""
    found, expected = neighbours(coordinates(4, 2**22))
    assert abs(found - expected) < 6 * np.sqrt(expected)
    twin = np.asarray(jax.random.normal(jax.random.key(1), (2**22,), jnp.float32)) * 1.4
    found, expected = neighbours(twin)
    assert found > expected + 100 * np.sqrt(expected)


# --- the grid


def expected_sum(sums: np.ndarray, step: int, noise: Noise) -> np.ndarray:
    whole = np.round(sums.astype(np.float64) / noise.grid) + np.array(numbers(step, sums.size, noise))
    return (whole * noise.grid).astype(np.float32)


@pytest.mark.parametrize(("sigma", "clip_norm"), [(0.7, 2.0), (0.55, 1.0), (9.0, 1e-4), (1.0, 3e8)])
def test_a_noised_sum_is_the_rounded_sum_plus_the_number(sigma, clip_norm):
    noise = Noise(KEY, sigma, clip_norm)
    scales = 10.0 ** np.linspace(-12, 5, 1500)
    sums = (np.random.default_rng(5).normal(size=1500) * scales * clip_norm).astype(np.float32)
    got = np.asarray(noise.add(6, jnp.asarray(sums)))
    assert got.tobytes() == expected_sum(sums, 6, noise).tobytes()


def on_grid(values: np.ndarray) -> bool:
    steps = values.astype(np.float64) / NOISE.grid
    return bool((steps == np.round(steps)).all())


def test_what_can_come_out_does_not_depend_on_the_data():
    sums = np.random.default_rng(6).normal(size=2**16).astype(np.float32) * np.float32(1e-3)
    assert on_grid(coordinates(7, 2**16))
    assert on_grid(np.asarray(NOISE.add(7, jnp.asarray(sums))))
    assert not on_grid(sums + coordinates(7, 2**16))  # added as floats, the data shows


def test_sums_of_a_million_examples_do_not_overflow():
    sums = np.array([2.0 * 2**20, -2.0 * 2**20, 0.0], dtype=np.float32)
    got = np.asarray(NOISE.add(8, jnp.asarray(sums)))
    assert np.abs(got - sums).max() < 10 * 1.4
    assert got.tobytes() == expected_sum(sums, 8, NOISE).tobytes()


# --- keyed by (key, step, coordinate)


def test_a_retry_is_the_same_and_other_steps_and_keys_are_not():
    first, again = coordinates(9, 5000), coordinates(9, 5000, noise=Noise(KEY, 0.7, 2.0))
    assert first.tobytes() == again.tobytes()
    assert (first != coordinates(10, 5000)).mean() > 0.999
    assert (first != coordinates(9, 5000, noise=Noise(Key.for_tests(9), 0.7, 2.0))).mean() > 0.999


def test_small_leaves_are_numbered_through_and_large_ones_begin_a_piece() -> None:
    tree = {"a": (33,), "b": (300, 301), "c": (5, 3), "d": (2**16 + 1,), "e": (2**18, 2)}
    got = dict(zip(tree, leaves(11, shapes=tree), strict=True))
    for name, piece in (("b", 0), ("e", 1)):
        expected = np.array(numbers(11, 64, first=piece * 2**19), dtype=np.float32)
        assert (got[name][:64] / NOISE.grid).tolist() == expected.tolist()
    joined = np.concatenate([got["a"], got["c"], got["d"]])
    expected = np.array(numbers(11, 64, first=2 * 2**19), dtype=np.float32)
    assert (joined[:64] / NOISE.grid).tolist() == expected.tolist()
    last = joined.size // 2 * 2
    assert joined[-1] / NOISE.grid == np.float32(numbers(11, 1, first=2 * 2**19 + last)[0])


def test_leaves_of_one_size_have_one_noise_whatever_their_shape() -> None:
    shapes = {"a": (2**9, 2**9), "b": (3, 5)}, {"a": (2**18,), "b": (15,)}, {"a": (4, 2**16), "b": (5, 3, 1)}
    first, *others = (np.concatenate(leaves(11, shapes=tree)).tobytes() for tree in shapes)
    assert others == [first, first]


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.concatenate(leaves(11))
    monkeypatch.setattr(noise_pairs, "_CHUNK", 2**18)
    assert np.concatenate(leaves(11)).tobytes() == expected.tobytes()


def test_undecided_pairs_are_decided_as_floats_would_decide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rare road, taken by every two-hundredth pair: nothing changes."""
    small = {"a": (520_002,), "b": (3, 131), "c": (60,)}
    expected = np.concatenate(leaves(12, shapes=small))
    taken = []

    def doubtful(radius: jax.Array, angle: jax.Array, scale: jax.Array) -> Pairs:
        found = rounded_pairs(radius, angle, scale)
        return found._replace(decided=found.decided & (radius % 200 != 0))

    def counted(*bits: int, scale: float) -> tuple[int, int]:
        taken.append(bits)
        return rounded_pair(*bits, scale=scale)

    def traced_anew(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        """JAX remembers what it has traced, by the function."""
        return noise_pairs._noised(*arrays)

    program = jax.jit(traced_anew, donate_argnums=0)
    monkeypatch.setattr(noise_pairs, "rounded_pairs", doubtful)
    monkeypatch.setattr(noise_pairs, "rounded_pair", counted)
    monkeypatch.setattr(noise_pairs, "_program_for", lambda _: program)
    assert np.concatenate(leaves(12, shapes=small)).tobytes() == expected.tobytes()
    assert len(taken) > 1000


def test_what_is_done_on_other_devices_is_the_same() -> None:
    """Where numpy cannot look into the memory, programs turn floats into pairs and back."""
    leaf = jnp.arange(2**17, dtype=jnp.float32).reshape(2, -1)
    device = jax.devices()[0]
    with jax.enable_x64(True):
        pairs = noise_module._as_pairs(leaf, device)
        assert np.array_equal(noise_module._bits_as_pairs(leaf), pairs)
        assert np.array_equal(noise_module._bits_as_floats(pairs), leaf.ravel())


def test_the_sum_is_kept_and_the_memory_of_a_result_is_used_again_when_it_is_dropped() -> None:
    noise, sums = Noise(KEY, 0.7, 2.0), zeros({"a": (2**9, 2**9), "b": (7,)})
    result = noise.add(0, sums)
    held = np.array(result["a"])
    other = noise.add(1, sums)
    assert np.asarray(result["a"]).tobytes() == held.tobytes()  # still held: left alone
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(sums))
    place = other["a"].unsafe_buffer_pointer()
    programs = noise_pairs._program_for("cpu")._cache_size()
    del other
    assert noise.add(2**33, sums)["a"].unsafe_buffer_pointer() == place
    assert noise_pairs._program_for("cpu")._cache_size() == programs


DEVICES = """
import jax, numpy as np, jax.numpy as jnp, hashlib
from jax.sharding import NamedSharding, PartitionSpec as P
from truebatch.keys import Key
from truebatch.training.noise import Noise
noise = Noise(Key.for_tests(8), 0.7, 2.0)
mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
for spec in (P(), P("d")):
    sums = {"a": jnp.ones((1600, 16), jnp.float32), "b": jnp.ones(808, jnp.float32)}
    sums = jax.device_put(sums, NamedSharding(mesh, spec))
    out = noise.add(3, sums)
    assert all(x.sharding == NamedSharding(mesh, spec) for x in jax.tree.leaves(out))
    print(hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(out))).hexdigest())
"""


def test_any_number_of_devices_gives_the_same_bits():
    digests = set()
    for count in (1, 8):
        flags = f"--xla_force_host_platform_device_count={count}"
        env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-W", "error", "-c", DEVICES]
        run = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        digests |= set(run.stdout.split())
    assert len(digests) == 1


# --- what is refused, and what stays inside


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_a_sum_that_is_not_finite_is_an_error_and_not_hidden_under_noise(value):
    sums = zeros()
    sums["bias"] = sums["bias"].at[17].set(value)
    with pytest.raises(InvalidArgument, match="finite") as raised:
        NOISE.add(0, sums)
    assert str(value) not in str(raised.value)


def test_without_noise_the_sum_comes_back_and_must_still_be_finite():
    sums = jnp.arange(5, dtype=jnp.float32) / 3
    silent = Noise(KEY, 0.0, 1.0)
    assert np.array_equal(np.asarray(silent.add(0, sums)), np.asarray(sums))
    with pytest.raises(InvalidArgument, match="finite"):
        silent.add(0, jnp.array([jnp.nan], jnp.float32))


def test_empty_leaves_are_passed_over():
    out = NOISE.add(1, {"a": jnp.zeros((0, 3), jnp.float32), "b": jnp.zeros(7, jnp.float32)})
    assert out["a"].shape == (0, 3)
    assert np.asarray(out["b"]).tobytes() == coordinates(1, 7).tobytes()
    assert NOISE.add(1, {}) == {}


@pytest.mark.parametrize("step", [-1, 2**40, 1.0, True, None])
def test_steps_are_whole_numbers_in_reach(step):
    with pytest.raises(InvalidArgument, match="step must be"):
        NOISE.add(step, zeros({"a": (3,)}))


@pytest.mark.parametrize(
    "leaf", [np.zeros(3, np.float32), jnp.zeros(3, jnp.bfloat16), jnp.zeros(3, jnp.int32), 1.0]
)
def test_sums_are_float32_arrays(leaf):
    with pytest.raises(InvalidArgument, match="float32"):
        NOISE.add(0, [leaf])


@pytest.mark.parametrize(
    ("sigma", "clip_norm"), [(-1, 1), (float("nan"), 1), (1, 0), (1, float("inf")), (1, 1e-40)]
)
def test_scales_that_make_no_sense_are_refused(sigma, clip_norm):
    with pytest.raises(InvalidArgument, match="clip_norm"):
        Noise(KEY, sigma, clip_norm)


def test_the_key_stays_inside():
    assert repr(NOISE) == "Noise(sigma=0.7, clip_norm=2.0)"
    with pytest.raises(InvalidKey):
        pickle.dumps(NOISE)
    with pytest.raises(InvalidKey):
        Noise(b"0" * 32, 1.0, 1.0)


def test_the_statistical_distance_adds_up_over_coordinates_and_steps():
    small = statistical_distance(num_coordinates=10**6, num_steps=10**3)
    assert 0 < small < 1e-20
    assert statistical_distance(num_coordinates=10**9, num_steps=10**6) < 1e-8
    assert statistical_distance(num_coordinates=2**60, num_steps=2**40) == 1.0


# --- the scheme


def by_the_page(key: Key, step: int, pair: int, scale: float) -> list[int]:
    """docs/concepts/noise.md once more, with nothing of ours but the key's derivation."""
    cipher = Cipher(algorithms.AES256(key.derive("noise truebatch-noise/2").to_bytes()), modes.ECB())

    def block(purpose: int, rest: bytes) -> int:
        number = bytes([purpose]) + step.to_bytes(5, "big") + rest
        return int.from_bytes(cipher.encryptor().update(number), "little")

    def bits(kind: int) -> tuple[int, int]:
        piece, j = divmod(pair, 2**18)
        both = block(kind, piece.to_bytes(6, "big") + (2 + j // 2).to_bytes(4, "big"))
        return both >> 64 if j % 2 else both % 2**64, block(kind + 2, pair.to_bytes(10, "big"))

    (w, r), (a, s) = bits(1), bits(2)
    with mpmath.workprec(300):
        u = (w // 4 * mpmath.mpf(2) ** 128 + r + 0.5) / mpmath.mpf(2) ** 190
        theta = ((a - 2**64 * (a >= 2**63)) * mpmath.mpf(2) ** 128 + s + 0.5) / mpmath.mpf(2) ** 192
        phi, radius = (theta + 0.5) * mpmath.pi / 2, mpmath.sqrt(-2 * mpmath.log(u))
        x, y = (int(mpmath.nint(v * scale)) for v in (radius * mpmath.cos(phi), radius * mpmath.sin(phi)))
    return [-x if w % 2 else x, -y if w // 2 % 2 else y]


def test_the_noise_is_what_the_page_says() -> None:
    scale = 0.7 * 2.0 / NOISE.grid
    got = coordinates(40, 400) / NOISE.grid
    expected = [n for pair in range(200) for n in by_the_page(KEY, 40, pair, scale)]
    assert got.tolist() == np.array(expected, dtype=np.float32).tolist()


def test_version_two_never_changes() -> None:
    """Numbers of `by_the_page`. Others for the same key are another version."""
    assert numbers(40, 4) == [-9805266, 2544521, 6316074, -1251987]
