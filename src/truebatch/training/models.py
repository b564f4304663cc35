"""Models that are ready to use: an initialization, a loss of one example, and a prediction."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy.typing as npt
from jax import Array

from truebatch.errors import InvalidArgument
from truebatch.training.layers import Dense, Embedding
from truebatch.training.tape import Example, Loss, Params

# The paper's 1.6 million buckets, shared out evenly; with 48 numbers each, 77 of its 78 million parameters.
PAPER_BUCKETS = 61_538
_PAPER_NUM_CATEGORICAL = 26


Range = tuple[npt.ArrayLike, npt.ArrayLike]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What training needs to know of a model.

    `init(seed)` makes params; it looks at no data. `loss(params, example)` is a scalar; `predict(params,
    example)`, if there is one, is the logit of label 1. An example is a dict of the columns of one row.
    `ranges` gives the least and the largest value of columns, each a number or one number for each entry.
    """

    init: Callable[[int], Params]
    loss: Loss
    predict: Callable[[Params, Example], Array] | None = None
    ranges: Mapping[str, Range] = field(default_factory=dict)


def click_model(
    *,
    buckets: int | tuple[int, ...] = (PAPER_BUCKETS,) * _PAPER_NUM_CATEGORICAL,
    num_numeric: int = 13,
    dimension: int = 48,
    hidden: tuple[int, ...] = (598, 598, 598),
) -> Model:
    """The paper's model of clicks: embeddings beside log-transformed integers, three layers of ReLU, a logit.

    Columns: `c`, bucket numbers, one for each table; `i`, float32, already transformed; `label`, 0 or 1.
    The defaults have 78.3 million parameters. Tables start uniform within 1/sqrt(dimension), matrices within
    sqrt(6 / inputs) (He), biases at zero.

    Guarantees:
      - A label that is neither 0 nor 1, or a bucket outside its table, gives a loss that is not finite, and
        such a row then counts as zero.
    """
    sizes = (buckets,) * _PAPER_NUM_CATEGORICAL if isinstance(buckets, int) else tuple(buckets)
    _require_sizes(hidden=hidden, dimension=(dimension,))
    _require_columns(sizes, num_numeric)
    widths = (num_numeric + dimension * len(sizes), *hidden)

    def init(seed: int) -> Params:
        table_key, last_key, *keys = jax.random.split(jax.random.key(seed), 2 + len(hidden))
        bound = dimension**-0.5
        table = jax.random.uniform(table_key, (sum(sizes), dimension), minval=-bound, maxval=bound)
        return {
            **({"embedding": Embedding(table=table, sizes=sizes)} if sizes else {}),
            "hidden": [_he_dense(key, *shape) for key, shape in zip(keys, pairwise(widths), strict=True)],
            "logit": _he_dense(last_key, widths[-1], 1),
        }

    def predict(params: Params, example: Example) -> Array:
        parts = [example["i"]] if num_numeric else []
        if sizes:
            parts.append(params["embedding"](example["c"]).reshape(-1))
        x = jnp.concatenate(parts)
        for layer in params["hidden"]:
            x = jax.nn.relu(layer(x))
        logit: Array = params["logit"](x)[0]
        return logit

    return Model(init=init, loss=_logistic(predict), predict=predict, ranges=_ranges(sizes))


def linear_model(*, buckets: tuple[int, ...], num_numeric: int = 0) -> Model:
    """Logistic regression: a weight for each bucket of `c` and each number of `i`.

    Columns: `c`, one bucket number for each entry of `buckets`; `i`, float32, if there are numbers; `label`.
    Everything starts at zero, whatever the seed.
    """
    _require_columns(buckets, num_numeric)

    def init(_: int) -> Params:
        table = Embedding(table=jnp.zeros((sum(buckets), 1)), sizes=tuple(buckets))
        return {
            **({"embedding": table} if buckets else {}),
            "numeric": Dense(weight=jnp.zeros((num_numeric, 1)), bias=jnp.zeros(1)),
        }

    def predict(params: Params, example: Example) -> Array:
        numbers = example["i"] if num_numeric else jnp.zeros(0)
        logit: Array = params["numeric"](numbers)[0]
        return logit + params["embedding"](example["c"]).sum() if buckets else logit

    return Model(init=init, loss=_logistic(predict), predict=predict, ranges=_ranges(buckets))


def _logistic(predict: Callable[[Params, Example], Array]) -> Loss:
    """-log of the probability of the label, from a logit; NaN for a label that is neither 0 nor 1."""

    def loss(params: Params, example: Example) -> Array:
        z = predict(params, example)
        y = example["label"].astype(jnp.float32)
        y = jnp.where((y == 0) | (y == 1), y, jnp.nan)
        return jax.nn.softplus(z) - y * z

    return loss


def _ranges(sizes: tuple[int, ...]) -> dict[str, Range]:
    found: dict[str, Range] = {"label": (0, 1)}
    if sizes:
        found["c"] = ((0,) * len(sizes), tuple(size - 1 for size in sizes))
    return found


def _he_dense(key: Array, inputs: int, outputs: int) -> Dense:
    bound = (6 / inputs) ** 0.5
    weight = jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound)
    return Dense(weight=weight, bias=jnp.zeros(outputs))


def _require_columns(buckets: tuple[int, ...], num_numeric: int) -> None:
    if buckets or num_numeric < 1:
        _require_sizes(buckets=buckets)


def _require_sizes(**sizes: tuple[int, ...]) -> None:
    for name, values in sizes.items():
        if not values or any(not isinstance(v, int) or v < 1 for v in values):
            raise InvalidArgument(f"{name} must be positive whole numbers; got {name}={values!r}.")
