"""The noise of one step, chunk by chunk: words drawn, turned into numbers, the doubtful ones decided."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial

import jax
import numpy as np
import numpy.typing as npt

from truebatch.training.exact_normal import rounded_normal
from truebatch.training.noise_words import SPARE_WORDS, NoiseWords, num_threads
from truebatch.training.normals import ROW, UNDECIDED, rounded_normals, undecided_rows

_ALIGNMENT = 64  # bytes; JAX reads a numpy array that begins on a multiple of it without a copy
# Numbers that floats leave undecided are written this many at a time.
_SLOTS = 32


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A power of two, and the noise's standard deviation in units of it."""

    step: float
    scale: float


def numbers_of(
    words: NoiseWords, grid: Grid, *, step: int, num_chunks: int, chunk: int, device: jax.Device
) -> Iterator[jax.Array]:
    """The rounded normals of each chunk of coordinates, in order.

    One after the other: words and numbers both keep all processors busy, and side by side they take longer.
    """
    buffer = _aligned_words(chunk)
    draw = _rounded_normals_for(device.platform)
    with ThreadPoolExecutor(num_threads()) as pool:
        for i in range(num_chunks):
            words.fill(buffer, step=step, first=i * chunk, pool=pool)
            numbers = draw(jax.device_put(_rows(buffer), device), grid.scale)
            # Waits for the numbers, so that the buffer may be used again.
            rows = np.asarray(undecided_rows(numbers))
            yield _decide(numbers, rows, words, grid, step=step, first=i * chunk, buffer=buffer)


def _decide(
    numbers: jax.Array,
    rows: npt.NDArray[np.bool_],
    words: NoiseWords,
    grid: Grid,
    *,
    step: int,
    first: int,
    buffer: npt.NDArray[np.uint64],
) -> jax.Array:
    """The numbers with those that floats left open decided exactly."""
    where = _undecided(numbers, np.flatnonzero(rows))
    decided = [
        rounded_normal(
            int(buffer[i]), words.refinement(step=step, coordinate=first + int(i)), scale=grid.scale
        )
        for i in where
    ]
    for begin in range(0, len(decided), _SLOTS):
        some = slice(begin, begin + _SLOTS)
        # A short list repeats itself to fill the slots, so that this is compiled once.
        values = np.resize(np.asarray(decided[some], dtype=np.int32), _SLOTS)
        numbers = _write(numbers, np.resize(where[some], _SLOTS), values)
    return numbers


def _undecided(numbers: jax.Array, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """Where in a chunk the undecided numbers are, all of them in the given rows."""
    if not rows.size:
        return rows
    row, column = np.nonzero(np.asarray(numbers)[rows] == UNDECIDED)
    where: npt.NDArray[np.intp] = rows[row] * ROW + column
    return where


@partial(jax.jit, donate_argnums=0)
def _write(numbers: jax.Array, where: jax.Array, values: jax.Array) -> jax.Array:
    return numbers.at[where // ROW, where % ROW].set(values)


@cache
def _rounded_normals_for(platform: str) -> Callable[[jax.Array, float], jax.Array]:
    """`rounded_normals`, compiled on processors for their widest instructions: XLA stops at half of them."""
    options = {"xla_cpu_prefer_vector_width": "512"} if platform == "cpu" else None
    return jax.jit(rounded_normals, compiler_options=options)


def _aligned_words(count: int) -> npt.NDArray[np.uint64]:
    """Room for `count` words and the spare ones, aligned so that JAX reads it in place."""
    room = np.empty(count + SPARE_WORDS + _ALIGNMENT // 8, dtype=np.uint64)
    begin = -room.ctypes.data % _ALIGNMENT // 8
    return room[begin : begin + count + SPARE_WORDS]


def _rows(buffer: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return buffer[:-SPARE_WORDS].reshape(-1, ROW)
