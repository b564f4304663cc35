"""Family 17: what a row may count for."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp

from truebatch.training import clipping, layers, prepare
from truebatch.training.layers import Dense, Embedding, Use, square
from trust.faults.training import check_sums as checks
from trust.faults.training.injecting import (
    fault,
    mutated,
)

CLIPPING = "truebatch.training.clipping"
LAYERS = "truebatch.training.layers"
PREPARE = "truebatch.training.prepare"


def _norms_of(layer: str, squared_norms: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: mutated({f"{LAYERS}:{layer}.squared_norms": squared_norms})


_dense_norms, _embedding_norms = Dense.squared_norms, Embedding.squared_norms


def _without_bias(self: Dense, uses: Any) -> Any:
    return _dense_norms(Dense(weight=self.weight), uses)


def _bias_by_squares(self: Dense, uses: Any) -> Any:
    """For the bias the sum of (d_k . d_l)^2 over pairs of positions, where it is that of d_k . d_l."""
    d = layers._positions([use.delta for use in uses])
    return _without_bias(self, uses) + jnp.square(layers._gram(d)).sum(axis=(1, 2))


def _positions_apart(self: Dense, uses: Any) -> Any:
    """The sum of |a_k|^2 |d_k|^2 over positions."""
    a, d = layers._positions([use.inputs[0] for use in uses]), layers._positions([use.delta for use in uses])
    ones = 0.0 if self.bias is None else 1.0
    return ((jnp.square(a).sum(axis=-1) + ones) * jnp.square(d).sum(axis=-1)).sum(axis=1)


def _ids_apart(self: Embedding, uses: Any) -> Any:
    """The sum of |d_k|^2 over lookups, whichever rows they were of."""
    return sum(square(use.delta) for use in uses)


def _uses_apart(self: Embedding, uses: list[Use]) -> Any:
    """The squared norm of each use, exact, and their sum."""
    return sum(_embedding_norms(self, [use]) for use in uses)


def _by_leaves() -> AbstractContextManager[None]:
    """Every leaf cut to C on its own: together they have up to C times the root of their number."""

    def by_examples(loss: Any, *, clip_norm: float) -> Any:
        def add(params: Any, total: Any, examples: Any, weights: Any) -> Any:
            _, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(params, examples)

            def one(t: Any, g: Any) -> Any:
                scale, _ = clipping._scales(square(g), weights, clip_norm)
                return t + (g * clipping._along(scale, g)).sum(axis=0)

            return total._replace(gradient=jax.tree.map(one, total.gradient, grads))

        return add

    return mutated({f"{PREPARE}:by_examples": by_examples})


def _micro_batches_as_rows() -> AbstractContextManager[None]:
    """The mean gradient of a micro-batch is cut to C, and counted once for each of its rows."""

    def by_examples(loss: Any, *, clip_norm: float) -> Any:
        def add(params: Any, total: Any, examples: Any, weights: Any) -> Any:
            examples = clipping._zeroed_padding(examples, weights)
            _, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(params, examples)
            count = jnp.maximum((weights > 0).sum(), 1)
            mean = jax.tree.map(lambda g: (g * clipping._along(weights, g)).sum(axis=0) / count, grads)
            norm = jnp.sqrt(sum(jnp.square(g).sum() for g in jax.tree.leaves(mean)) + 1e-30)
            scale = jnp.minimum(1, clip_norm / norm) * count
            return total._replace(gradient=jax.tree.map(lambda t, g: t + g * scale, total.gradient, mean))

        return add

    return mutated({f"{PREPARE}:by_examples": by_examples})


def _entries_cut() -> AbstractContextManager[None]:
    """Every entry cut to [-C, C], which bounds the norm by C times the root of the dimension."""

    def by_examples(loss: Any, *, clip_norm: float) -> Any:
        def add(params: Any, total: Any, examples: Any, weights: Any) -> Any:
            _, grads = jax.vmap(jax.value_and_grad(loss), in_axes=(None, 0))(params, examples)

            def one(t: Any, g: Any) -> Any:
                return t + (jnp.clip(g, -clip_norm, clip_norm) * clipping._along(weights, g)).sum(axis=0)

            return total._replace(gradient=jax.tree.map(one, total.gradient, grads))

        return add

    return mutated({f"{PREPARE}:by_examples": by_examples})


def _clip_norm_of_one() -> AbstractContextManager[None]:
    """The clip norm that was asked for reaches the noise, and not the clipping."""
    made = {name: getattr(prepare, name) for name in ("by_layers", "by_examples")}
    return mutated(
        {
            f"{PREPARE}:{name}": lambda loss, clip_norm, make=make: make(loss, clip_norm=1.0)
            for name, make in made.items()
        }
    )


def _weights_afterwards() -> AbstractContextManager[None]:
    """Gradients are cut first and weighted then."""

    def scales(squared: Any, weights: Any, clip_norm: float) -> Any:
        kept = (weights > 0) & jnp.isfinite(squared)
        scale = weights * jnp.minimum(1, clip_norm / jnp.sqrt(squared + 1e-30))
        return jnp.where(kept, scale, 0), kept

    return mutated({f"{CLIPPING}:_scales": scales})


FAULTS = (
    fault(
        17,
        "norms leave biases out",
        "Dense.squared_norms forgets the gradient of the bias.",
        _norms_of("Dense", _without_bias),
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "norms of biases square the products of positions",
        "The bias of a layer that is used at several positions has (d . d)^2 in its norm, not d . d.",
        _norms_of("Dense", _bias_by_squares),
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "norms take positions apart",
        "Dense.squared_norms adds |a|^2 |d|^2 over positions, without the products between them.",
        _norms_of("Dense", _positions_apart),
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "norms take repeated ids of a bag apart",
        "Embedding.squared_norms adds |d|^2 over lookups, as if no id came twice.",
        _norms_of("Embedding", _ids_apart),
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "norms take two uses of one table apart",
        "Embedding.squared_norms is exact within each call, and adds up over calls that share rows.",
        _norms_of("Embedding", _uses_apart),
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "every array is clipped on its own",
        "Each leaf is cut to the clip norm, with noise for one clip norm over all.",
        _by_leaves,
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "a micro-batch is clipped as if it were a row",
        "The mean gradient of a micro-batch is cut to the clip norm and counts for all of its rows.",
        _micro_batches_as_rows,
        checks.MOVES_AT_MOST_C,
    ),
    fault(
        17,
        "entries are clipped instead of norms",
        "Every entry of a gradient is cut to [-C, C].",
        _entries_cut,
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "the clip norm that was asked for is not used",
        "Gradients are cut to norm 1, whatever the clip norm is; noise is for the clip norm.",
        _clip_norm_of_one,
        checks.AT_MOST_C,
    ),
    fault(
        17,
        "weights are applied after clipping",
        "A row of weight 3 counts for three clip norms.",
        _weights_afterwards,
        checks.FOLLOWS,
    ),
)
