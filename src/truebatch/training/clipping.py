"""The sum of clipped per-example gradients, by two roads that must agree.

By layers: norms and sum straight from activations and deltas. By examples: the gradients of single examples,
for any loss. Both clip w_i g_i, the gradient of example i times its weight, to the clip norm, so no weight
can make an example count for more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from truebatch.training.layers import LEAST, Use, square
from truebatch.training.tape import Example, Loss, Params, layers_of, replace_layers, uses_of_layers


class Sums(NamedTuple):
    """Over the rows of a batch. Both are as secret as the data until noise is added to the first."""

    gradient: Params
    loss: Array


# Adds what some examples give to a total: (params, total, examples, weights) -> total.
AddClipped = Callable[[Params, Sums, Example, Array], Sums]

# Rows are clipped to a hair below the clip norm, so that float32 rounding of a norm cannot carry one above.
HAIR = 2.0**-19

# Squared norms are products that may underflow themselves, a few for each layer.
_FLOOR = 2.0**10 * LEAST


def by_layers(loss: Loss, *, clip_norm: float | None) -> AddClipped:
    """For models whose arrays all belong to layers: never makes a gradient of one example.

    Guarantees:
      - Exact, layers used several times included; raises NotOnTape where it could not be.
      - A row of weight 0, or whose gradient is not finite, adds exactly nothing.
    """

    def add(params: Params, total: Sums, examples: Example, weights: Array) -> Sums:
        examples = _zeroed_padding(examples, weights)
        losses, uses = uses_of_layers(loss, params, examples)
        layers = layers_of(params)
        squared = jnp.zeros(weights.shape, jnp.float32)
        for layer, used in zip(layers, uses, strict=True):
            squared += layer.squared_norms(used) if used else 0
        scale, kept = _scales(squared, weights, clip_norm)
        sums = [
            layer.add_sum(part, [_scaled(use, scale, kept) for use in used]) if used else part
            for layer, part, used in zip(layers, layers_of(total.gradient), uses, strict=True)
        ]
        return Sums(replace_layers(total.gradient, sums), total.loss + _loss_sum(losses, weights, kept))

    return add


def by_examples(loss: Loss, *, clip_norm: float | None) -> AddClipped:
    """For any loss of one example: holds one gradient for each example at once.

    Guarantees:
      - Examples are isolated by construction: the loss never sees two.
      - A row of weight 0, or whose gradient is not finite, adds exactly nothing.
    """

    def add(params: Params, total: Sums, examples: Example, weights: Array) -> Sums:
        examples = _zeroed_padding(examples, weights)
        losses, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(params, examples)
        squared = jnp.zeros(weights.shape, jnp.float32)
        for leaf in jax.tree.leaves(grads):
            squared += square(leaf)
        scale, kept = _scales(squared, weights, clip_norm)
        gradient = jax.tree.map(
            lambda t, g: t + (_selected(g, kept) * _along(scale, g)).sum(axis=0), total.gradient, grads
        )
        return Sums(gradient, total.loss + _loss_sum(losses, weights, kept))

    return add


def is_real(weights: Array) -> Array:
    """Rows that are not padding: of a weight above 0."""
    return (weights > 0) & jnp.isfinite(weights)


def _scales(squared: Array, weights: Array, clip_norm: float | None) -> tuple[Array, Array]:
    """What each gradient is multiplied with, w min(1, C / (w |g|)), and which rows count at all."""
    kept = is_real(weights) & jnp.isfinite(squared)
    norm = jnp.sqrt(squared + _FLOOR)
    scale = weights if clip_norm is None else jnp.minimum(weights, clip_norm * (1 - HAIR) / norm)
    return jnp.where(kept, scale, 0), kept


def _loss_sum(losses: Array, weights: Array, kept: Array) -> Array:
    return jnp.where(kept & jnp.isfinite(losses), losses * weights, 0).sum()


def _zeroed_padding(examples: Example, weights: Array) -> Example:
    """Rows of weight 0 as zeros, whatever they hold: 0 times NaN would be NaN."""
    real = is_real(weights)
    return {name: _selected(x, real) for name, x in examples.items()}


def _scaled(use: Use, scale: Array, kept: Array) -> Use:
    inputs = tuple(_selected(x, kept) if jnp.issubdtype(x.dtype, jnp.floating) else x for x in use.inputs)
    return Use(inputs, _selected(use.delta, kept) * _along(scale, use.delta))


def _selected(x: Array, rows: Array) -> Array:
    return jnp.where(_along(rows, x), x, jnp.zeros((), x.dtype))


def _along(rows: Array, x: Any) -> Array:
    """One value for each row, in the shape of x."""
    return rows.reshape(rows.shape + (1,) * (x.ndim - 1))
