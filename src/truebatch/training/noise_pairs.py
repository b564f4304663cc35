"""The noise of one step, sheet by sheet: words drawn, made into numbers and added, the doubtful ones decided.

A sheet is an even number of coordinates of a sum, seen as pairs: the bits of two neighbouring float32 in one
uint64. Words, numbers and sums then are arrays of one shape, and all that is done to a pair is done by one
program, with no step in between that goes through memory.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, Device, lax

from truebatch.errors import InvalidArgument
from truebatch.training.exact_normal import rounded_pair
from truebatch.training.noise_words import PIECE, SPARE_WORDS, Kind, NoiseWords, num_threads
from truebatch.training.normals import rounded_pairs

# Pairs are worked through in chunks of this many: two times 16 MiB of words.
_CHUNK = 8 * PIECE
# Beyond this many grid steps, float64 would no longer add whole numbers exactly.
_MAX_STEPS = 2.0**52
# What stands where a pair is still to be decided: two NaN, which no other pair is.
_UNDECIDED = np.uint64(0x7FC00000_7FC00000)
# Undecided pairs are looked for in columns of this many, and written so many at a time.
_COLUMN, _SLOTS = 64, 32
_ALIGNMENT = 64  # bytes; JAX reads a numpy array that begins on a multiple of it without a copy
_FLOAT_BITS = (np.uint64(0), np.uint64(32))  # where in a pair its two float32 are


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A power of two, and the noise's standard deviation in units of it."""

    step: float
    scale: float


@dataclass
class _Room:
    """Memory for the words of a chunk, and what is there when they are no longer needed."""

    radius: npt.NDArray[np.uint64]
    angle: npt.NDArray[np.uint64]
    done: Array | None = None

    @classmethod
    def of(cls, count: int) -> Self:
        return cls(_aligned_words(count), _aligned_words(count))

    def wait(self) -> None:
        if self.done is not None:
            self.done.block_until_ready()


def noised_sheets(
    sheets: Sequence[Array],
    spare: Sequence[Array],
    words: NoiseWords,
    grid: Grid,
    *,
    step: int,
    device: Device,
) -> list[Array]:
    """The sheets with their noise, in the memory of `spare`. Needs 64-bit types enabled.

    Words of a chunk are drawn while the one before is worked on, in two sets of memory that take turns.
    """
    add, room = _program_for(device.platform), min(_CHUNK, max(sheet.size for sheet in sheets))
    rooms = cycle([_Room.of(room), _Room.of(room)])
    noised, firsts, first = list(spare), [], 0
    with ThreadPoolExecutor(num_threads()) as pool:
        for i, sheet in enumerate(sheets):
            for start in range(0, sheet.size, _CHUNK):
                count = min(_CHUNK, sheet.size - start)
                place = next(rooms)
                place.wait()
                size = count + SPARE_WORDS
                kinds = {Kind.RADIUS: place.radius[:size], Kind.ANGLE: place.angle[:size]}
                words.fill(kinds, step=step, first=first + start, pool=pool)
                drawn = jax.device_put((place.radius[:count], place.angle[:count]), device)
                noised[i], place.done = add(noised[i], sheet, *drawn, start, grid.scale, grid.step)
            firsts.append(first)
            first += -(-sheet.size // PIECE) * PIECE
    # Looking for what is left to decide goes on for all sheets at once.
    doubtful = [_doubtful(out) for out in noised]
    return [
        _decided(
            noised[i], sheet, _positions(noised[i], *doubtful[i]), words, grid, step=step, first=firsts[i]
        )
        for i, sheet in enumerate(sheets)
    ]


@cache
def _program_for(platform: str) -> Callable[..., tuple[Array, Array]]:
    """`_noised`, compiled on processors for their widest instructions: XLA stops at half of them."""
    options = {"xla_cpu_prefer_vector_width": "512"} if platform == "cpu" else None
    return jax.jit(_noised, donate_argnums=0, keep_unused=True, compiler_options=options)


def _noised(
    out: Array, sums: Array, radius: Array, angle: Array, start: Array, scale: Array, step: Array
) -> tuple[Array, Array]:
    """`out` with the pairs from `start` on, as many as there are words, of the sums with their noise.

    And `start`, which is there when the work is done: `out` itself may be used up by then.
    """
    pairs = lax.dynamic_slice(sums, (start,), radius.shape)
    numbers = rounded_pairs(radius, angle, scale)
    both, decided = jnp.zeros_like(pairs), numbers.decided
    for shift, number in zip(_FLOAT_BITS, numbers[:2], strict=True):
        value = lax.bitcast_convert_type(
            lax.shift_right_logical(pairs, shift).astype(jnp.uint32), jnp.float32
        )
        # Powers of two scale exactly and both terms are whole: only the way back to float32 rounds.
        whole = value.astype(jnp.float64) * (1 / step)
        noised = ((jnp.round(whole) + number) * step).astype(jnp.float32)
        bits = lax.bitcast_convert_type(noised, jnp.uint32).astype(jnp.uint64)
        both |= lax.shift_left(bits, shift)
        decided &= jnp.abs(whole) <= _MAX_STEPS  # not NaN either
    return lax.dynamic_update_slice(out, jnp.where(decided, both, _UNDECIDED), (start,)), start


@jax.jit
def _doubtful(noised: Array) -> tuple[Array, Array]:
    """Which columns hold an undecided pair, all but the last few laid out in _COLUMN rows; and the few."""
    width = noised.size // _COLUMN
    table = noised[: _COLUMN * width].reshape(_COLUMN, width)
    return (table == _UNDECIDED).any(axis=0), noised[_COLUMN * width :]


def _positions(noised: Array, columns: Array, last: Array) -> npt.NDArray[np.intp]:
    """Where the undecided pairs of a sheet are."""
    width = columns.size
    among = (np.flatnonzero(columns)[:, None] + width * np.arange(_COLUMN)).ravel()
    found = among[np.asarray(noised)[among] == _UNDECIDED]
    return np.concatenate([found, _COLUMN * width + np.flatnonzero(np.asarray(last) == _UNDECIDED)])


def _decided(
    noised: Array,
    sums: Array,
    where: npt.NDArray[np.intp],
    words: NoiseWords,
    grid: Grid,
    *,
    step: int,
    first: int,
) -> Array:
    """The sheet with its undecided pairs decided exactly; an error where it is the sum that is no number."""
    if not where.size:
        return noised
    whole = np.asarray(sums)[where].view(np.float32).reshape(-1, 2).astype(np.float64) / grid.step
    if not (np.abs(whole) <= _MAX_STEPS).all():
        raise InvalidArgument(
            "a clipped sum must be finite, and below 2^52 steps of the grid; it is not.",
            hint="a gradient was summed that was not clipped: a row that is not finite counts as zero.",
        )
    numbers = [_number(words, first + int(p), step=step, scale=grid.scale) for p in where]
    values = ((np.rint(whole) + numbers) * grid.step).astype(np.float32).view(np.uint64).ravel()
    for begin in range(0, where.size, _SLOTS):
        some = slice(begin, begin + _SLOTS)
        # A short list repeats itself to fill the slots, so that this is compiled once.
        noised = _write(noised, np.resize(where[some], _SLOTS), np.resize(values[some], _SLOTS))
    return noised


def _number(words: NoiseWords, pair: int, *, step: int, scale: float) -> tuple[int, int]:
    radius, radius_more = words.one(Kind.RADIUS, step=step, pair=pair)
    angle, angle_more = words.one(Kind.ANGLE, step=step, pair=pair)
    return rounded_pair(radius, angle, radius_more, angle_more, scale=scale)


@partial(jax.jit, donate_argnums=0)
def _write(pairs: Array, where: Any, values: Any) -> Array:
    return pairs.at[where].set(values)


def _aligned_words(count: int) -> npt.NDArray[np.uint64]:
    """Room for `count` words and the spare ones, aligned so that JAX reads it in place."""
    room = np.empty(count + SPARE_WORDS + _ALIGNMENT // 8, dtype=np.uint64)
    begin = -room.ctypes.data % _ALIGNMENT // 8
    return room[begin : begin + count + SPARE_WORDS]
