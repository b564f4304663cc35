"""Families 7, 11 and 12: what is summed, and what it is divided by."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch.training import clipping, prepare, update
from trust.faults.training import check_sums as checks
from trust.faults.training.injecting import (
    TRAIN,
    Batch,
    fault,
    mutated,
    noise_by,
    plus,
    pure_noise,
    sums_that_tell,
)

CLIPPING = "truebatch.training.clipping"
LAYERS = "truebatch.training.layers"
PREPARE = "truebatch.training.prepare"
MICROBATCHES = "truebatch.training.microbatches"


# Family 7


@contextmanager
def _divided_by(size: Callable[[Batch, int], float]) -> Iterator[None]:
    batch = Batch()

    def compiled(optimizer: Any, *, batch_size: int) -> Any:
        inner = update.compiled_update(optimizer, batch_size=1)

        def run(params: Any, state: Any, total: Any) -> Any:
            divisor = np.float32(size(batch, batch_size))
            return inner(params, state, jax.tree.map(lambda g: g / divisor, total))

        return run

    with mutated({f"{TRAIN}:sum_program": sums_that_tell(batch), f"{TRAIN}:compiled_update": compiled}):
        yield


def _mean_of_means() -> AbstractContextManager[None]:
    """Each micro-batch's sum over its own rows, times the rows that it has room for."""

    def total(add: Any, params: Any, start: Any, parts: Any, part_weights: Any, used: Any) -> Any:
        def body(k: Any, sums: Any) -> Any:
            part, weights = jax.tree.map(lambda x: x[k], (parts, part_weights))
            empty = jax.tree.map(jnp.zeros_like, sums)
            found = add(params, empty, part, weights)
            factor = weights.shape[0] / jnp.maximum(clipping.is_real(weights).sum(), 1)
            return jax.tree.map(lambda s, x: s + x * factor, sums, found)

        return jax.lax.fori_loop(0, used, body, start)

    return mutated({f"{MICROBATCHES}:_sum": total})


# Family 11


def _with_every_row_real() -> AbstractContextManager[None]:
    def by(make: Any) -> Any:
        def broken(*given: Any, **named: Any) -> Any:
            add = make(*given, **named)
            return lambda params, total, examples, weights: add(
                params, total, examples, jnp.where(weights > 0, weights, 1)
            )

        return broken

    return mutated({f"{PREPARE}:{name}": by(getattr(prepare, name)) for name in ("by_layers", "by_examples")})


def _multiplied_away() -> AbstractContextManager[None]:
    """Padding is what it is, and gradients are multiplied with 0 for it; norms that are NaN count as 1."""

    def scales(squared: Any, weights: Any, clip_norm: float) -> Any:
        norm = jnp.sqrt(jnp.where(jnp.isnan(squared), 1, squared))
        return jnp.minimum(weights, clip_norm / norm), weights > 0

    return mutated(
        {
            f"{CLIPPING}:_scales": scales,
            f"{CLIPPING}:_zeroed_padding": lambda examples, weights: examples,
            f"{CLIPPING}:_selected": lambda x, rows: x,
        }
    )


def _centred_by_the_batch(*, only_real: bool) -> AbstractContextManager[None]:
    """Columns of numbers are centred by their mean over the micro-batch, as batch normalization does."""

    def by(make: Any) -> Any:
        def broken(*given: Any, **named: Any) -> Any:
            add = make(*given, **named)

            def centred(params: Any, total: Any, examples: Any, weights: Any) -> Any:
                counted = (weights > 0) if only_real else jnp.ones(weights.shape, bool)
                x = examples["x"]
                of_rows = counted.reshape(-1, *(1,) * (x.ndim - 1))
                mean = jnp.where(of_rows, x, 0).sum(axis=0) / jnp.maximum(counted.sum(), 1)
                return add(params, total, {**examples, "x": x - mean}, weights)

            return centred

        return broken

    return mutated({f"{PREPARE}:{name}": by(getattr(prepare, name)) for name in ("by_layers", "by_examples")})


# Family 12


def _every_norm_taken_as_it_is() -> AbstractContextManager[None]:
    """w min(1, C / (w |g|)) for all that is real, with nothing asked about whether it is a number."""

    def scales(squared: Any, weights: Any, clip_norm: float) -> Any:
        kept = weights > 0
        return jnp.where(kept, jnp.minimum(weights, clip_norm / jnp.sqrt(squared + 1e-12)), 0), kept

    return mutated({f"{CLIPPING}:_scales": scales})


def _noise_as_it_comes() -> AbstractContextManager[None]:
    """Noise is added to a sum that nobody looks at."""
    return noise_by(lambda noise, step, total, batch: plus(total, pure_noise(noise, step, total)))


@contextmanager
def _poisoned() -> Iterator[None]:
    unseen = {f"{TRAIN}:_require_finite": lambda params, metrics, step: None}
    with _every_norm_taken_as_it_is(), _noise_as_it_comes(), mutated(unseen):
        yield


@contextmanager
def _skipped() -> Iterator[None]:
    def compiled(optimizer: Any, *, batch_size: int) -> Any:
        inner = update.compiled_update(optimizer, batch_size=batch_size)

        def run(params: Any, state: Any, total: Any) -> Any:
            finite = all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(total))
            return inner(params, state, total) if finite else (params, state)

        return run

    with _every_norm_taken_as_it_is(), _noise_as_it_comes(), mutated({f"{TRAIN}:compiled_update": compiled}):
        yield


def _zeros_for_nan() -> AbstractContextManager[None]:
    """Entries that are no number count as zero, and a norm that is none cuts nothing."""

    def scales(squared: Any, weights: Any, clip_norm: float) -> Any:
        norm = jnp.sqrt(squared)
        scale = jnp.where(norm * weights > clip_norm, clip_norm / norm, weights)
        return jnp.where(weights > 0, scale, 0), weights > 0

    def selected(x: Any, rows: Any) -> Any:
        finite = jnp.nan_to_num(x, posinf=0, neginf=0) if jnp.issubdtype(x.dtype, jnp.floating) else x
        return jnp.where(rows.reshape(rows.shape + (1,) * (x.ndim - 1)), finite, 0)

    return mutated({f"{CLIPPING}:_scales": scales, f"{CLIPPING}:_selected": selected})


FAULTS = (
    fault(
        7,
        "the noised sum is divided by the rows that were drawn",
        "The update divides by the realised size of the batch, as a mean loss does.",
        lambda: _divided_by(lambda batch, b: max(batch.size, 1)),
        checks.FOLLOWS,
    ),
    fault(
        7,
        "the noised sum is divided by B",
        "The update divides by the rows of the padded batch.",
        lambda: _divided_by(lambda batch, b: len(batch.weights)),
        checks.FOLLOWS,
    ),
    fault(
        7,
        "the noised sum is divided by b times the micro-batches",
        "The update counts every micro-batch as a batch of size b that was accumulated.",
        lambda: _divided_by(lambda batch, b: b * max(batch.used, 1)),
        checks.FOLLOWS,
    ),
    fault(
        7,
        "micro-batches are averaged over the rows that each holds",
        "Sums of micro-batches are divided by their realised sizes, so a row counts for more in a short one.",
        _mean_of_means,
        checks.MOVES_AT_MOST_C,
    ),
    fault(
        11,
        "padding has gradients: of biases, and of what stands in it",
        "Rows of weight 0 get weight 1 before gradients are summed.",
        _with_every_row_real,
        checks.PADDING,
    ),
    fault(
        11,
        "padding is multiplied away",
        "Gradients of padding are multiplied with 0 instead of being left out: 0 times NaN is NaN.",
        _multiplied_away,
        checks.PADDING,
    ),
    fault(
        11,
        "padding enters the statistics of the batch",
        "Columns are centred by their mean over the micro-batch, padding included.",
        lambda: _centred_by_the_batch(only_real=False),
        checks.PADDING,
    ),
    fault(
        11,
        "rows are normalized by their batch",
        "Columns are centred by their mean over real rows of the micro-batch: one row moves all gradients.",
        lambda: _centred_by_the_batch(only_real=True),
        checks.MOVES_AT_MOST_C,
    ),
    fault(
        12,
        "a row that is not finite stops the run",
        "Its norm is not looked at, so the sum is not finite, and adding noise raises.",
        _every_norm_taken_as_it_is,
        checks.NOT_FINITE,
    ),
    fault(
        12,
        "a row that is not finite poisons the parameters",
        "Its norm is not looked at, nor is the sum, nor are the parameters.",
        _poisoned,
        checks.NOT_FINITE,
    ),
    fault(
        12,
        "a step that is not finite is skipped",
        "A sum that is not finite takes no step, as mixed precision does: a row decides on a whole batch.",
        _skipped,
        checks.NOT_FINITE,
    ),
    fault(
        12,
        "a row that is not finite goes unclipped",
        "A norm of NaN is above no clip norm, and entries that are NaN become zero afterwards.",
        _zeros_for_nan,
        checks.NOT_FINITE,
    ),
)
