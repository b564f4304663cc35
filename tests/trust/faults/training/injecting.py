"""Ways to break training: what stands in for the sum, the noise and the update that `train` makes."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from truebatch.training.noise import Noise
from truebatch.training.prepare import sum_program
from trust.fault import Check, Fault, replaced

TRAIN = "truebatch.training.train"
_add = Noise.add


@contextmanager
def mutated(places: dict[str, Any]) -> Iterator[None]:
    """`replaced`, with nothing that was compiled before or meanwhile used on the other side."""
    jax.clear_caches()
    try:
        with replaced(places):
            yield
    finally:
        jax.clear_caches()


@dataclass
class Batch:
    """What a broken program knows of the batch that it is at."""

    weights: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(1))
    micro_batch: int = 1
    num_devices: int = 1

    @property
    def real(self) -> np.ndarray[Any, Any]:
        """Which rows are real, [micro-batches, devices, rows]."""
        missing = -len(self.weights) % self.micro_batch
        shape = (-1, self.num_devices, self.micro_batch // self.num_devices)
        return np.pad(self.weights > 0, (0, missing)).reshape(shape)

    @property
    def size(self) -> int:
        """How many rows are real."""
        return int(self.real.sum())

    @property
    def used(self) -> int:
        """How many micro-batches have a real row."""
        return int(self.real.any(axis=(1, 2)).sum())


def sums_that_tell(batch: Batch) -> Callable[..., Any]:
    """In place of `sum_program`: the same sums, and `batch` knows what they were of."""

    def program(*given: Any, **named: Any) -> Any:
        inner = sum_program(*given, **named)

        def run(params: Any, scratch: Any, examples: Any, weights: Any) -> Any:
            batch.weights = np.asarray(weights)
            batch.micro_batch = named["micro_batch"] or len(batch.weights)
            batch.num_devices = len(named["devices"] or ()) or 1
            return inner(params, scratch, examples, weights)

        return run

    return program


def pure_noise(noise: Noise, step: int, like: Any) -> Any:
    """The true noise of a step, alone."""
    return _add(noise, step, jax.tree.map(jax.numpy.zeros_like, like))


def plus(first: Any, second: Any, factor: float = 1.0) -> Any:
    """first + factor * second, leaf by leaf, as floats."""
    return jax.tree.map(lambda a, b: a + np.float32(factor) * b, first, second)


def independent(step: int, part: int) -> int:
    """A step of the noise that no run gets to: what a generator of its own would draw."""
    return step + (part + 1) * 2**30


@contextmanager
def noise_by(
    add: Callable[[Noise, int, Any, Batch], Any], places: dict[str, Any] | None = None
) -> Iterator[None]:
    """Noise that is added by `add(noise, step, sum, batch)` instead."""
    batch = Batch()

    def broken(self: Noise, step: int, clipped_sum: Any) -> Any:
        return add(self, step, clipped_sum, batch)

    told = {f"{TRAIN}:sum_program": sums_that_tell(batch), "truebatch.training.noise:Noise.add": broken}
    with mutated(told | (places or {})):
        yield


def scaled(factor: Callable[[Noise, Batch], float]) -> AbstractContextManager[None]:
    """The true noise times a factor."""

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        return plus(total, pure_noise(noise, step, total), factor(noise, batch))

    return noise_by(add)


def fault(number: int, name: str, how: str, inject: Any, check: Check) -> Fault:
    """A fault in five lines."""
    return Fault(number=number, name=name, how=how, inject=inject, check=check)
