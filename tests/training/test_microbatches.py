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

from truebatch.training.clipping import Sums, by_layers
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
        run = sum_on_devices(road(case.loss, clip_norm=0.5), micro_batch=16, devices=jax.devices())
        found = run(case.params, case.params, jax.tree.map(jnp.asarray, examples), jnp.asarray(weights))
        error = relative_error(found.gradient, clipped_sum(ones, 0.5))
        assert error < 1e-5, (name, road, error)
        assert all(leaf.devices() == {jax.devices()[0]} for leaf in jax.tree.leaves(found))
print("agreed")
"""


def test_the_sum_on_eight_devices_is_that_of_materialized_gradients() -> None:
    support = Path(__file__).parents[1] / "support"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(support)}
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT], capture_output=True, text=True, check=False, env=os.environ | flags
    )
    assert done.stdout == "agreed\n", done.stderr
