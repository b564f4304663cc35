from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import CLICKS, LINEAR, clicks, linear

from truebatch.errors import InvalidArgument
from truebatch.training.feed import Arrays
from truebatch.training.models import Model, click_model, linear_model
from truebatch.training.prepare import road_of


def test_the_click_model_has_the_size_that_is_stated() -> None:
    shapes = jax.eval_shape(click_model().init, 0)
    assert shapes["embedding"].table.shape == (26 * 61_538, 48)
    assert [layer.weight.shape for layer in shapes["hidden"]] == [(1261, 598), (598, 598), (598, 598)]
    total = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    assert 78.2e6 < total < 78.4e6


def test_initialization_is_a_function_of_the_seed_within_its_bounds() -> None:
    first, again, other = CLICKS.init(1), CLICKS.init(1), CLICKS.init(2)
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))
    assert not np.array_equal(first["embedding"].table, other["embedding"].table)
    big = click_model(buckets=(400, 600), dimension=16, num_numeric=2, hidden=(50,)).init(0)
    table, weight = np.asarray(big["embedding"].table), np.asarray(big["hidden"][0].weight)
    for values, bound in ((table, 16**-0.5), (weight, (6 / 34) ** 0.5)):
        assert np.abs(values).max() <= bound
        assert abs(values.std() / (bound / 3**0.5) - 1) < 0.05
    assert (np.asarray(big["hidden"][0].bias) == 0).all()


@pytest.mark.parametrize(("model", "draw"), [(CLICKS, clicks), (LINEAR, linear)])
def test_the_loss_is_minus_log_of_the_probability_of_the_label(model: Model, draw: Any) -> None:
    case = draw(np.random.default_rng(3))
    params = jax.tree.map(lambda x: x + 0.1, case.params)
    for i in range(4):
        example = {name: jnp.asarray(column)[i] for name, column in case.examples.items()}
        assert model.predict is not None
        p = 1 / (1 + np.exp(-float(model.predict(params, example))))
        expected = -np.log(p if example["label"] else 1 - p)
        assert abs(float(model.loss(params, example)) - expected) < 1e-5


@pytest.mark.parametrize("label", [2, -1, 77])
def test_a_label_that_is_neither_0_nor_1_has_no_loss(label: int) -> None:
    example = {"i": jnp.zeros(2), "c": jnp.zeros(2, jnp.int32), "label": jnp.int8(label)}
    assert np.isnan(LINEAR.loss(LINEAR.init(0), example))


@pytest.mark.parametrize("buckets", [(), (0,), (3, -1), (2.5,)])
def test_tables_without_rows_are_refused(buckets: Any) -> None:
    for make in (click_model, linear_model):
        with pytest.raises(InvalidArgument, match="buckets must be positive"):
            make(buckets=buckets, num_numeric=0)


@pytest.mark.parametrize(("numbers", "categories"), [(0, 3), (2, 0), (2, 3)])
@pytest.mark.parametrize("kind", ["click", "linear"])
def test_models_take_numbers_alone_and_categories_alone_by_layers(kind, numbers, categories) -> None:
    buckets = (4,) * categories
    more = {"dimension": 2, "hidden": (5,)} if kind == "click" else {}
    model = (click_model if kind == "click" else linear_model)(buckets=buckets, num_numeric=numbers, **more)
    rng = np.random.default_rng(0)
    examples = {"label": jnp.asarray([0, 1, 1], jnp.int8)}
    if numbers:
        examples["i"] = jnp.asarray(rng.normal(size=(3, numbers)), jnp.float32)
    if categories:
        examples["c"] = jnp.asarray(rng.integers(0, 4, (3, categories)), jnp.int32)
    like = Arrays(examples, jnp.ones(3))
    assert road_of(model, model.init(0), like, wanted="auto") == ("layers", None)
