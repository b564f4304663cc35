"""Every step holds a float64 Algorithm 1 against what the optimizer was handed; rows weigh at most C."""

import contextlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch import TruncatedPoisson
from truebatch.training.prepare import sum_program
from trust.fault import Check
from trust.faults.training import tiny
from trust.faults.training.runs import LEARNING_RATE, Run, padded, run

b, B, CLIP_NORM, MICRO_BATCH = 32, 64, 0.5, 8
SIZES = (17, 0, 64, 1, 32, 5, 60, 0)
SPEC = TruncatedPoisson(num_examples=640, batch_size=b, num_steps=len(SIZES), max_batch_size=B)
# Noise that is there, and a hundredth of what float32 may be off: sums of 64 rows in entries up to 10 C.
SIGMA, TOLERANCE = 2.0**-22, 2e-5
ROADS = ("layers", "examples")


def _batches(*, fill: float = 0, sizes: Iterable[int] = SIZES) -> list[dict[str, Any]]:
    columns = tiny.rows(B)
    found = []
    for step, size in enumerate(sizes):
        members = np.random.default_rng(step).permutation(B)[:size]
        batch = padded(columns, members.tolist(), B, fill=fill)
        batch["weight"][: min(size, 2)] *= (3.0, 0.25)[: min(size, 2)]
        found.append(batch)
    return found


def _run(batches: list[dict[str, Any]], *, road: str, num_devices: int = 1) -> Run:
    shared = devices(num_devices) if num_devices > 1 else None  # before JAX begins
    return run(
        tiny.loss,
        tiny.params(),
        batches,
        spec=SPEC,
        sigma=SIGMA,
        clip_norm=CLIP_NORM,
        road=road,
        micro_batch=MICRO_BATCH,
        devices=shared,
    )


def devices(count: int) -> list[jax.Device]:
    """Simulated devices; there are as many if JAX has not begun."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices()
    if len(found) < count:
        raise RuntimeError(f"this check needs {count} devices, in a process where JAX has not begun.")
    return found[:count]


def flat(leaves: Any) -> np.ndarray[Any, Any]:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(leaves)]).astype(np.float64)


def _require_algorithm_1(done: Run, batches: list[dict[str, Any]]) -> None:
    T = SPEC.num_steps
    assert [seen.count for seen in done.seen] == list(range(T)), "a step of the optimizer for each batch"
    after = [flat(seen.params) for seen in done.seen[1:]] + [flat(done.trained.params)]
    for step, (seen, batch, next_params) in enumerate(zip(done.seen, batches, after, strict=True)):
        right = tiny.clipped_sum(seen.params, batch, batch["weight"], clip_norm=CLIP_NORM) / b
        gap = np.abs(flat(seen.gradient) - right).max()
        assert gap < TOLERANCE * CLIP_NORM, f"step {step} is off by {gap / CLIP_NORM:.2g} clip norms"
        moved = flat(seen.params) - LEARNING_RATE * flat(seen.gradient)
        assert np.abs(next_params - moved).max() < 1e-5, f"step {step} was not taken"


def _follows_algorithm_1() -> None:
    batches = _batches()
    for road in ROADS:
        _require_algorithm_1(_run(batches, road=road), batches)


def _follows_algorithm_1_on_four_devices() -> None:
    batches = _batches()
    for road in ROADS:
        _require_algorithm_1(_run(batches, road=road, num_devices=4), batches)


def _programs(rows: int) -> Iterable[Any]:
    """The two compiled sums of batches of `rows`: columns, weights -> the sum, flat."""
    params = tiny.params()
    like = _arrays(tiny.rows(rows), np.ones(rows))
    for road in ROADS:
        program = sum_program(
            tiny.loss,
            params,
            like,
            clip_norm=CLIP_NORM,
            road=road,  # type: ignore[arg-type]
            micro_batch=MICRO_BATCH,
            devices=None,
        )

        def total(columns: Any, weights: Any, program: Any = program) -> np.ndarray[Any, Any]:
            arrays = _arrays(columns, weights)
            scratch = jax.tree.map(jnp.zeros_like, params)
            return flat(program(params, scratch, arrays.examples, arrays.weights).gradient)

        yield total


def _arrays(columns: Any, weights: Any) -> Any:
    from truebatch.training.feed import Arrays

    return Arrays({name: jnp.asarray(x) for name, x in columns.items()}, jnp.asarray(weights, jnp.float32))


def _no_row_counts_for_more_than_the_clip_norm() -> None:
    rows = 48
    columns, leaves = tiny.rows(rows), jax.tree.leaves(tiny.params())
    norms = [np.linalg.norm(tiny.gradient(leaves, columns, row)) for row in range(rows)]
    for total in _programs(rows):
        for row in range(rows):
            found = np.linalg.norm(total(columns, np.arange(rows) == row))
            assert found <= CLIP_NORM, f"row {row} counts for {found / CLIP_NORM:.3f} clip norms"
            assert found > 0.9999 * min(norms[row], CLIP_NORM), f"row {row} counts for too little"


def _one_row_moves_a_sum_by_at_most_the_clip_norm() -> None:
    rows = 16
    columns = tiny.rows(rows)
    for total in _programs(rows):
        whole = total(columns, np.ones(rows))
        for row in range(rows):
            without = total(columns, np.arange(rows) != row)
            moved = np.linalg.norm(whole - without)
            assert moved < CLIP_NORM * (1 + 1e-5), f"row {row} moves the sum by {moved / CLIP_NORM:.3f} C"


def _same_bits(one: Run, other: Run) -> bool:
    return len(one.seen) == len(other.seen) and all(
        np.array_equal(flat(a.gradient), flat(c.gradient)) and np.array_equal(flat(a.params), flat(c.params))
        for a, c in zip(one.seen, other.seen, strict=True)
    )


def _padding_adds_nothing() -> None:
    """Zeros, or NaN and real rows in turn: the same bits, and those of Algorithm 1."""
    zeros, filled = _batches(), _batches(fill=np.nan)
    rows = tiny.rows(B, seed=7)
    for batch in filled:
        as_rows = np.flatnonzero(batch["weight"] == 0)[::2]
        for name, column in rows.items():
            batch[name][as_rows] = column[as_rows]
    for road in ROADS:
        first = _run(zeros, road=road)
        _require_algorithm_1(first, zeros)
        assert _same_bits(first, _run(filled, road=road)), "what padding holds moves the result"


def _rows_that_are_not_finite_count_as_zero() -> None:
    """As if they were not there, whatever is wrong with them; every step is taken."""
    bad, absent = _batches(), _batches()
    for step, (with_bad, without) in enumerate(zip(bad, absent, strict=True)):
        # The first rows of the first batch are looked at before the run; others are seen by steps alone.
        spoiled = np.flatnonzero(with_bad["weight"] > 0)[4 if step == 0 else 0 :: 5]
        without["weight"][spoiled] = 0
        for row in spoiled:
            kind = (step + row) % 5
            name, value = (("x", np.nan), ("x", np.inf), ("y", np.nan), ("y", -np.inf), ("bag", 10**6))[kind]
            with_bad[name][row] = value
    for road in ROADS:
        done = _run(bad, road=road)
        assert len(done.seen) == SPEC.num_steps, "a step was not taken"
        assert np.isfinite(flat(done.trained.params)).all(), "parameters are not finite"
        assert _same_bits(done, _run(absent, road=road)), "rows that are not finite move the result"


FOLLOWS = Check(
    name="what the optimizer is handed at every step is Algorithm 1 in float64", run=_follows_algorithm_1
)
FOLLOWS_ON_DEVICES = Check(
    name="what the optimizer is handed on four devices is Algorithm 1 in float64",
    run=_follows_algorithm_1_on_four_devices,
)
AT_MOST_C = Check(
    name="every row alone gives its gradient, cut to the clip norm",
    run=_no_row_counts_for_more_than_the_clip_norm,
)
MOVES_AT_MOST_C = Check(
    name="leaving one row out moves a sum by at most the clip norm",
    run=_one_row_moves_a_sum_by_at_most_the_clip_norm,
)
PADDING = Check(
    name="padding of zeros, of NaN and of real rows gives the same bits, and those of Algorithm 1",
    run=_padding_adds_nothing,
)
NOT_FINITE = Check(
    name="rows that are not finite give the bits of a run without them",
    run=_rows_that_are_not_finite_count_as_zero,
)
ALL = (FOLLOWS, FOLLOWS_ON_DEVICES, AT_MOST_C, MOVES_AT_MOST_C, PADDING, NOT_FINITE)
