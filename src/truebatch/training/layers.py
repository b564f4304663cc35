"""Layers whose per-example gradient norms follow from activations and deltas, exactly.

A layer is a plain pytree that is called on one example. What it was called with (activations) and the
gradient of the loss with respect to what it gave back (deltas) determine its gradient, so neither the norm
nor the clipped sum ever needs the gradients of single examples. docs/concepts/clipping.md has the formulas.
"""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Protocol, Self, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# A tensor core's shorter products would move single rows of the sum past the clip norm.
_EXACT = jax.lax.Precision.HIGHEST

# The least float32 that is not flushed to zero, and so the most that a product loses by being flushed. An
# example with tiny activations and huge deltas would otherwise have norm zero, and would not be clipped.
LEAST = 2.0**-126

# What a Gram matrix loses to cancellation in float32, in units of its diagonal: eight roundings.
_CANCELLATION = 2.0**-20


class Use(NamedTuple):
    """One call of a layer, over a batch: its inputs, and the deltas of its output; examples first."""

    inputs: tuple[Array, ...]
    delta: Array


@runtime_checkable
class Layer(Protocol):
    """A pytree of float32 arrays, called on one example.

    Guarantees that every layer gives:
      - `squared_norms(uses)[i]` is the squared norm of the gradient of example i with respect to all arrays
        of the layer, over all `uses` together, however often the layer was used; never an approximation.
      - `add_sum(total, uses)` is total plus that gradient summed over examples.
    """

    def __call__(self, *inputs: Array) -> Array:
        """The output for one example."""
        ...

    def squared_norms(self, uses: Sequence[Use]) -> Array:
        """Of each example, [examples]."""
        ...

    def add_sum(self, total: Self, uses: Sequence[Use]) -> Self:
        """The sum over examples, added to `total`."""
        ...


@partial(jax.tree_util.register_dataclass, data_fields=["weight", "bias"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """x @ weight + bias, for x of any leading shape: one vector, or one per position."""

    weight: Array
    bias: Array | None = None

    def __call__(self, *inputs: Array) -> Array:
        """The output for one example."""
        (x,) = inputs
        y = x @ self.weight
        return y if self.bias is None else y + self.bias

    def squared_norms(self, uses: Sequence[Use]) -> Array:
        """|a|^2 |d|^2 for one position; over positions k, l the sum of (a_k . a_l)(d_k . d_l)."""
        a = _positions([use.inputs[0] for use in uses])
        d = _positions([use.delta for use in uses])
        if a.shape[1] == 1:
            ones = 0.0 if self.bias is None else 1.0
            return (square(a[:, 0]) + ones) * square(d[:, 0])
        found = _gram_sum(_gram(a), _gram(d))
        return found if self.bias is None else found + square(d.sum(axis=1))

    def add_sum(self, total: "Dense", uses: Sequence[Use]) -> "Dense":
        """The sum of a^T d."""
        a, d = _rows([use.inputs[0] for use in uses]), _rows([use.delta for use in uses])
        weight = total.weight + jnp.matmul(a.T, d, precision=_EXACT)
        bias = None if total.bias is None else total.bias + d.sum(axis=0)
        return dataclasses.replace(total, weight=weight, bias=bias)


@partial(jax.tree_util.register_dataclass, data_fields=["table"], meta_fields=["sizes"])
@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedding:
    """Rows of a table by id, for ids of any shape.

    With `sizes`, the table holds one table per feature, one below the other: the last axis of ids is the
    feature, and feature k counts from 0 to sizes[k] - 1. Without, all ids share the whole table; a bag is
    `(embedding(ids) * counts[:, None]).sum(0)`.

    Guarantees:
      - An id outside its table gives NaN, not another row; it never counts from the end.
    """

    table: Array
    sizes: tuple[int, ...] | None = None

    def __call__(self, *inputs: Array) -> Array:
        """The output for one example."""
        (ids,) = inputs
        rows, known = self._rows(ids)
        return jnp.where(known[..., None], self.table[rows], jnp.nan)

    def squared_norms(self, uses: Sequence[Use]) -> Array:
        """Sum of (d_k . d_l) over pairs of lookups of the same row; of |d_k|^2, if rows cannot repeat."""
        lookups = [self._rows(use.inputs[0]) for use in uses]
        deltas = [
            jnp.where(known[..., None], use.delta, 0) for use, (_, known) in zip(uses, lookups, strict=True)
        ]
        d = _positions(deltas)
        if len(uses) == 1 and (d.shape[1] == 1 or self._rows_differ(uses[0].inputs[0])):
            return square(d)
        rows = jnp.concatenate([_flat(rows) for rows, _ in lookups], axis=1)
        return _gram_sum((rows[:, :, None] == rows[:, None, :]).astype(d.dtype), _gram(d))

    def add_sum(self, total: "Embedding", uses: Sequence[Use]) -> "Embedding":
        """Deltas, added to the rows that were looked up."""
        table = total.table
        for use in uses:
            rows, known = self._rows(use.inputs[0])
            d = jnp.where(known[..., None], use.delta, 0)
            table = table.at[rows.reshape(-1)].add(
                d.reshape(-1, d.shape[-1]), mode="promise_in_bounds", indices_are_sorted=False
            )
        return dataclasses.replace(total, table=table)

    def _rows(self, ids: Array) -> tuple[Array, Array]:
        """Rows of the table, all of them within it, and which of the ids were."""
        if self.sizes is None:
            size = self.table.shape[0]
            known = (ids >= 0) & (ids < size)
            return jnp.clip(ids, 0, size - 1), known
        sizes = np.array(self.sizes, np.int32)
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int32)
        known = (ids >= 0) & (ids < sizes)
        return jnp.clip(ids, 0, sizes - 1) + first, known

    def _rows_differ(self, ids: Array) -> bool:
        """Whether no example can look up a row twice: one id for each table."""
        return self.sizes is not None and ids.ndim == 2


@partial(jax.tree_util.register_dataclass, data_fields=["scale", "shift"], meta_fields=[])
@dataclasses.dataclass(frozen=True, kw_only=True)
class Affine:
    """x * scale + shift along the last axis, as after a normalization; either may be left out."""

    scale: Array | None = None
    shift: Array | None = None

    def __call__(self, *inputs: Array) -> Array:
        """The output for one example."""
        (x,) = inputs
        y = x if self.scale is None else x * self.scale
        return y if self.shift is None else y + self.shift

    def squared_norms(self, uses: Sequence[Use]) -> Array:
        """Of sum_k x_k d_k and sum_k d_k, which are no longer than the layer."""
        a = _positions([use.inputs[0] for use in uses])
        d = _positions([use.delta for use in uses])
        found = jnp.zeros(d.shape[0], d.dtype)
        if self.scale is not None:
            found += square((a * d).sum(axis=1))
        return found if self.shift is None else found + square(d.sum(axis=1))

    def add_sum(self, total: "Affine", uses: Sequence[Use]) -> "Affine":
        """The sums of x d and of d."""
        a, d = _rows([use.inputs[0] for use in uses]), _rows([use.delta for use in uses])
        scale = None if total.scale is None else total.scale + (a * d).sum(axis=0)
        shift = None if total.shift is None else total.shift + d.sum(axis=0)
        return dataclasses.replace(total, scale=scale, shift=shift)


def _positions(arrays: Sequence[Array]) -> Array:
    """[examples, positions, width], the positions of all uses one after the other."""
    shaped = [x.reshape(x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1]) for x in arrays]
    return shaped[0] if len(shaped) == 1 else jnp.concatenate(shaped, axis=1)


def _rows(arrays: Sequence[Array]) -> Array:
    """[examples x positions, width]."""
    shaped = [x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in arrays]
    return shaped[0] if len(shaped) == 1 else jnp.concatenate(shaped)


def _flat(x: Array) -> Array:
    return x.reshape(x.shape[0], -1)


def square(x: Array) -> Array:
    """Squared norm of each example, and no less: what underflowed is made up for."""
    flat = _flat(x)
    return jnp.square(flat).sum(axis=1) + flat.shape[1] * LEAST


def _gram(x: Array) -> Array:
    """Inner products of positions, and no less as a matrix: its diagonal makes up for what underflowed."""
    positions, width = x.shape[1:]
    lost = positions * width * LEAST
    return jnp.einsum("bki,bli->bkl", x, x, precision=_EXACT) + lost * jnp.eye(positions)


def _gram_sum(first: Array, second: Array) -> Array:
    """Sum over pairs of positions; where they cancel, rounded up by what float32 may have lost."""
    products = first * second
    diagonal = jnp.diagonal(products, axis1=1, axis2=2).sum(axis=1)
    found: Array = jnp.maximum(products.sum(axis=(1, 2)), 0) + _CANCELLATION * diagonal
    return found
