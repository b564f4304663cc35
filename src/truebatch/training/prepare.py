"""Everything that is settled before the first step: the model, the road, the programs."""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import Device

from truebatch.errors import InvalidArgument, InvalidLoss
from truebatch.training.checks import (
    real_rows,
    require_agreement,
    require_float32,
    require_per_example,
    require_ranges,
    why_not_by_layers,
)
from truebatch.training.clipping import by_examples, by_layers
from truebatch.training.evaluate import Rows, first_rows
from truebatch.training.feed import Arrays
from truebatch.training.microbatches import (
    SumOfBatch,
    micro_batch_rows,
    sum_on_devices,
    sum_on_one_device,
)
from truebatch.training.models import Model
from truebatch.training.tape import Loss, Params

Road = Literal["auto", "layers", "examples"]


def model_and_params(model: Model | Loss, params: Params | None, *, seed: int) -> tuple[Model, Params]:
    """A model and parameters of its own: what the caller holds is not trained in place."""
    if not isinstance(model, Model):
        if not callable(model):
            raise InvalidArgument(
                "model must be a Model or the loss of one example; "
                f"got an object of type {type(model).__name__}."
            )
        if params is None:
            raise InvalidArgument(
                "a loss needs the params to begin with; got params=None.", hint="pass params=, or a Model."
            )
        model = Model(init=lambda _: params, loss=model)
    params = model.init(seed) if params is None else params
    require_float32(params)
    return model, jax.tree.map(lambda x: jnp.array(x, copy=True), params)


def road_of(model: Model, params: Params, like: Arrays, *, wanted: Road) -> tuple[Road, str | None]:
    """By layers wherever that is exact, and why not otherwise. The roads are held against each other."""
    require_per_example(model.loss, params, like.examples)
    if wanted not in ("auto", "layers", "examples"):
        raise InvalidArgument(f'road must be "auto", "layers" or "examples"; got road={wanted!r}.')
    if wanted == "examples":
        return "examples", "asked for"
    why = why_not_by_layers(model.loss, params, like.examples)
    if why is None:
        require_agreement(model.loss, params, like.examples, like.weights)
        return "layers", None
    if wanted == "layers":
        raise InvalidLoss(
            f"clipping by layers needs every array in a layer that is called; {why}.",
            hint='road="examples" makes the gradient of every example instead.',
        )
    return "examples", why


def require_columns(model: Model, like: Arrays, validation: Rows | None) -> None:
    """Refuse a first batch or validation rows that the model is not made for."""
    real = real_rows(like.examples, like.weights)
    require_ranges(model.ranges, real, where="the first batch")
    if validation is not None:
        rows = first_rows(validation)
        require_ranges(model.ranges, rows, where="the validation rows")
        for name in like.examples:
            if name not in rows or rows[name].shape[1:] != real[name].shape[1:]:
                got = {column: list(x.shape[1:]) for column, x in rows.items()}
                raise InvalidArgument(
                    "validation rows must have the columns of a batch, in its shapes; "
                    f"got {got}, without {name!r} of shape {list(real[name].shape[1:])} a row."
                )


def sum_program(
    loss: Loss,
    params: Params,
    like: Arrays,
    *,
    clip_norm: float | None,
    road: Road,
    micro_batch: int | None,
    devices: Sequence[Device] | None,
    constant_time: bool = False,
) -> SumOfBatch:
    """The program that sums clipped gradients: on one device, or with rows shared out among several."""
    rows, count = like.weights.shape[0], len(devices or ()) or 1
    size = 4 * sum(x.size for x in jax.tree.leaves(params))
    if micro_batch is None:
        gradient_bytes = size if road == "examples" else None
        micro_batch = micro_batch_rows(rows, gradient_bytes=gradient_bytes, num_devices=count)
    if not 0 < micro_batch or micro_batch % count:
        raise InvalidArgument(
            "micro_batch must be a positive multiple of the number of devices; "
            f"got micro_batch={micro_batch}, {count} devices."
        )
    add: Any = (by_layers if road == "layers" else by_examples)(loss, clip_norm=clip_norm)
    if devices is not None and len(devices) > 1:
        return sum_on_devices(add, micro_batch=micro_batch, devices=devices, constant_time=constant_time)
    return sum_on_one_device(add, micro_batch=micro_batch, constant_time=constant_time)
