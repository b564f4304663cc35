"""The noise: normal numbers on an integer grid, added to the clipped sum as integers."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, Device, lax

from truebatch.accounting.rounding import grid_step, noise_scale
from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training.noise_pairs import Grid, noised_sheets
from truebatch.training.noise_words import STEP_LIMIT, NoiseWords

PyTree = Any

# A leaf of at least so many coordinates, an even number, is a sheet by itself: noised where it lies. All
# others together are one more, since every shape of a sheet is a program to compile.
_OWN_SHEET = 2**16


class Noise:
    """Normal noise of standard deviation sigma * clip_norm for each coordinate of a clipped sum.

    The sum is rounded to the grid of `accounting.rounding`, a normal number is rounded to the same grid, and
    the two are added as whole numbers: what can come out does not depend on the data, and adding noise to a
    rounded sum and then rounding is all that happens, so the Gaussian mechanism's bounds hold for it.
    docs/concepts/noise.md has the argument.

    Coordinates lie in sheets, two by two. A leaf of the sum with at least 2^16 of them, and an even number,
    is a sheet; all others, one after another in JAX's order of flattening, are the last one.

    Guarantees:
      - The noise of a coordinate at step t is a function of (key, t, its place in the sheets, sigma *
        clip_norm): the same bits after a retry or a restart, on any number and kind of devices.
      - Its law is that of scale * Z / grid rounded to a whole number, Z normal, tails included, up to
        `statistical_distance`.
      - Padding, empty batches and the size of the sum change nothing about it.
      - `repr` is free of the key, and pickling raises.
    """

    def __init__(self, key: Key, sigma: float, clip_norm: float) -> None:
        if not isinstance(key, Key):
            raise InvalidKey(f"key must be a Key; got an object of type {type(key).__name__}.")
        self.sigma = float(sigma)
        self.clip_norm = float(clip_norm)
        self._words = NoiseWords(key)
        self._spare: list[Array] = []
        self._grid: Grid | None = None
        if sigma != 0:  # no noise and no grid: training without privacy, and tests
            step = grid_step(sigma=sigma, clip_norm=clip_norm)
            self._grid = Grid(step=step, scale=noise_scale(sigma=sigma, clip_norm=clip_norm) / step)

    @property
    def grid(self) -> float:
        """The distance of two neighbouring values of a noised coordinate; 0 without noise."""
        return self._grid.step if self._grid else 0.0

    def add(self, step: int, clipped_sum: PyTree) -> PyTree:
        """The noised sum. The clipped sum is left as it is.

        The result's memory is taken again by the next call, unless somebody still holds the result: drop it
        before, and no memory is allocated or copied. A sum that is not finite is an error, not something to
        hide under noise.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__") or not 0 <= step < STEP_LIMIT:
            raise InvalidArgument(f"step must be a whole number from 0 to 2^40-1; got step={step!r}.")
        leaves, structure = jax.tree.flatten(clipped_sum)
        _require_float32(leaves)
        if not any(leaf.size for leaf in leaves):
            return clipped_sum
        if self._grid is None:
            _require_finite(leaves)
            return clipped_sum
        homes = [leaf.sharding for leaf in leaves]
        device = min(homes[0].device_set, key=lambda d: d.id)
        gathered = [jax.device_put(leaf, device) for leaf in leaves]
        with jax.enable_x64(True):
            sheets = _sheets(gathered, device)
            spare, self._spare = self._spare, []
            if [old.shape for old in spare] != [sheet.shape for sheet in sheets]:
                spare = [jax.device_put(jnp.zeros_like(sheet), device) for sheet in sheets]
            noised = noised_sheets(
                sheets, spare, self._words, self._grid, step=step.__index__(), device=device
            )
            found = _leaves(noised, gathered, device)
            self._spare = noised
        back = [jax.device_put(leaf, home) for leaf, home in zip(found, homes, strict=True)]
        return jax.tree.unflatten(structure, back)

    def __reduce__(self) -> NoReturn:
        raise InvalidKey(
            "a Noise holds its key and is never pickled.",
            hint="ship key.to_bytes() on purpose and build Noise(key, sigma, clip_norm) there.",
        )

    def __repr__(self) -> str:
        return f"Noise(sigma={self.sigma}, clip_norm={self.clip_norm})"


def statistical_distance(*, num_coordinates: int, num_steps: int) -> float:
    """A bound on the total variation distance of a run's noise to rounded independent normals, rounded up.

    A number is wrong only where (U, Theta), known to 2^-190, falls on the wrong side of one of the boundaries
    between numbers, of which fewer than 2^28 are within reach: 2^-160 for each coordinate is generous. And
    blocks of AES are distinct where ideal ones would be independent: Q^2 / 2^129 for Q blocks.
    Not covered: an attack on AES-256.

    >>> statistical_distance(num_coordinates=78_000_000, num_steps=560) < 2e-17
    True
    """
    drawn = num_coordinates * num_steps
    exact = min(Fraction(drawn, 2**160) + Fraction((2 * drawn) ** 2, 2**129), Fraction(1))
    value = float(exact)
    return value if Fraction(value) >= exact else math.nextafter(value, math.inf)


def _is_own_sheet(leaf: Array) -> bool:
    return leaf.size >= _OWN_SHEET and leaf.size % 2 == 0


def _sheets(leaves: Sequence[Array], device: Device) -> list[Array]:
    """The coordinates of all leaves as pairs: the bits of two float32 in a uint64."""
    sheets = [_as_pairs(leaf, device) for leaf in leaves if _is_own_sheet(leaf)]
    others = [leaf for leaf in leaves if not _is_own_sheet(leaf)]
    return [*sheets, _as_pairs(_joined(others), device)] if others else sheets


def _leaves(sheets: Sequence[Array], like: Sequence[Array], device: Device) -> list[Array]:
    """Sheets as leaves again, in the shapes of `like`."""
    shapes = [leaf.shape for leaf in like if _is_own_sheet(leaf)]
    own = iter([_as_floats(sheet, shape, device) for sheet, shape in zip(sheets, shapes, strict=False)])
    shapes = [leaf.shape for leaf in like if not _is_own_sheet(leaf)]
    last = _as_floats(sheets[-1], (2 * sheets[-1].size,), device)
    others = iter(_parted(last, shapes=tuple(shapes)) if shapes else ())
    return [next(own) if _is_own_sheet(leaf) else next(others) for leaf in like]


def _as_pairs(leaf: Array, device: Device) -> Array:
    """In the same memory, where that is the processor's."""
    on_processor = device.platform == "cpu"
    bits = np.asarray(leaf).reshape(-1).view(np.uint64) if on_processor else _bits_as_pairs(leaf)
    pairs: Array = jax.device_put(bits, device)
    return pairs


def _as_floats(sheet: Array, shape: tuple[int, ...], device: Device) -> Array:
    """In the same memory, where that is the processor's."""
    on_processor = device.platform == "cpu"
    bits = np.asarray(sheet).view(np.float32) if on_processor else _bits_as_floats(sheet)
    leaf: Array = jax.device_put(bits.reshape(shape), device)
    return leaf


@jax.jit
def _bits_as_pairs(leaf: Array) -> Array:
    pairs: Array = lax.bitcast_convert_type(leaf.reshape(-1, 2), jnp.uint64)
    return pairs


@jax.jit
def _bits_as_floats(sheet: Array) -> Array:
    floats: Array = lax.bitcast_convert_type(sheet, jnp.float32).reshape(-1)
    return floats


@jax.jit
def _joined(leaves: list[Array]) -> Array:
    """One after the other, and a zero where their number is odd."""
    flat = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    return jnp.pad(flat, (0, flat.size % 2))


@partial(jax.jit, static_argnames="shapes")
def _parted(flat: Array, *, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """The leaves that were joined."""
    ends = list(accumulate((math.prod(shape) for shape in shapes), initial=0))
    return [flat[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]


def _require_float32(leaves: list[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, jax.Array) or leaf.dtype != jnp.float32:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise InvalidArgument(
                f"a clipped sum must be JAX arrays of float32; got a leaf of {kind}.",
                hint="sum clipped gradients in float32, whatever they are computed in.",
            )


def _require_finite(leaves: list[Array]) -> None:
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in leaves):
        raise InvalidArgument(
            "a clipped sum must be finite; it is not.",
            hint="a gradient was summed that was not clipped: a row that is not finite counts as zero.",
        )
