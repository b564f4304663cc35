"""What is audited: a step that takes rows and a key and gives back what it releases. Ours is the default."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.sharding import SingleDeviceSharding

from truebatch.audit.buffer_shuffle import BufferSchedule, BufferShuffle
from truebatch.audit.rows import Floats, Ids, Rows
from truebatch.batching.shape import WEIGHT, batch_rows
from truebatch.errors import InvalidArgument
from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import BallsAndBins, Poisson, Sampler
from truebatch.training import Dense, Noise, optimizers
from truebatch.training.feed import Arrays, Columns, batches_from, first_batch
from truebatch.training.microbatches import SumOfBatch
from truebatch.training.prepare import Road, sum_program
from truebatch.training.tape import Params
from truebatch.training.update import compiled_update

# Batches without a largest size are padded to one of this many sizes an octave: each is compiled once.
_SIZES_AN_OCTAVE = 8
_MOST_ROWS = 2**28


class TrainStep(Protocol):
    """Training on rows that are gradients, as an auditor sees it.

    Called once a trial, with another key each time: every coin of the trial must follow from it. `rows` is
    read like an array [rows, dimension] of float32 (see `Rows`): the gradient of each example before it is
    clipped, the same at every step. What comes back is [steps, dimension]: at each step the noised sum of
    clipped gradients, as the released models show it. `sums_from_parameters` makes it of the models
    themselves.
    """

    def __call__(self, rows: Rows, key: Key, /) -> npt.ArrayLike:
        """The noised sum of every step."""
        ...


class Drawn(Protocol):
    """What a schedule is asked for here."""

    def batches(self) -> Iterator[Ids]:
        """The rows of each step."""
        ...


def sums_from_parameters(parameters: npt.ArrayLike, *, batch_size: int, learning_rate: float = 1.0) -> Floats:
    """The noised sums of plain SGD from zero on, from the parameters after each step [steps, dimension].

    >>> sums_from_parameters([[-1.0], [-1.5]], batch_size=4).tolist()
    [[4.0], [2.0]]
    """
    after = np.asarray(parameters, dtype=float)
    return -np.diff(after, axis=0, prepend=0.0) * (batch_size / learning_rate)


@dataclass(frozen=True, kw_only=True)
class _Feed:
    """Rows of a data set in the batches of a schedule, as columns of one shape."""

    rows: Rows
    drawn: Drawn
    size: int
    num_steps: int

    def __len__(self) -> int:
        return self.num_steps

    def __iter__(self) -> Iterator[Columns]:
        for members in self.drawn.batches():
            x = np.zeros((self.size, self.rows.dimension), np.float32)
            x[: len(members)] = self.rows[members]
            yield {"x": x, WEIGHT: (np.arange(self.size) < len(members)).astype(np.float32)}


def _linear(params: Params, example: Any) -> Array:
    """A loss whose gradient is the example."""
    value: Array = params["linear"](example["x"])[0]
    return value


class OurStep:
    """The parts of `truebatch.training.train`, put together as it does, under plain SGD of rate 1.

    The same schedule, feed, clipped sum, noise and update. The loss is linear, so that its gradient is the
    row, wherever the parameters are: every step begins at zero, which keeps the rounding of large parameters
    out of what is observed, and the change of the parameters is all that is read.

    Guarantees:
      - The changes add up to the parameters of `train` on the same batches and key, bit for bit where b is a
        power of two, and otherwise up to the rounding of their addition.
      - Programs are compiled once for all trials.
    """

    def __init__(
        self,
        spec: Sampler,
        *,
        sigma: float,
        clip_norm: float = 1.0,
        road: Road = "layers",
        draw: Callable[[Sampler, Key], Drawn] | None = None,
    ) -> None:
        self.spec = spec
        self.sigma = sigma
        self.clip_norm = clip_norm
        self.road = road
        self._draw: Any = draw or (BufferSchedule if isinstance(spec, BufferShuffle) else schedule)
        self._home = jax.devices()[0]
        self._optimizer = optimizers.sgd(1.0)
        self._update = compiled_update(self._optimizer, batch_size=spec.batch_size)
        self._sums: dict[tuple[int, int], SumOfBatch] = {}
        self._size = 0

    def __call__(self, rows: Rows, key: Key, /) -> Floats:
        """The noised sums that the released models show."""
        return -self.changes(rows, key).astype(float) * self.spec.batch_size

    def changes(self, rows: Rows, key: Key) -> npt.NDArray[np.float32]:
        """By how much each step moves the parameters, [steps, dimension]."""
        drawn = self._draw(self.spec, key)
        feed = _Feed(rows=rows, drawn=drawn, size=self._batch_size(drawn), num_steps=self.spec.num_steps)
        like = first_batch(feed, self.spec)
        clipped_sum = self._clipped_sum(like, rows.dimension)
        noise = Noise(key, self.sigma, self.clip_norm)
        zeros = _zeros_for(rows.dimension, self._home)
        state = jax.device_put(self._optimizer.init(zeros()), self._home)
        scratch, found = zeros(), []
        for step, batch in enumerate(batches_from(feed, 0, self.spec, like=like)):
            params = zeros()
            sums = clipped_sum(params, scratch, batch.examples, batch.weights)
            params, state = self._update(params, state, noise.add(step, sums.gradient))
            scratch = sums.gradient
            found.append(np.asarray(params["linear"].weight)[:, 0])
        return np.stack(found)

    def _clipped_sum(self, like: Arrays, dimension: int) -> SumOfBatch:
        shape = (like.weights.shape[0], dimension)
        if shape not in self._sums:
            self._sums[shape] = sum_program(
                _linear,
                _zeros_for(dimension, self._home)(),
                like,
                clip_norm=self.clip_norm,
                road=self.road,
                micro_batch=None,
                devices=None,
            )
        return self._sums[shape]

    def _batch_size(self, drawn: Any) -> int:
        """The rows of a batch, padding included: for samplers without a cap, room for all that were drawn."""
        if max(self.spec.batch_size, getattr(self.spec, "max_batch_size", 0)) > _MOST_ROWS:
            raise InvalidArgument(
                f"an audit holds a batch in memory, of at most 2^28 rows; got {self.spec}.",
            )
        if not isinstance(self.spec, Poisson | BallsAndBins):
            return batch_rows(self.spec)
        b = self.spec.batch_size
        needed = max(int(drawn.sizes().max()), b + 6 * math.isqrt(b), self._size)
        unit = max(1, (1 << needed.bit_length() - 1) // _SIZES_AN_OCTAVE)
        self._size = min(-(-needed // unit) * unit, self.spec.num_examples)
        return self._size


@cache
def _zeros_for(dimension: int, home: jax.Device) -> Callable[[], Params]:
    """Fresh parameters of zeros: each step uses up those it is given."""

    def zeros() -> Params:
        return {"linear": Dense(weight=jnp.zeros((dimension, 1), jnp.float32))}

    return jax.jit(zeros, out_shardings=SingleDeviceSharding(home))
