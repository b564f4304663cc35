import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import CASES, ROWS

from truebatch.training.clipping import Sums, by_examples, by_layers
from truebatch.training.microbatches import micro_batch_rows, sum_on_one_device


def counting_rows(params: Any, total: Sums, examples: Any, weights: Any) -> Sums:
    """Adds the number of rows that were worked on, padding included."""
    return Sums(total.gradient + weights.shape[0], total.loss + weights.sum())


@pytest.mark.parametrize(
    ("last_real", "worked_on"), [(None, 0), (0, 10), (9, 10), (10, 20), (57, 60), (94, 100)]
)
def test_a_step_stops_after_the_last_micro_batch_with_a_real_row(
    last_real: int | None, worked_on: int
) -> None:
    run = sum_on_one_device(counting_rows, micro_batch=10)
    weights = np.zeros(95, np.float32)
    if last_real is not None:
        weights[last_real] = 1
    sums = run(jnp.zeros(()), jnp.zeros(()), {}, jnp.asarray(weights))
    assert sums.gradient == worked_on


SIZES = (0, 1, 30, 57, 94, 95)


def rows_worked_on(size: int, *, constant_time: bool) -> int:
    run = sum_on_one_device(counting_rows, micro_batch=10, constant_time=constant_time)
    weights = (np.arange(95) < size).astype(np.float32)
    return int(run(jnp.zeros(()), jnp.zeros(()), {}, jnp.asarray(weights)).gradient)


def test_in_constant_time_the_work_does_not_depend_on_the_batch_size_and_otherwise_it_does() -> None:
    assert {rows_worked_on(size, constant_time=True) for size in SIZES} == {100}
    assert len({rows_worked_on(size, constant_time=False) for size in SIZES}) == 5


@pytest.mark.parametrize("road", [by_layers, by_examples])
@pytest.mark.parametrize("name", CASES)
def test_in_constant_time_the_sums_are_the_same_bits(name: str, road: Any) -> None:
    case = CASES[name](np.random.default_rng(3))
    examples = {k: jnp.asarray(np.tile(x, (5,) + (1,) * (np.ndim(x) - 1))) for k, x in case.examples.items()}
    add = road(case.loss, clip_norm=0.5)
    runs = [sum_on_one_device(add, micro_batch=4, constant_time=constant) for constant in (False, True)]
    for size in (0, 1, 9, 5 * ROWS):
        weights = jnp.asarray((np.arange(5 * ROWS) < size).astype(np.float32))
        short, whole = (run(case.params, _zeros(case.params), examples, weights) for run in runs)
        assert _bytes(short) == _bytes(whole)


def _zeros(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)


def _bytes(sums: Sums) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(sums)]


def test_the_step_compiles_once_whatever_the_batch_sizes() -> None:
    case = CASES["clicks"](np.random.default_rng(0))
    traced = []

    def loss(params: Any, example: Any) -> Any:
        traced.append(1)
        return case.loss(params, example)

    run = sum_on_one_device(by_layers(loss, clip_norm=1.0), micro_batch=2)
    scratch = jax.tree.map(jnp.zeros_like, case.params)
    counts = []
    for real in (3, 0, ROWS, 1):
        weights = (np.arange(ROWS) < real).astype(np.float32)
        scratch = run(
            case.params, scratch, jax.tree.map(jnp.asarray, case.examples), jnp.asarray(weights)
        ).gradient
        counts.append(len(traced))
    assert len(set(counts)) == 1


def test_what_scratch_holds_is_never_read_and_its_buffers_are_taken() -> None:
    case = CASES["clicks"](np.random.default_rng(0))
    run = sum_on_one_device(by_layers(case.loss, clip_norm=1.0), micro_batch=2)
    examples, weights = jax.tree.map(jnp.asarray, case.examples), jnp.ones(ROWS)
    clean = run(case.params, jax.tree.map(jnp.zeros_like, case.params), examples, weights).gradient
    scratch = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), case.params)
    again = run(case.params, scratch, examples, weights).gradient
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (clean, again)), strict=True))
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(scratch))


@pytest.mark.parametrize("rows", [1, 7, 128, 1328, 9007, 67754, 266475])
def test_micro_batches_are_a_small_part_of_a_batch(rows: int) -> None:
    size = micro_batch_rows(rows)
    assert 1 <= size <= rows
    assert size <= max(128, rows / 8 + 64)
    assert micro_batch_rows(rows, num_devices=8) % 8 == 0
    assert micro_batch_rows(rows, gradient_bytes=2**40) == 1


ON_EIGHT = """
import jax, numpy as np
import jax.numpy as jnp
from materialized import clipped_sum, gradients, relative_error
from small_models import CASES
from truebatch.training.clipping import by_examples, by_layers
from truebatch.training.microbatches import sum_on_devices

assert len(jax.devices()) == 8
for name, draw in CASES.items():
    case = draw(np.random.default_rng(4))
    weights = np.float32([1, 0, 1, 3, 1, 0.5, 1])
    examples = {k: np.tile(np.asarray(x), (5,) + (1,) * (np.ndim(x) - 1)) for k, x in case.examples.items()}
    weights = np.tile(weights, 5)
    ones = gradients(case.loss, case.params, examples, weights)
    for road in (by_layers, by_examples):
        add, given = road(case.loss, clip_norm=0.5), jax.tree.map(jnp.asarray, examples)
        run = sum_on_devices(add, micro_batch=16, devices=jax.devices())
        found = run(case.params, case.params, given, jnp.asarray(weights))
        error = relative_error(found.gradient, clipped_sum(ones, 0.5))
        assert error < 1e-5, (name, road, error)
        assert all(leaf.devices() == {jax.devices()[0]} for leaf in jax.tree.leaves(found))
        few = jnp.where(jnp.arange(35) < 5, weights, 0)
        whole = sum_on_devices(add, micro_batch=16, devices=jax.devices(), constant_time=True)
        pair = [go(case.params, case.params, given, few) for go in (run, whole)]
        assert len({b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(p)) for p in pair}) == 1
print("agreed")
"""


def test_the_sum_on_eight_devices_is_that_of_materialized_gradients() -> None:
    support = Path(__file__).parents[1] / "support"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(support)}
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT], capture_output=True, text=True, check=False, env=os.environ | flags
    )
    assert done.stdout == "agreed\n", done.stderr
