"""A batch in equal micro-batches: one compiled program that stops after the last one with a real row."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from truebatch.training.clipping import AddClipped, is_real
from truebatch.training.tape import Example, Params

# Larger than this, activations leave the cache and nothing is gained.
_LARGEST = 8192
# Matrix products of fewer rows than this lose speed.
_SMALLEST = 128
# A full batch is at least this many micro-batches, so that padding costs a small part of a step.
_FEWEST = 8
# Gradients of single examples that are held at once, in bytes.
_EXAMPLE_GRADIENT_BYTES = 2**28


def micro_batch_rows(rows: int, *, gradient_bytes: int | None = None, num_devices: int = 1) -> int:
    """How many rows are worked on at once on all devices: a function of public sizes.

    `gradient_bytes` is the size of one example's gradient when each is made, and None by layers.

    >>> micro_batch_rows(1328), micro_batch_rows(67754), micro_batch_rows(67754, gradient_bytes=2**20)
    (192, 8192, 256)
    """
    share = -(-rows // _FEWEST)
    size = max(_SMALLEST, min(_LARGEST, -(-share // 64) * 64))
    if gradient_bytes is not None:
        size = max(1, min(size, _EXAMPLE_GRADIENT_BYTES // gradient_bytes))
    size = min(size, rows)
    return -(-size // num_devices) * num_devices


def in_micro_batches(examples: Example, weights: Array, size: int) -> tuple[Example, Array]:
    """Every array as [micro-batches, size, ...], padded with zeros."""
    count = -(-weights.shape[0] // size)

    def shaped(x: Array) -> Array:
        missing = count * size - x.shape[0]
        padded = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) if missing else x
        return padded.reshape(count, size, *x.shape[1:])

    return jax.tree.map(shaped, examples), shaped(weights)


def num_used(weights: Array) -> Array:
    """How many micro-batches there are up to the last with a real row; `weights` is [micro-batches, size]."""
    used = is_real(weights).any(axis=1)
    return jnp.max(jnp.where(used, jnp.arange(1, used.shape[0] + 1), 0))


def sum_of_clipped(
    add: AddClipped, params: Params, total: Params, examples: Example, weights: Array, used: Array
) -> Params:
    """The total plus what `add` adds for each of the first `used` micro-batches."""

    def body(k: Any, total: Params) -> Params:
        part = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), (examples, weights))
        return add(params, total, *part)

    return jax.lax.fori_loop(0, used, body, total)


Sum = Callable[[Params, Params, Example, Array], Params]


def compiled_sum(add: AddClipped, *, micro_batch: int) -> Sum:
    """(params, scratch, examples, weights) -> the clipped sum, on one device.

    `scratch` has the shapes of params; its buffers are taken for the result, and its values are not read.

    Guarantees:
      - Compiled once for batches of one shape, whatever their sizes; an empty batch takes the same path.
    """

    def run(params: Params, scratch: Params, examples: Example, weights: Array) -> Params:
        parts, part_weights = in_micro_batches(examples, weights, micro_batch)
        zero = jax.tree.map(jnp.zeros_like, scratch)
        return sum_of_clipped(add, params, zero, parts, part_weights, num_used(part_weights))

    return jax.jit(run, donate_argnums=1, keep_unused=True)
