"""Small models that use every layer in every way, with random parameters and examples."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch.training.layers import Affine, Dense, Embedding
from truebatch.training.models import click_model, linear_model

ROWS = 7


@dataclass(frozen=True)
class Case:
    """A loss that is the same object each time, so that programs are compiled once."""

    loss: Callable[..., Any]
    params: Any
    examples: dict[str, Any]


CLICKS = click_model(buckets=(3, 5, 2), num_numeric=4, dimension=3, hidden=(6, 5))
LINEAR = linear_model(buckets=(4, 9), num_numeric=2)


def clicks(rng: np.random.Generator) -> Case:
    examples = {
        "i": _normal(rng, ROWS, 4),
        "c": rng.integers(0, (3, 5, 2), size=(ROWS, 3)).astype(np.int32),
        "label": rng.integers(0, 2, size=ROWS).astype(np.int8),
    }
    return Case(CLICKS.loss, CLICKS.init(int(rng.integers(100))), examples)


def linear(rng: np.random.Generator) -> Case:
    examples = {
        "i": _normal(rng, ROWS, 2),
        "c": rng.integers(0, (4, 9), size=(ROWS, 2)).astype(np.int32),
        "label": rng.integers(0, 2, size=ROWS).astype(np.int8),
    }
    return Case(LINEAR.loss, LINEAR.init(0), examples)


def shared_table(rng: np.random.Generator) -> Case:
    """Two features and a multi-hot bag look up one table, with ids that repeat within an example."""
    params = {"table": Embedding(table=_normal(rng, 4, 3)), "out": _dense(rng, 6, 1, bias=False)}
    examples = {
        "first": rng.integers(0, 4, size=(ROWS, 2)).astype(np.int32),
        "bag": rng.integers(0, 4, size=(ROWS, 5)).astype(np.int32),
        "count": rng.integers(0, 3, size=(ROWS, 5)).astype(np.float32),
        "y": _normal(rng, ROWS),
    }
    return Case(_shared_table_loss, params, examples)


def _shared_table_loss(params: Any, example: Any) -> Any:
    one = params["table"](example["first"]).sum(axis=0)
    bag = (params["table"](example["bag"]) * example["count"][:, None]).sum(axis=0)
    return jnp.square(params["out"](jnp.concatenate([one, bag]))[0] - example["y"])


def shared_layers(rng: np.random.Generator) -> Case:
    """One dense layer three times, also over positions; an affine layer; tables looked up twice."""
    params = {
        "core": _dense(rng, 4, 4),
        "norm": Affine(scale=_normal(rng, 4), shift=_normal(rng, 4)),
        "tables": Embedding(table=_normal(rng, 5, 4), sizes=(2, 3)),
        "out": [_dense(rng, 4, 1), Affine(shift=_normal(rng, 1))],
    }
    examples = {
        "x": _normal(rng, ROWS, 3, 4),
        "c": rng.integers(0, (2, 3), size=(ROWS, 2)).astype(np.int32),
        "d": rng.integers(0, (2, 3), size=(ROWS, 2)).astype(np.int32),
        "y": _normal(rng, ROWS),
    }
    return Case(_shared_layers_loss, params, examples)


def _shared_layers_loss(params: Any, example: Any) -> Any:
    x = params["core"](jnp.sin(params["core"](example["x"])))
    x = params["norm"](x / jnp.sqrt(1 + jnp.square(x).sum(axis=-1, keepdims=True)))
    looked_up = params["tables"](example["c"]).sum(axis=0) * params["tables"](example["d"]).sum(axis=0)
    last, shift = params["out"]
    return jnp.square(shift(last(params["core"](x.sum(axis=0) + looked_up)))[0] - example["y"])


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "clicks": clicks,
    "linear": linear,
    "shared table": shared_table,
    "shared layers": shared_layers,
}


def _normal(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _dense(rng: np.random.Generator, inputs: int, outputs: int, *, bias: bool = True) -> Dense:
    return Dense(weight=_normal(rng, inputs, outputs), bias=_normal(rng, outputs) if bias else None)
