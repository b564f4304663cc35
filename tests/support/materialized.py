"""Clipped sums the slow way: every example's gradient on its own, materialized, in float64."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

Leaves = list[npt.NDArray[np.float64]]


def gradients(
    loss: Callable[..., Any], params: Any, examples: Mapping[str, Any], weights: Any
) -> list[Leaves]:
    """w_i times the gradient of example i, leaf by leaf."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        found = []
        one_gradient = _compiled(loss)
        for i, weight in enumerate(np.asarray(weights, np.float64)):
            example = {name: _wide(np.asarray(x)[i]) for name, x in examples.items()}
            grad = one_gradient(wide, example)
            found.append([weight * np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grad)])
        return found


@functools.cache
def _compiled(loss: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = jax.jit(jax.grad(loss))
    return compiled


def norms(found: list[Leaves]) -> npt.NDArray[np.float64]:
    return np.array([np.sqrt(sum(np.square(leaf).sum() for leaf in leaves)) for leaves in found])


def clipped_sum(found: list[Leaves], clip_norm: float) -> Leaves:
    total = [np.zeros_like(leaf) for leaf in found[0]]
    for leaves, norm in zip(found, norms(found), strict=True):
        if np.isfinite(norm) and norm > 0:
            total = [t + leaf * min(1.0, clip_norm / norm) for t, leaf in zip(total, leaves, strict=True)]
    return total


def relative_error(leaves: Any, expected: Leaves) -> float:
    """Of the whole vector: |found - expected| / |expected|."""
    found = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(leaves)]
    gap = sum(np.square(f - e).sum() for f, e in zip(found, expected, strict=True))
    size = sum(np.square(e).sum() for e in expected)
    return float(np.sqrt(gap / size)) if size else float(np.sqrt(gap))


def _wide(x: Any) -> Any:
    return jnp.asarray(x, jnp.float64) if np.issubdtype(x.dtype, np.floating) else jnp.asarray(x)
