"""Loss and AUC on data that the guarantee does not protect: validation and test rows."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from truebatch.batching import Batch
from truebatch.data import Source
from truebatch.errors import InvalidData
from truebatch.training.feed import as_columns
from truebatch.training.metrics import auc
from truebatch.training.models import Model
from truebatch.training.tape import Params

# Columns by name, one row for each example, without weights; or rows to be read piece by piece.
Rows = Mapping[str, Any] | Source
_CHUNK = 8192

Evaluate = Callable[[Params], dict[str, float]]


def evaluation(model: Model, rows: Rows) -> Evaluate:
    """params -> {"loss": ..., "auc": ...} on all rows; AUC given predictions and labels of both kinds.

    One compiled program on chunks of one shape; scores are kept, rows are not.
    """
    per_row = jax.jit(jax.vmap(_loss_and_score(model), in_axes=(None, 0)))

    def evaluate(params: Params) -> dict[str, float]:
        losses, scores, labels = [], [], []
        for columns, count in _chunks(rows):
            loss, score = per_row(params, {name: jnp.asarray(x) for name, x in columns.items()})
            losses.append(np.asarray(loss[:count], np.float64))
            scores.append(np.asarray(score[:count]))
            if "label" in columns:
                labels.append(columns["label"][:count])
        if not losses:
            raise InvalidData("there must be at least one row to evaluate on; got none.")
        found = {"loss": float(np.concatenate(losses).mean())}
        truth = np.concatenate(labels) if labels else np.zeros(0)
        if model.predict is not None and math.isfinite(found["loss"]) and set(np.unique(truth)) == {0, 1}:
            found["auc"] = auc(truth, np.concatenate(scores))
        return found

    return evaluate


def first_rows(rows: Rows) -> dict[str, npt.NDArray[Any]]:
    """Some rows to check columns and ranges on."""
    for columns, count in _chunks(rows):
        return {name: x[:count] for name, x in columns.items()}
    return {}


def _loss_and_score(model: Model) -> Callable[[Params, Any], tuple[Array, Array]]:
    def both(params: Params, example: Any) -> tuple[Array, Array]:
        score = jnp.zeros(()) if model.predict is None else model.predict(params, example)
        return model.loss(params, example), score

    return both


def _chunks(rows: Rows) -> Iterator[tuple[dict[str, npt.NDArray[Any]], int]]:
    """Chunks of one number of rows, and how many of them are meant; the last is filled up with copies."""
    for columns in _pieces(rows):
        count = len(next(iter(columns.values())))
        for start in range(0, count, _CHUNK):
            part = {name: x[start : start + _CHUNK] for name, x in columns.items()}
            meant = min(_CHUNK, count - start)
            if meant < _CHUNK:
                part = {name: np.resize(x, (_CHUNK, *x.shape[1:])) for name, x in part.items()}
            yield part, meant


def _pieces(rows: Rows) -> Iterator[dict[str, npt.NDArray[Any]]]:
    if isinstance(rows, Mapping):
        yield as_columns(rows)
        return
    for batch in rows.read(0, rows.num_rows):
        yield as_columns(Batch(0, batch))
