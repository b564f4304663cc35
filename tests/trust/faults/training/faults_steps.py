"""Families 3, 8 and 9: empty batches, accumulations and devices."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch.training import clipping, feed, microbatches, update
from truebatch.training.layers import square
from truebatch.training.noise import Noise
from truebatch.training.privacy import Privacy
from trust.faults.training import check_noise as noise_checks
from trust.faults.training import check_sums as checks
from trust.faults.training.injecting import (
    TRAIN,
    Batch,
    fault,
    independent,
    mutated,
    noise_by,
    plus,
    pure_noise,
    scaled,
    sums_that_tell,
)

MICROBATCHES = "truebatch.training.microbatches"


def _added_up(
    parts: Callable[[Batch], list[int]], factor: Callable[[int], float]
) -> AbstractContextManager[None]:
    """Independent noise for each part, all of it times `factor(number of parts)`."""

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        found = parts(batch)
        for part in found:
            drawn = pure_noise(noise, independent(step, part), total)
            total = plus(total, drawn, factor(batch.num_devices))
        return total

    return noise_by(add)


# Family 3


def _without_empty_batches() -> AbstractContextManager[None]:
    def batches_from(*given: Any, **named: Any) -> Iterator[Any]:
        return (arrays for arrays in feed.batches_from(*given, **named) if np.asarray(arrays.weights).any())

    return mutated({f"{TRAIN}:batches_from": batches_from})


def _never_empty() -> AbstractContextManager[None]:
    def batches_from(*given: Any, **named: Any) -> Iterator[Any]:
        for arrays in feed.batches_from(*given, **named):
            empty = not np.asarray(arrays.weights).any()
            yield arrays._replace(weights=arrays.weights.at[0].set(1)) if empty else arrays

    return mutated({f"{TRAIN}:batches_from": batches_from})


@contextmanager
def _without_empty_steps() -> Iterator[None]:
    batch = Batch()

    def compiled(optimizer: Any, *, batch_size: int) -> Any:
        inner = update.compiled_update(optimizer, batch_size=batch_size)
        return lambda params, state, total: inner(params, state, total) if batch.size else (params, state)

    with mutated({f"{TRAIN}:sum_program": sums_that_tell(batch), f"{TRAIN}:compiled_update": compiled}):
        yield


def _devices_with_rows(batch: Batch) -> list[int]:
    return np.flatnonzero(batch.real.any(axis=(0, 2))).tolist()


# Family 8


def _sums_carried_over() -> AbstractContextManager[None]:
    """What is in the buffers of the last step is where the next sum begins."""
    zero = microbatches._zero
    return mutated({f"{MICROBATCHES}:_zero": lambda like: zero(like)._replace(gradient=like)})


def _sums_in_one_memory() -> AbstractContextManager[None]:
    """What is added to the total is written over it first: the last micro-batch is all there is, twice."""

    def total(add: Any, params: Any, start: Any, parts: Any, part_weights: Any, used: Any) -> Any:
        def body(k: Any, _: Any) -> Any:
            part, weights = jax.tree.map(lambda x: x[k], (parts, part_weights))
            found = add(params, jax.tree.map(jnp.zeros_like, start), part, weights)
            return jax.tree.map(lambda x: x + x, found)

        return jax.lax.fori_loop(0, used, body, start)

    return mutated({f"{MICROBATCHES}:_sum": total})


def _a_step_for_every_micro_batch() -> AbstractContextManager[None]:
    def batches_from(*given: Any, **named: Any) -> Iterator[Any]:
        for arrays in feed.batches_from(*given, **named):
            half = arrays.weights.shape[0] // 2
            first = jnp.arange(2 * half) < half
            yield arrays._replace(weights=jnp.where(first, arrays.weights, 0))
            yield arrays._replace(weights=jnp.where(first, 0, arrays.weights))

    return mutated({f"{TRAIN}:batches_from": batches_from})


_epsilon_after = Privacy.epsilon_after


def _four_steps_counted_as_one() -> AbstractContextManager[None]:
    def epsilon_after(self: Privacy, num_steps: int, **named: Any) -> float:
        return _epsilon_after(self, -(-num_steps // 4), **named)

    return mutated({"truebatch.training.privacy:Privacy.epsilon_after": epsilon_after})


# Family 9


def _sums_of_devices(combine: Callable[[Any, str], Any]) -> AbstractContextManager[None]:
    """`combine` in place of the sum over devices."""
    return mutated({"jax.lax:psum": combine})


_psum = jax.lax.psum


def _summed_before_clipping() -> AbstractContextManager[None]:
    def by_examples(loss: Any, *, clip_norm: float) -> Any:
        def add(params: Any, total: Any, examples: Any, weights: Any) -> Any:
            examples = clipping._zeroed_padding(examples, weights)
            _, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(params, examples)
            grads = jax.tree.map(lambda g: _psum(g * clipping._along(weights, g), "rows"), grads)
            squared = sum(square(g) for g in jax.tree.leaves(grads))
            scale, _ = clipping._scales(squared, jnp.ones_like(weights), clip_norm)
            first = jax.lax.axis_index("rows") == 0  # one device adds what all of them now hold

            def one(t: Any, g: Any) -> Any:
                return t + jnp.where(first, (g * clipping._along(scale, g)).sum(axis=0), 0)

            return total._replace(gradient=jax.tree.map(one, total.gradient, grads))

        return add

    return mutated({"truebatch.training.prepare:by_examples": by_examples})


FAULTS = (
    fault(
        3,
        "the loop passes over empty batches",
        "Batches without a real row are left out of the loop, and so are their noise and their step.",
        _without_empty_batches,
        checks.FOLLOWS,
    ),
    fault(
        3,
        "an empty batch is given a row",
        "Where no row was drawn, one is taken.",
        _never_empty,
        checks.FOLLOWS,
    ),
    fault(
        3,
        "an empty batch takes no step",
        "The optimizer is not called where there is nothing to learn from.",
        _without_empty_steps,
        checks.FOLLOWS,
    ),
    fault(
        3,
        "an empty batch adds no noise",
        "Noise is left out of a step without a real row.",
        lambda: scaled(lambda noise, batch: float(batch.size > 0)),
        noise_checks.MEASURED,
    ),
    fault(
        3,
        "a device without a real row adds none of its share of the noise",
        "Each device adds noise of deviation sigma C / sqrt(devices), if it has a row.",
        lambda: _added_up(_devices_with_rows, lambda devices: devices**-0.5),
        noise_checks.MEASURED_ON_DEVICES,
    ),
    fault(
        8,
        "sums are not cleared between steps",
        "Accumulation begins with what the buffers hold from the step before.",
        _sums_carried_over,
        checks.FOLLOWS,
    ),
    fault(
        8,
        "the sum shares its memory with what is added to it",
        "The sum of a micro-batch overwrites the total that it is added to: a row counts for two clip norms.",
        _sums_in_one_memory,
        checks.MOVES_AT_MOST_C,
    ),
    fault(
        8,
        "every micro-batch adds noise",
        "Noise of full deviation is added once for each micro-batch that has a real row.",
        lambda: _added_up(lambda batch: list(range(max(batch.used, 1))), lambda _: 1.0),
        noise_checks.MEASURED,
    ),
    fault(
        8,
        "noise is shared out among micro-batches",
        "Each micro-batch adds noise of deviation sigma C over their number, too little by its root.",
        lambda: scaled(lambda noise, batch: max(batch.used, 1) ** -0.5),
        noise_checks.MEASURED,
    ),
    fault(
        8,
        "every accumulation is a step",
        "Both halves of a batch are a step of their own: twice as many as were accounted for.",
        _a_step_for_every_micro_batch,
        checks.FOLLOWS,
    ),
    fault(
        8,
        "four steps are counted as one",
        "Epsilon so far divides the steps by a number of accumulations that each step has already had.",
        _four_steps_counted_as_one,
        noise_checks.CLAIM,
    ),
    fault(
        9,
        "every device adds the whole noise",
        "Each device adds noise of deviation sigma C to its share: too much by sqrt(devices).",
        lambda: _added_up(lambda batch: list(range(batch.num_devices)), lambda _: 1.0),
        noise_checks.MEASURED_ON_DEVICES,
    ),
    fault(
        9,
        "every device adds its part of the deviation",
        "Each device adds noise of deviation sigma C / devices: too little by sqrt(devices).",
        lambda: _added_up(lambda batch: list(range(batch.num_devices)), lambda devices: 1 / devices),
        noise_checks.MEASURED_ON_DEVICES,
    ),
    fault(
        9,
        "every device adds the same noise",
        "Devices that copy one generator add its noise as often as there are devices.",
        lambda: scaled(lambda noise, batch: batch.num_devices),
        noise_checks.MEASURED_ON_DEVICES,
    ),
    fault(
        9,
        "sums of devices are averaged",
        "The mean over devices stands in place of the sum: too little signal, or noise too much.",
        lambda: _sums_of_devices(jax.lax.pmean),
        checks.FOLLOWS_ON_DEVICES,
    ),
    fault(
        9,
        "sums of devices are summed twice",
        "What has been summed over devices is summed again: a row counts for C times their number.",
        lambda: _sums_of_devices(lambda x, axis: _psum(_psum(x, axis), axis)),
        checks.FOLLOWS_ON_DEVICES,
    ),
    fault(
        9,
        "gradients are summed over devices before they are clipped",
        "Differentiation sums over devices what all of them share: rows are cut in groups.",
        _summed_before_clipping,
        checks.FOLLOWS_ON_DEVICES,
    ),
)
