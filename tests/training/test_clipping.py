import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from materialized import Leaves, clipped_sum, gradients, norms, relative_error
from small_models import CASES, ROWS, Case

from truebatch.training.clipping import by_examples, by_layers
from truebatch.training.layers import Dense, Embedding
from truebatch.training.microbatches import sum_on_one_device

ROADS = {"by layers": by_layers, "by examples": by_examples}


@functools.cache
def program(road: str, loss: Callable[..., Any], micro_batch: int, clip_norm: float | None = 1.0) -> Any:
    return sum_on_one_device(ROADS[road](loss, clip_norm=clip_norm), micro_batch=micro_batch)


def found_sum(
    case: Case, weights: Any, *, road: str, micro_batch: int = 3, clip_norm: float | None = 1.0
) -> Any:
    scratch = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), case.params)
    run = program(road, case.loss, micro_batch, clip_norm)
    sums = run(case.params, scratch, jax.tree.map(jnp.asarray, case.examples), jnp.asarray(weights))
    return sums.gradient


def expected_sum(case: Case, weights: Any) -> Leaves:
    return clipped_sum(gradients(case.loss, case.params, case.examples, weights), 1.0)


def drawn(name: str, seed: int, gain: float = 1.0) -> tuple[Case, np.ndarray]:
    """A case, and weights some of which are 0; `gain` times the median norm is 1, the clip norm."""
    rng = np.random.default_rng(seed)
    case = CASES[name](rng)
    ones = norms(gradients(case.loss, case.params, case.examples, np.ones(ROWS)))
    weights = rng.choice(np.float32([0, 0.25, 1, 3]), size=ROWS) * np.float32(gain / np.median(ones))
    return case, weights.astype(np.float32)


cases = pytest.mark.parametrize("name", CASES)
roads = pytest.mark.parametrize("road", ROADS)


@roads
@cases
@given(
    seed=st.integers(0, 10**6),
    micro_batch=st.sampled_from([1, 3, ROWS + 1]),
    gain=st.sampled_from([0.3, 1.0, 3.0]),
)
@settings(max_examples=10, deadline=None)
def test_the_clipped_sum_is_that_of_materialized_gradients(
    name: str, road: str, seed: int, micro_batch: int, gain: float
) -> None:
    case, weights = drawn(name, seed, gain)
    found = found_sum(case, weights, road=road, micro_batch=micro_batch)
    assert relative_error(found, expected_sum(case, weights)) < 1e-5


@roads
@cases
def test_without_clipping_the_sum_is_the_gradient_of_the_weighted_sum(name: str, road: str) -> None:
    case, weights = drawn(name, 5, gain=10.0)
    expected = [
        sum(leaves) for leaves in zip(*gradients(case.loss, case.params, case.examples, weights), strict=True)
    ]
    found = found_sum(case, weights, road=road, clip_norm=None)
    assert relative_error(found, expected) < 1e-5


@roads
@cases
@given(seed=st.integers(0, 10**6), gain=st.sampled_from([1.0, 1e3, 1e6]))
@settings(max_examples=10, deadline=None)
def test_no_row_adds_more_than_the_clip_norm(name: str, road: str, seed: int, gain: float) -> None:
    case, weights = drawn(name, seed, gain)
    row = seed % ROWS
    alone = np.where(np.arange(ROWS) == row, weights.max(), 0).astype(np.float32)
    leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(found_sum(case, alone, road=road))]
    assert np.sqrt(sum(np.square(x).sum() for x in leaves)) <= 1.0


# What may stand in padding, or in a row whose gradient then is not finite.
GARBAGE = {"floats": (np.nan, np.inf, -np.inf, 3e38), "ints": (-1, 2**31 - 1, -(2**31), 100)}


def spoiled(case: Case, row: int, pick: int) -> Case:
    examples = {}
    for name, given_column in case.examples.items():
        column = np.array(given_column)
        value = GARBAGE["floats" if column.dtype.kind == "f" else "ints"][pick]
        column[row] = 77 if column.dtype == np.int8 else value
        examples[name] = column
    return dataclasses.replace(case, examples=examples)


@roads
@cases
@pytest.mark.parametrize("pick", range(4))
def test_padding_adds_exactly_nothing_whatever_it_holds(name: str, road: str, pick: int) -> None:
    case, weights = drawn(name, 3)
    weights[:] = 1
    weights[4] = 0
    clean = jax.tree.leaves(found_sum(case, weights, road=road))
    other = jax.tree.leaves(found_sum(spoiled(case, 4, pick), weights, road=road))
    assert all(np.array_equal(a, b) for a, b in zip(clean, other, strict=True))
    assert all(np.isfinite(a).all() for a in clean)


@roads
@cases
@pytest.mark.parametrize("pick", range(3))
def test_a_row_whose_gradient_is_not_finite_counts_as_zero(name: str, road: str, pick: int) -> None:
    case, weights = drawn(name, 3)
    weights[:] = 1
    without = np.where(np.arange(ROWS) == 4, 0, weights).astype(np.float32)
    clean = jax.tree.leaves(found_sum(case, without, road=road))
    other = jax.tree.leaves(found_sum(spoiled(case, 4, pick), weights, road=road))
    assert all(np.array_equal(a, b) for a, b in zip(clean, other, strict=True))


@roads
@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_weight_that_is_no_weight_counts_as_zero(road: str, bad: float) -> None:
    case, weights = drawn("clicks", 3)
    weights[:] = 1
    found = []
    for value in (bad, 0.0):
        weights[4] = value
        found.append(jax.tree.leaves(found_sum(case, weights, road=road)))
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))


@roads
def test_an_empty_batch_sums_to_zero(road: str) -> None:
    case, weights = drawn("clicks", 3)
    found = found_sum(case, np.zeros_like(weights), road=road)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(found))


@roads
@pytest.mark.parametrize("norm", [1e-12, 1e12])
def test_norms_far_from_one_are_clipped_exactly(road: str, norm: float) -> None:
    case, weights = drawn("clicks", 8)
    weights = (weights * np.float32(norm)).astype(np.float32)
    found = found_sum(case, weights, road=road)
    assert relative_error(found, expected_sum(case, weights)) < 1e-5


# Wrong implementations that the tests above must tell from right ones.


def bias_left_out(self: Dense, uses: Any, right: Any = Dense.squared_norms) -> Any:
    return right(Dense(weight=self.weight), uses)


def repeats_as_if_distinct(self: Embedding, uses: Any) -> Any:
    return sum(jnp.square(use.delta).reshape(len(use.delta), -1).sum(axis=1) for use in uses)


def uses_as_if_of_two_layers(self: Dense, uses: Any, right: Any = Dense.squared_norms) -> Any:
    return sum(right(self, [use]) for use in uses)


@pytest.mark.parametrize(
    ("name", "layer", "wrong"),
    [
        ("clicks", Dense, bias_left_out),
        ("shared table", Embedding, repeats_as_if_distinct),
        ("shared layers", Dense, uses_as_if_of_two_layers),
    ],
)
def test_a_wrong_norm_is_told_from_a_right_one(
    name: str, layer: type, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, weights = drawn(name, 3, gain=3.0)
    monkeypatch.setattr(layer, "squared_norms", wrong)
    run = sum_on_one_device(by_layers(case.loss, clip_norm=1.0), micro_batch=3)
    scratch = jax.tree.map(jnp.zeros_like, case.params)
    found = run(case.params, scratch, jax.tree.map(jnp.asarray, case.examples), jnp.asarray(weights)).gradient
    assert relative_error(found, expected_sum(case, weights)) > 1e-3


@roads
def test_padding_that_is_multiplied_away_is_told_from_padding_that_is_selected_away(
    road: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, weights = drawn("clicks", 3)
    weights[4] = 0
    multiplied = lambda x, rows: x * rows.reshape(rows.shape + (1,) * (x.ndim - 1)).astype(x.dtype)  # noqa: E731
    monkeypatch.setattr("truebatch.training.clipping._selected", multiplied)
    bad = spoiled(case, 4, 0)
    run = sum_on_one_device(ROADS[road](bad.loss, clip_norm=1.0), micro_batch=3)
    scratch = jax.tree.map(jnp.zeros_like, bad.params)
    found = run(bad.params, scratch, jax.tree.map(jnp.asarray, bad.examples), jnp.asarray(weights)).gradient
    assert any(np.isnan(leaf).any() for leaf in jax.tree.leaves(found))


def product_loss(params: Any, example: Any) -> Any:
    """Its gradient is the outer product of x and d: activations and deltas can be chosen at will."""
    return params["dense"](example["x"]) @ example["d"]


@roads
@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize(
    ("a", "d", "w"), [(1e-20, 1e18, 1), (1e18, 1e-20, 1), (1e-20, 1e-10, 1e32), (1e-30, 1, 1e35)]
)
def test_a_norm_that_underflows_does_not_let_a_row_past_the_clip_norm(
    road: str, positions: int, a: float, d: float, w: float
) -> None:
    def loss(params: Any, example: Any) -> Any:
        return product_loss(params, example).sum()

    params = {"dense": Dense(weight=jnp.zeros((400, 300)))}
    x = jnp.full((1, positions, 400), a, jnp.float32)
    run = sum_on_one_device(ROADS[road](loss, clip_norm=1.0), micro_batch=1)
    weights = jnp.full(1, w, jnp.float32)
    found = run(params, jax.tree.map(jnp.zeros_like, params), {"x": x, "d": jnp.full((1, 300), d)}, weights)
    total = np.asarray(found.gradient["dense"].weight, np.float64)
    assert np.sqrt(np.square(total).sum()) <= 1.0
