"""Batches as arrays of one shape: from mapped or written batches, or from any iterable of columns."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from truebatch.batching import Batch, Batches, batch_rows
from truebatch.batching.shape import WEIGHT
from truebatch.errors import InvalidArgument, InvalidData
from truebatch.specs import BallsAndBins, Poisson, Sampler
from truebatch.training.tape import Example

# Columns by name, `weight` among them; every batch has the same shapes.
Columns = Mapping[str, Any]
Feed = Batches | Iterable[Columns]


class Arrays(NamedTuple):
    """One batch, on the first device."""

    examples: Example
    weights: Array


def spec_of(batches: Feed, spec: Sampler | None) -> Sampler:
    """The sampler that drew the batches: they say so themselves, or the caller does."""
    if isinstance(batches, Batches):
        if spec is not None and spec != batches.spec:
            raise InvalidArgument(
                f"spec is known from the batches; got spec={spec}, and batches of {batches.spec}."
            )
        return batches.spec
    if spec is None:
        raise InvalidArgument(
            "an iterable of batches needs the spec of the sampler that drew them; got spec=None.",
            hint="pass spec=TruncatedPoisson(...), or batches that know their own.",
        )
    return spec


def first_batch(batches: Feed, spec: Sampler) -> Arrays:
    """The batch of step 0, checked against the spec. An iterator would lose it, so it is refused."""
    if isinstance(batches, Iterator):
        raise InvalidArgument(
            "batches must be iterable more than once, so that a run can resume; got an iterator.",
            hint="pass a list, or an object whose __iter__ starts over.",
        )
    if not isinstance(batches, Batches) and isinstance(batches, Sized) and len(batches) != spec.num_steps:
        raise InvalidData(
            f"there must be a batch for every step; got {len(batches)}, and num_steps={spec.num_steps}.",
            hint="an empty batch is a batch too: rows of weight 0.",
        )
    for columns in _read(batches, 0, 1):
        arrays = _arrays(columns)
        _require_rows(arrays.weights.shape[0], spec)
        return arrays
    raise InvalidData("there must be a batch for every step; got none.")


def batches_from(batches: Feed, step: int, spec: Sampler, *, like: Arrays) -> Iterator[Arrays]:
    """The batches of steps `step`..T-1, each made in the background while the one before it is in use.

    Guarantees:
      - Exactly T - step batches, each of the shapes of `like`; fewer or others raise.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as reader:
        source = map(_arrays, _read(batches, step, spec.num_steps))
        ahead = reader.submit(next, source, None)
        for t in range(step, spec.num_steps):
            arrays = ahead.result()
            if arrays is None:
                raise InvalidData(
                    f"there must be a batch for every step; got {t} of num_steps={spec.num_steps}.",
                    hint="an empty batch is a batch too: rows of weight 0.",
                )
            _require_same_shapes(arrays, like, t)
            ahead = reader.submit(next, source, None)
            yield arrays


def as_columns(batch: Batch | Columns) -> dict[str, np.ndarray[Any, Any]]:
    """The columns that can be computed with, as numpy arrays of types that the compiler knows.

    float64 becomes float32; whole numbers of 64 bits become int32, those beyond its range its ends. Columns
    of text and the like are left out.
    """
    if isinstance(batch, Batch):
        names = batch.record.schema.names
        found = {name: values for name in names if (values := _values(batch, name)) is not None}
    else:
        found = {name: np.asarray(column) for name, column in batch.items()}
    return {name: _narrow(column) for name, column in found.items() if column.dtype.kind in "bifu"}


def _read(batches: Feed, start: int, stop: int) -> Iterable[Batch | Columns]:
    if isinstance(batches, Batches):
        return batches.read(start, stop)
    return itertools.islice(batches, start, stop)


def _arrays(batch: Batch | Columns) -> Arrays:
    """Copied, because the batch may be overwritten while the copy is still being computed with."""
    columns = {name: jnp.array(column, copy=True) for name, column in as_columns(batch).items()}
    weights = columns.pop(WEIGHT, None)
    if weights is None:
        raise InvalidData(
            f"a batch must have a column {WEIGHT!r}, 0 for padding; got {', '.join(sorted(columns))}.",
            hint="numpy.ones(rows, numpy.float32) says that every row is real.",
        )
    for name, column in columns.items():
        if column.shape[:1] != weights.shape:
            raise InvalidData(
                f"columns of a batch must have one row for each weight; got {name!r} of shape {column.shape} "
                f"and {WEIGHT!r} of shape {weights.shape}."
            )
    return Arrays(columns, weights.astype(jnp.float32))


def _values(batch: Batch, name: str) -> np.ndarray[Any, Any] | None:
    try:
        return batch[name]
    except InvalidData:
        return None


def _narrow(column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if column.dtype in (np.int64, np.uint64, np.uint32):
        ends = np.iinfo(np.int32)
        narrow: np.ndarray[Any, Any] = np.clip(column, ends.min, ends.max).astype(np.int32)
        return narrow
    return column.astype(np.float32, copy=False) if column.dtype.kind == "f" else column


def _require_rows(rows: int, spec: Sampler) -> None:
    if isinstance(spec, Poisson | BallsAndBins):
        return  # No cap is part of the spec.
    if rows != batch_rows(spec):
        raise InvalidData(
            f"batches of {type(spec).__name__} must have {batch_rows(spec)} rows, padding included; "
            f"got {rows}."
        )


def _require_same_shapes(arrays: Arrays, like: Arrays, step: int) -> None:
    def shapes(a: Arrays) -> dict[str, str]:
        return {name: f"{x.dtype}{x.shape}" for name, x in {**a.examples, WEIGHT: a.weights}.items()}

    if shapes(arrays) != shapes(like):
        raise InvalidData(
            f"every batch must have the shapes of the first, {shapes(like)}; "
            f"got {shapes(arrays)} at step {step}."
        )
