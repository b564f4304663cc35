"""The optimizer's step as one compiled program, apart from gradient and noise."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from truebatch.errors import InvalidArgument
from truebatch.training.tape import Params

# (params, state, sum) -> (params, state); the sum's buffers stay the caller's.
Update = Callable[[Params, Any, Params], tuple[Params, Any]]


def compiled_update(optimizer: optax.GradientTransformation, *, batch_size: int) -> Update:
    """One step of any Optax optimizer on the noised sum over `batch_size`, the target b.

    Params and state are updated in their own buffers.
    """

    def run(params: Params, state: Any, total: Params) -> tuple[Params, Any]:
        gradient = jax.tree.map(lambda g: g / batch_size, total)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(run, donate_argnums=(0, 1))


def require_optimizer(optimizer: Any, params: Params) -> Any:
    """The optimizer's first state, or what is wrong with it."""
    if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
        raise InvalidArgument(
            "optimizer must have init and update, as Optax's do; "
            f"got an object of type {type(optimizer).__name__}.",
            hint="use truebatch.training.optimizers.adam(...) or optax.adam(...).",
        )
    return optimizer.init(params)
