"""The noise: normal numbers on an integer grid, added to the clipped sum as integers."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax import lax

from truebatch.accounting.rounding import grid_step, noise_scale
from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.training.noise_numbers import Grid, numbers_of
from truebatch.training.noise_words import STEP_LIMIT, NoiseWords
from truebatch.training.normals import ROW

PyTree = Any

# Coordinates are worked through in chunks of this many, 32 MiB of words and 16 MiB of numbers. Smaller ones
# would be as fast, but each chunk in which leaves meet is a program of its own to compile.
_CHUNK = 2**22  # whole pieces of words
# Beyond this many grid steps, float64 would no longer add whole numbers exactly.
_MAX_STEPS = 2.0**52


class Noise:
    """Normal noise of standard deviation sigma * clip_norm for each coordinate of a clipped sum.

    The sum is rounded to the grid of `accounting.rounding`, a normal number is rounded to the same grid, and
    the two are added as whole numbers: what can come out does not depend on the data, and adding noise to a
    rounded sum and then rounding is all that happens, so the Gaussian mechanism's bounds hold for it.
    docs/concepts/noise.md has the argument.

    Coordinates are numbered through the leaves of the sum in JAX's order of flattening, each leaf row by row.

    Guarantees:
      - The noise of coordinate i at step t is a function of (key, t, i, sigma * clip_norm): the same bits
        after a retry or a restart, on any number and kind of devices. Leaf shapes do not matter.
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
        self._grid: Grid | None = None
        if sigma != 0:  # no noise and no grid: training without privacy, and tests
            step = grid_step(sigma=sigma, clip_norm=clip_norm)
            self._grid = Grid(step=step, scale=noise_scale(sigma=sigma, clip_norm=clip_norm) / step)

    @property
    def grid(self) -> float:
        """The distance of two neighbouring values of a noised coordinate; 0 without noise."""
        return self._grid.step if self._grid else 0.0

    def add(self, step: int, clipped_sum: PyTree) -> PyTree:
        """The noised sum, in the clipped sum's own buffers: those given are used up.

        A sum that is not finite is an error, not something to hide under noise.
        """
        if isinstance(step, bool) or not hasattr(step, "__index__") or not 0 <= step < STEP_LIMIT:
            raise InvalidArgument(f"step must be a whole number from 0 to 2^40-1; got step={step!r}.")
        leaves, structure = jax.tree.flatten(clipped_sum)
        _require_float32(leaves)
        _require_within(leaves, limit=_MAX_STEPS * self._grid.step if self._grid else math.inf)
        if self._grid is None or not any(leaf.size for leaf in leaves):
            return clipped_sum
        homes = [leaf.sharding for leaf in leaves]
        device = min(homes[0].device_set, key=lambda d: d.id)
        gathered = [jax.device_put(leaf, device) for leaf in leaves]
        with jax.enable_x64(True):
            noised = _add_all(gathered, self._words, self._grid, step=step.__index__(), device=device)
        back = [jax.device_put(leaf, home) for leaf, home in zip(noised, homes, strict=True)]
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

    A number is wrong only where its U, known to 2^-191, falls on the wrong side of one of the boundaries
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


def _add_all(
    leaves: list[jax.Array], words: NoiseWords, grid: Grid, *, step: int, device: jax.Device
) -> list[jax.Array]:
    """All leaves with their noise; chunk by chunk."""
    chunk = _chunk_for(sum(leaf.size for leaf in leaves))
    plan = list(_pieces([leaf.size for leaf in leaves], chunk))
    numbers = numbers_of(words, grid, step=step, num_chunks=len(plan), chunk=chunk, device=device)
    for drawn, pieces in zip(numbers, plan, strict=True):
        indices = [piece.leaf for piece in pieces]
        changed = _add_pieces(
            tuple(leaves[i] for i in indices),
            drawn,
            tuple(piece.start for piece in pieces),
            grid.step,
            lengths=tuple(piece.length for piece in pieces),
        )
        for i, leaf in zip(indices, changed, strict=True):
            leaves[i] = leaf
    return leaves


@partial(jax.jit, donate_argnums=0, static_argnames="lengths")
def _add_pieces(
    leaves: tuple[jax.Array, ...],
    numbers: jax.Array,
    starts: tuple[jax.Array, ...],
    step: jax.Array,
    *,
    lengths: tuple[int, ...],
) -> list[jax.Array]:
    """Leaves with the numbers, one after the other, added to `lengths` coordinates from `starts` on."""
    flat_numbers = numbers.reshape(-1)
    ends = list(accumulate(lengths, initial=0))
    changed = []
    for leaf, start, (begin, end) in zip(leaves, starts, pairwise(ends), strict=True):
        flat = leaf.reshape(-1)
        piece = lax.dynamic_slice(flat, (start,), (end - begin,)).astype(jnp.float64)
        # Powers of two scale exactly and both terms are whole: only the way back to float32 rounds.
        whole = jnp.round(piece * (1 / step)) + flat_numbers[begin:end].astype(jnp.float64)
        noised = (whole * step).astype(jnp.float32)
        changed.append(lax.dynamic_update_slice(flat, noised, (start,)).reshape(leaf.shape))
    return changed


@dataclass(frozen=True)
class _Piece:
    """`length` coordinates of leaf number `leaf`, from its coordinate `start` on."""

    leaf: int
    start: int
    length: int


def _pieces(sizes: list[int], chunk: int) -> Iterator[list[_Piece]]:
    """The coordinates of all leaves in chunks: which pieces of which leaves each is made of."""
    pieces, room = [], chunk
    for leaf, size in enumerate(sizes):
        start = 0
        while start < size:
            length = min(size - start, room)
            pieces.append(_Piece(leaf, start, length))
            start, room = start + length, room - length
            if room == 0:
                yield pieces
                pieces, room = [], chunk
    if pieces:
        yield pieces


def _chunk_for(num_coordinates: int) -> int:
    """The size of a chunk: small sums have one that is little larger than they are."""
    return min(_CHUNK, max(ROW, 1 << (num_coordinates - 1).bit_length()))


def _require_float32(leaves: list[Any]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, jax.Array) or leaf.dtype != jnp.float32:
            kind = getattr(leaf, "dtype", type(leaf).__name__)
            raise InvalidArgument(
                f"a clipped sum must be JAX arrays of float32; got a leaf of {kind}.",
                hint="sum clipped gradients in float32, whatever they are computed in.",
            )


def _require_within(leaves: list[jax.Array], *, limit: float) -> None:
    largest = float(_largest(leaves))
    if not (largest <= limit and math.isfinite(largest)):
        raise InvalidArgument(
            "a clipped sum must be finite, and below 2^52 steps of the grid; it is not.",
            hint="a gradient was summed that was not clipped: a row that is not finite counts as zero.",
        )


@jax.jit
def _largest(leaves: list[jax.Array]) -> jax.Array:
    """The largest absolute value, NaN if there is one."""
    return jnp.stack([jnp.zeros((), jnp.float32), *(jnp.abs(leaf).max(initial=0) for leaf in leaves)]).max()
