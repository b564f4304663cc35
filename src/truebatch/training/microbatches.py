"""A batch in equal micro-batches: one compiled program that stops after the last one with a real row."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, Device
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from truebatch.training.clipping import AddClipped, Sums, is_real
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


# (params, scratch, examples, weights) -> the sums over a batch. `scratch` has the shapes of params; its
# buffers may be taken for the result, and its values are never read.
SumOfBatch = Callable[[Params, Params, Example, Array], Sums]


def sum_on_one_device(add: AddClipped, *, micro_batch: int, constant_time: bool = False) -> SumOfBatch:
    """The sums of a batch, on the device that holds params.

    Guarantees:
      - Compiled once for batches of one shape, whatever their sizes; an empty batch takes the same path.
      - With `constant_time`, as many micro-batches are worked through whatever was drawn, to the same sums.
    """

    def run(params: Params, scratch: Params, examples: Example, weights: Array, least: Array) -> Sums:
        parts, part_weights = _in_micro_batches(examples, weights, micro_batch)
        return _sum(add, params, _zero(scratch), parts, part_weights, _num_used(part_weights, least))

    program = jax.jit(run, donate_argnums=1, keep_unused=True)

    def sums(params: Params, scratch: Params, examples: Example, weights: Array) -> Sums:
        found: Sums = program(params, scratch, examples, weights, _least(weights, micro_batch, constant_time))
        return found

    return sums


def sum_on_devices(
    add: AddClipped, *, micro_batch: int, devices: Sequence[Device], constant_time: bool = False
) -> SumOfBatch:
    """The same, with the rows of every micro-batch shared out among devices and their sums added up.

    Params may be anywhere; the result is on the first device. The order in which sums are added depends on
    the number of devices, so results agree up to rounding, and are the same bits for the same number.
    """
    mesh = Mesh(np.array(devices), ("rows",))
    same, split = _partition(), _partition(None, "rows")
    everywhere, shared_out = NamedSharding(mesh, same), NamedSharding(mesh, split)

    def on_each(params: Params, parts: Example, part_weights: Array, used: Array) -> Sums:
        total = _sum(add, params, _zero(params), parts, part_weights, used)
        added_up: Sums = jax.lax.psum(total, "rows")  # type: ignore[no-untyped-call]  # JAX leaves it so
        return added_up

    # Without the check of what varies, no sum over devices is put into a gradient before it is clipped.
    each = jax.shard_map(
        on_each, mesh=mesh, in_specs=(same, split, split, same), out_specs=same, check_vma=False
    )

    @jax.jit
    def whole(params: Params, parts: Example, part_weights: Array, least: Array) -> Sums:
        total: Sums = each(params, parts, part_weights, _num_used(part_weights, least))
        return total

    def run(params: Params, scratch: Params, examples: Example, weights: Array) -> Sums:
        del scratch
        parts = jax.device_put(_in_micro_batches(examples, weights, micro_batch), shared_out)
        least = _least(weights, micro_batch, constant_time)
        total = whole(jax.device_put(params, everywhere), *parts, jax.device_put(least, everywhere))
        first: Sums = jax.tree.map(lambda x: x.addressable_data(0), total)
        return first

    return run


def _partition(*axes: str | None) -> PartitionSpec:
    return PartitionSpec(*axes)  # type: ignore[no-untyped-call]  # JAX leaves it so


def _in_micro_batches(examples: Example, weights: Array, size: int) -> tuple[Example, Array]:
    """Every array as [micro-batches, size, ...], padded with zeros."""
    count = -(-weights.shape[0] // size)

    def shaped(x: Array) -> Array:
        missing = count * size - x.shape[0]
        padded = jnp.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1)) if missing else x
        return padded.reshape(count, size, *x.shape[1:])

    return {name: shaped(x) for name, x in examples.items()}, shaped(weights)


def _num_used(weights: Array, least: Array) -> Array:
    """How many micro-batches there are up to the last with a real row, or `least`, whichever is more.

    `weights` is [micro-batches, size].
    """
    used = is_real(weights).any(axis=1)
    return jnp.maximum(jnp.max(jnp.where(used, jnp.arange(1, used.shape[0] + 1), 0)), least)


def _least(weights: Array, micro_batch: int, constant_time: bool) -> Array:
    """How many micro-batches are worked through at least.

    An argument, not a constant: one program for both, and so the same rounding in both.
    """
    return jnp.asarray(-(-weights.shape[0] // micro_batch) if constant_time else 0, jnp.int32)


def _zero(like: Params) -> Sums:
    return Sums(jax.tree.map(jnp.zeros_like, like), jnp.zeros((), jnp.float32))


def _sum(
    add: AddClipped, params: Params, total: Sums, parts: Example, part_weights: Array, used: Array
) -> Sums:
    """The total plus what `add` adds for each of the first `used` micro-batches."""

    def body(k: Any, total: Sums) -> Sums:
        part, weights = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, k, keepdims=False), (parts, part_weights)
        )
        return add(params, total, part, weights)

    result: Sums = jax.lax.fori_loop(0, used, body, total)
    return result
