"""What is refused before the first step: all that training would otherwise silently get wrong."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truebatch.errors import InvalidData, InvalidLoss, RoadsDisagree
from truebatch.training.clipping import Sums, by_layers, is_real
from truebatch.training.microbatches import sum_on_one_device
from truebatch.training.models import Range
from truebatch.training.tape import Example, Loss, NotOnTape, Params, layers_of

_CHECKED_ROWS = 4
# In clip norms. Float32 is off by some 1e-6; a bias that is forgotten beside a thousand weights, by 1e-3.
_AGREEMENT = 1e-4
# Between them, the squares of all but the smallest entries of a gradient neither underflow nor overflow.
_LEAST_NORM, _LARGEST_NORM = 2.0**-40, 2.0**40


def require_float32(params: Params) -> None:
    """Refuse parameters that gradients and noise are not made for."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    if not leaves:
        raise InvalidLoss("params must hold at least one array; got none.")
    for path, leaf in leaves:
        dtype = getattr(leaf, "dtype", type(leaf).__name__)
        if dtype != jnp.float32:
            raise InvalidLoss(
                f"params must be float32 arrays; got {dtype} at params{jax.tree_util.keystr(path)}.",
                hint="close over what is not trained, and cast the rest to float32.",
            )


def require_per_example(loss: Loss, params: Params, examples: Example) -> None:
    """Refuse a loss that is not a scalar of one example, and say what it was called with."""
    shapes = {name: f"{x.dtype}{list(x.shape[1:])}" for name, x in examples.items()}
    called = f"loss(params, example) is called with one example, without a batch axis: {shapes}"
    try:
        found = jax.eval_shape(
            lambda p, batch: loss(p, {k: x[0] for k, x in batch.items()}), params, examples
        )
    except Exception as error:  # The loss is the caller's: it may raise anything, and all of it is explained.
        raise InvalidLoss(
            f"{called}; it raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            hint="write the loss of a single example; truebatch maps it over the batch.",
        ) from error
    if getattr(found, "shape", None) != () or not jnp.issubdtype(found.dtype, jnp.floating):
        raise InvalidLoss(
            f"{called}; it must return one float, and returned {found}.",
            hint="a sum or mean over a batch belongs outside the loss.",
        )


def why_not_by_layers(loss: Loss, params: Params, examples: Example) -> str | None:
    """Why the norms of this loss do not follow from activations and deltas; None when they do.

    Tracing alone lets an activation pass that has escaped from a loop, branch or derivative within the loss:
    it stands among the program's constants, and would fail when the program runs.
    """
    total = Sums(params, jnp.zeros(()))
    weights = jnp.ones(next(iter(examples.values())).shape[0])
    try:
        layers = layers_of(params)
        program = jax.make_jaxpr(by_layers(loss, clip_norm=1.0))(params, total, examples, weights)
    except NotOnTape as reason:
        return str(reason)
    except Exception as error:  # Whatever the loss does with what stands for a layer: it is on no tape.
        return f"the loss uses a layer otherwise than by calling it ({type(error).__name__})"
    if any(isinstance(constant, jax.core.Tracer) for constant in program.consts):
        return "a layer is called on what a loop, a branch or a derivative in the loss computes"
    return None if layers else "there are no layers"


def require_agreement(loss: Loss, params: Params, examples: Example, weights: Array) -> None:
    """Hold clipping by layers against gradients made one by one, on the first rows of the first batch.

    All are clipped, to half the smallest of their norms. A row whose norm is so small or large that float32
    may not square it is left out: it would stop the run by what it holds. Raises RoadsDisagree.
    """
    rows = min(_CHECKED_ROWS, weights.shape[0])
    real = is_real(weights[:rows])
    few = {name: jnp.where(_as(real, x), x[:rows], 0).astype(x.dtype) for name, x in examples.items()}
    gradient_of = jax.jit(jax.grad(loss))

    def gradient(row: int) -> Params:
        """Made when it is needed: a large model has room for few."""
        return gradient_of(params, {name: x[row] for name, x in few.items()})

    compared = {
        row: norm
        for row in range(rows)
        if (norm := _norm(gradient(row))) == 0 or _LEAST_NORM <= norm <= _LARGEST_NORM
    }
    clip_norm = min((norm for norm in compared.values() if norm), default=1.0) / 2
    kept = jnp.asarray([row in compared for row in range(rows)], jnp.float32)
    gap = sum_on_one_device(by_layers(loss, clip_norm=clip_norm), micro_batch=rows)(
        params, jax.tree.map(jnp.zeros_like, params), few, kept
    ).gradient
    for row, norm in compared.items():
        gap = _less(gap, gradient(row), min(1.0, clip_norm / norm) if norm else 0.0)
    off = _norm(gap)
    if not off <= _AGREEMENT * clip_norm:
        raise RoadsDisagree(
            "the clipped sum by activations and deltas must be that of single gradients; on a few rows they "
            f"differ by more than {_AGREEMENT:g} clip norms.",  # by how much would tell of the rows
            hint="a layer of your own has a wrong formula, or the loss is not the same each time; "
            'road="examples" makes every gradient.',
        )


def require_ranges(ranges: Mapping[str, Range], columns: Mapping[str, Any], *, where: str) -> None:
    """Refuse columns that are missing or leave their range. Says which, and never a value."""
    for name, (low, high) in ranges.items():
        if name not in columns:
            raise InvalidData(
                f"the model needs a column {name!r}; got {', '.join(sorted(columns))} in {where}."
            )
        values = np.asarray(columns[name])
        if values.shape[1:] != np.shape(high):
            raise InvalidData(
                f"column {name!r} must have entries of shape {list(np.shape(high))} in a row; "
                f"got {list(values.shape[1:])} in {where}."
            )
        if not ((np.asarray(low) <= values) & (values <= np.asarray(high))).all():
            raise InvalidData(
                f"column {name!r} must be from {_shown(low)} to {_shown(high)}; {where} has values beyond.",
                hint="encode the source again, with as many buckets as the model has.",
            )


def real_rows(examples: Example, weights: Array) -> dict[str, Any]:
    """The rows that are not padding, as numpy arrays."""
    real = np.asarray(is_real(weights))
    return {name: np.asarray(x)[real] for name, x in examples.items()}


@jax.jit
def _squared_norm(tree: Params) -> Array:
    return sum((jnp.square(leaf).sum() for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


def _norm(tree: Params) -> float:
    return math.sqrt(_squared_norm(tree))


@partial(jax.jit, donate_argnums=0)
def _less(total: Params, gradient: Params, scale: float) -> Params:
    return jax.tree.map(lambda t, g: t - scale * g, total, gradient)


def _as(rows: Array, x: Array) -> Array:
    return rows.reshape(rows.shape + (1,) * (x.ndim - 1))


def _shown(values: Any) -> str:
    array = np.unique(np.asarray(values))
    return str(array[0]) if len(array) == 1 else f"{array[0]}..{array[-1]}, by entry"
