"""A model with every kind of layer, small enough that its gradients are written out by hand, in float64.

h = sum over positions k of tanh(x_k W + a)
e = sum over the bag of table[id], plus table[other]: ids repeat, and two calls share the table
z = [h, e] . u + b,  loss = softplus(z) - y z
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from truebatch.training import Dense, Embedding

Floats = npt.NDArray[np.float64]
Columns = dict[str, npt.NDArray[Any]]

POSITIONS, WIDTH, HIDDEN, IDS, DIMENSION, BAG = 3, 3, 2, 6, 2, 5


def params(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    return {
        "core": Dense(weight=normal(WIDTH, HIDDEN), bias=normal(HIDDEN)),
        "out": Dense(weight=normal(HIDDEN + DIMENSION, 1), bias=normal(1)),
        "table": Embedding(table=normal(IDS, DIMENSION)),
    }


def loss(params: Any, example: Any) -> jax.Array:
    """What is trained: of one example, by our layers."""
    h = jnp.tanh(params["core"](example["x"])).sum(axis=0)
    e = params["table"](example["bag"]).sum(axis=0) + params["table"](example["other"])
    z = params["out"](jnp.concatenate([h, e]))[0]
    return jax.nn.softplus(z) - example["y"] * z


def rows(count: int, seed: int = 1) -> Columns:
    """Rows whose gradients are from a hundredth to some tens in norm; ids repeat within most bags."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 0.7, size=(count, 1, 1))
    return {
        "x": (rng.normal(size=(count, POSITIONS, WIDTH)) * scale).astype(np.float32),
        "bag": rng.integers(0, 3, size=(count, BAG)).astype(np.int32),
        "other": rng.integers(0, IDS, size=count).astype(np.int32),
        "y": rng.integers(0, 2, size=count).astype(np.float32),
    }


def gradient(leaves: list[Any], columns: Columns, row: int) -> Floats:
    """Of one row, flat, in the order of the leaves: core weight and bias, out weight and bias, table."""
    W, a, u, b, table = (np.asarray(leaf, np.float64) for leaf in leaves)
    x, bag = columns["x"][row].astype(np.float64), [*columns["bag"][row], columns["other"][row]]
    hidden = np.tanh(x @ W + a)
    features = np.concatenate([hidden.sum(axis=0), table[bag].sum(axis=0)])
    z = float(features @ u[:, 0] + b[0])
    delta = 1 / (1 + np.exp(-z)) - float(columns["y"][row])
    back = delta * u[:HIDDEN, 0] * (1 - hidden**2)
    of_table = np.zeros_like(table)
    for number in bag:
        of_table[number] += delta * u[HIDDEN:, 0]
    parts = [x.T @ back, back.sum(axis=0), delta * features, [delta], of_table]
    return np.concatenate([np.ravel(part) for part in parts])


def clipped_sum(leaves: list[Any], columns: Columns, weights: Any, *, clip_norm: float) -> Floats:
    """Algorithm 1: w g, to norm C at most, for each row that is real and whose gradient is finite."""
    total = np.zeros(sum(np.size(leaf) for leaf in leaves))
    for row in np.flatnonzero(np.asarray(weights) > 0):
        one = float(weights[row]) * gradient(leaves, columns, int(row))
        norm = np.linalg.norm(one)
        if np.isfinite(norm) and norm > 0:
            total += one * min(1.0, clip_norm / norm)
    return total
