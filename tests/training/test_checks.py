from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import CASES, CLICKS, ROWS, Case

from truebatch.errors import InvalidData, InvalidLoss, RoadsDisagree
from truebatch.training.checks import (
    require_agreement,
    require_float32,
    require_per_example,
    require_ranges,
    why_not_by_layers,
)
from truebatch.training.layers import Affine, Dense

PARAMS = {"dense": Dense(weight=jnp.ones((3, 1)), bias=jnp.zeros(1))}
EXAMPLES = {"x": jnp.ones((ROWS, 3)), "y": jnp.ones(ROWS)}


def squared(params: Any, example: Any) -> Any:
    return jnp.square(params["dense"](example["x"])[0] - example["y"])


def drawn(name: str) -> Case:
    return CASES[name](np.random.default_rng(2))


@pytest.mark.parametrize("name", CASES)
def test_every_layer_used_in_every_way_is_clipped_by_layers(name: str) -> None:
    case = drawn(name)
    examples = jax.tree.map(jnp.asarray, case.examples)
    assert why_not_by_layers(case.loss, case.params, examples) is None
    require_agreement(case.loss, case.params, examples, jnp.ones(ROWS))


OFF_TAPE: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "weight decay in the loss": (
        lambda p, e: squared(p, e) + jnp.square(p["dense"].weight).sum(),
        PARAMS,
        "reads 'weight'",
    ),
    "an array of no layer": (
        lambda p, e: squared(p, e) * p["gain"],
        {**PARAMS, "gain": jnp.ones(())},
        "params['gain'] belongs to no layer",
    ),
    "a loop over a layer": (
        lambda p, e: jax.lax.fori_loop(0, 3, lambda _, x: x * p["dense"](x)[0], e["x"]).sum() - e["y"],
        PARAMS,
        "a loop, a branch or a derivative",
    ),
    "a norm of all parameters": (
        lambda p, e: squared(p, e) + sum(jnp.square(x).sum() for x in jax.tree.leaves(p)),
        PARAMS,
        "otherwise than by calling",
    ),
    "a layer under jit": (
        jax.jit(squared),
        PARAMS,
        "otherwise than by calling",
    ),
}


@pytest.mark.parametrize("name", OFF_TAPE)
def test_a_loss_that_no_tape_follows_says_why_and_is_never_approximated(name: str) -> None:
    loss, params, reason = OFF_TAPE[name]
    require_per_example(loss, params, EXAMPLES)
    assert reason in (why_not_by_layers(loss, params, EXAMPLES) or "")


EXACT_ALL_THE_SAME: dict[str, Callable[..., Any]] = {
    "the same call in every round of a loop": lambda p, e: jax.lax.fori_loop(
        0, 3, lambda _, z: jnp.sin(z + p["dense"](e["x"])[0]), e["y"]
    ),
    "a call in one branch of two": lambda p, e: jax.lax.cond(
        e["y"] > 0, lambda: p["dense"](e["x"])[0], lambda: p["dense"](2 * e["x"])[0] ** 2
    ),
    "a derivative in the loss": lambda p, e: jnp.square(
        jax.grad(lambda x: jnp.sin(p["dense"](x)[0]))(e["x"])
    ).sum(),
}


@pytest.mark.parametrize("name", EXACT_ALL_THE_SAME)
def test_calls_inside_other_transformations_are_exact_or_refused(name: str) -> None:
    loss = EXACT_ALL_THE_SAME[name]
    examples = {"x": jax.random.normal(jax.random.key(0), (ROWS, 3)), "y": jnp.linspace(-1, 1, ROWS)}
    if why_not_by_layers(loss, PARAMS, examples) is None:
        require_agreement(loss, PARAMS, examples, jnp.ones(ROWS))


class Forgetful(Dense):
    """A layer of one's own whose norm leaves out the bias."""

    def squared_norms(self, uses: Any) -> Any:
        return Dense(weight=self.weight).squared_norms(uses)


class Overcounting(Affine):
    """A layer of one's own whose sum is not its gradient."""

    def add_sum(self, total: Any, uses: Any) -> Any:
        return super().add_sum(super().add_sum(total, uses), uses)


for kind, fields in ((Forgetful, ["weight", "bias"]), (Overcounting, ["scale", "shift"])):
    jax.tree_util.register_dataclass(kind, data_fields=fields, meta_fields=[])


def test_a_wrong_layer_is_found_before_the_first_step() -> None:
    def affine_loss(params: Any, example: Any) -> Any:
        return jnp.square(params["layer"](example["x"]).sum() - example["y"])

    x, y = jax.random.normal(jax.random.key(0), (ROWS, 3)), jnp.ones(ROWS)
    weight, bias = jax.random.normal(jax.random.key(1), (3, 3)), jnp.ones(3)
    right = {"layer": Dense(weight=weight, bias=bias)}
    require_agreement(affine_loss, right, {"x": x, "y": y}, jnp.ones(ROWS))
    for wrong in (Forgetful(weight=weight, bias=bias), Overcounting(scale=weight[0])):
        with pytest.raises(RoadsDisagree, match="must be that of single gradients"):
            require_agreement(affine_loss, {"layer": wrong}, {"x": x, "y": y}, jnp.ones(ROWS))


def test_a_forgotten_bias_is_found_beside_a_thousand_weights() -> None:
    def loss(params: Any, example: Any) -> Any:
        return jnp.square(params["layer"](example["x"])[0] - example["y"])

    examples = {"x": jnp.ones((ROWS, 1000)), "y": jnp.ones(ROWS)}
    wrong = Forgetful(weight=jnp.ones((1000, 1)), bias=jnp.ones(1))
    with pytest.raises(RoadsDisagree):
        require_agreement(loss, {"layer": wrong}, examples, jnp.ones(ROWS))


def test_padding_among_the_first_rows_is_no_disagreement() -> None:
    case = drawn("clicks")
    examples = {
        k: jnp.asarray(np.where(np.arange(ROWS).reshape(-1, *[1] * (np.ndim(x) - 1)) < 1, x, 0))
        for k, x in case.examples.items()
    }
    require_agreement(case.loss, case.params, examples, (jnp.arange(ROWS) < 1).astype(jnp.float32))


@pytest.mark.parametrize("logit", [-40.0, -42.0, -45.0, 1e25])
def test_a_row_whose_norm_float32_cannot_square_is_no_disagreement_and_hides_none(logit: float) -> None:
    """A prediction that is right beyond doubt has a gradient of 1e-18."""

    def loss(params: Any, example: Any) -> Any:
        return jax.nn.softplus(params["layer"](example["x"])[0] + example["y"]) * jnp.maximum(example["y"], 1)

    x = jax.random.normal(jax.random.key(0), (ROWS, 3))
    examples = {"x": x, "y": jnp.zeros(ROWS).at[1].set(logit)}
    weight, bias = jnp.ones((3, 1)), jnp.ones(1)
    require_agreement(loss, {"layer": Dense(weight=weight, bias=bias)}, examples, jnp.ones(ROWS))
    with pytest.raises(RoadsDisagree):
        require_agreement(loss, {"layer": Forgetful(weight=weight, bias=bias)}, examples, jnp.ones(ROWS))


NOT_PER_EXAMPLE: dict[str, tuple[Callable[..., Any], str]] = {
    "a loss for each row of a batch": (
        lambda p, e: jnp.square(e["x"] @ jnp.ones(3)) * jnp.ones(4),
        "one float",
    ),
    "a whole number": (lambda p, e: jnp.int32(1), "one float"),
    "nothing": (lambda p, e: None, "one float"),
    "a pair": (lambda p, e: (squared(p, e), e["x"]), "one float"),
    "an axis that only a batch has": (lambda p, e: jnp.mean(jnp.sum(e["x"], axis=1)), "without a batch axis"),
    "statistics of the batch": (lambda p, e: jax.lax.pmean(squared(p, e), "batch"), "without a batch axis"),
    "a column that is not there": (lambda p, e: e["z"], "KeyError"),
}


@pytest.mark.parametrize("name", NOT_PER_EXAMPLE)
def test_a_loss_that_is_not_per_example_is_explained(name: str) -> None:
    loss, reason = NOT_PER_EXAMPLE[name]
    with pytest.raises(InvalidLoss, match=reason) as raised:
        require_per_example(loss, PARAMS, EXAMPLES)
    assert "float32[3]" in str(raised.value)


@pytest.mark.parametrize(
    "params",
    [{}, {"w": jnp.ones(3, jnp.int32)}, {"w": jnp.ones(3, jnp.bfloat16)}, {"w": np.ones(3)}, {"w": 1.0}],
)
def test_parameters_that_are_not_float32_are_refused(params: Any) -> None:
    with pytest.raises(InvalidLoss, match="params must"):
        require_float32(params)


def good_rows() -> dict[str, Any]:
    return {"i": np.zeros((3, 4)), "c": np.array([[0, 4, 1]] * 3), "label": np.array([0, 1, 1])}


def test_rows_within_the_range_of_a_model_are_taken() -> None:
    require_ranges(CLICKS.ranges, good_rows(), where="the first batch")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("label", np.array([0, 2, 1]), "column 'label' must be from 0 to 1"),
        ("label", np.array([0, -1, 1]), "column 'label' must be from 0 to 1"),
        ("label", np.array([0, np.nan, 1]), "column 'label' must be from 0 to 1"),
        ("c", np.array([[0, 5, 1]] * 3), "column 'c' must be from 0 to"),
        ("c", np.array([[0, -1, 1]] * 3), "column 'c' must be from 0 to"),
        ("c", np.zeros((3, 4), int), "entries of shape"),
        ("c", None, "needs a column 'c'"),
    ],
)
def test_rows_beyond_the_range_of_a_model_are_refused(column: str, values: Any, message: str) -> None:
    rows = good_rows() | {column: values}
    if values is None:
        del rows[column]
    with pytest.raises(InvalidData, match=message):
        require_ranges(CLICKS.ranges, rows, where="the first batch")
