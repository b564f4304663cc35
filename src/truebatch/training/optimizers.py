"""Adam, Adagrad and SGD in few passes over memory, and a learning rate that decays.

They are Optax transformations, and any of Optax's may stand in their place: what makes a step fast is that
`update.compiled_update` makes one program of it, in place. These keep their corrections and rates out of what
is done to every coordinate, and refuse settings that make no sense.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from truebatch.errors import InvalidArgument

# A number, or a function of the steps taken so far.
LearningRate = float | Callable[[Array], Any]


class AdamState(NamedTuple):
    """Steps taken, and running means of the gradient and of its square."""

    num_steps: Array
    mean: Any
    square: Any


class AdagradState(NamedTuple):
    """Steps taken, and the sum of squares."""

    num_steps: Array
    squares: Any


class SGDState(NamedTuple):
    """Steps taken, and the velocity; none without momentum."""

    num_steps: Array
    velocity: Any


def adam(
    learning_rate: LearningRate, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
) -> optax.GradientTransformation:
    """Adam (Kingma and Ba 2015, Algorithm 1), with the corrections for bias as factors of the whole step.

    Guarantees:
      - Steps are those of `optax.adam` but for rounding.
    """
    _require(0 <= b1 < 1 and 0 <= b2 < 1 and eps >= 0, "b1 and b2 must be in [0, 1), eps >= 0", b1, b2, eps)
    rate = _schedule(learning_rate)

    def init(params: Any) -> AdamState:
        return AdamState(_no_steps(), _zeros_like(params), _zeros_like(params))

    def update(gradient: Any, state: AdamState, params: Any = None) -> tuple[Any, AdamState]:
        del params
        count = state.num_steps + 1
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, gradient)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * (g * g), state.square, gradient)
        # m / (1 - b1^t) over sqrt(v / (1 - b2^t)) + eps: one factor each, worked out once a step.
        step_size = -rate(state.num_steps) / (1 - b1**count)
        root_factor = 1 / jnp.sqrt(1 - b2**count)
        steps = jax.tree.map(lambda m, v: step_size * m / (jnp.sqrt(v) * root_factor + eps), mean, square)
        return steps, AdamState(count, mean, square)

    return optax.GradientTransformation(init, update)


def adagrad(
    learning_rate: LearningRate, *, initial: float = 0.1, eps: float = 1e-7
) -> optax.GradientTransformation:
    """Adagrad (Duchi, Hazan and Singer 2011): each coordinate's rate falls with its own gradients so far.

    Guarantees:
      - Steps are those of `optax.adagrad` but for rounding.
    """
    _require(initial >= 0 and eps > 0, "initial must be >= 0 and eps > 0", initial, eps)
    rate = _schedule(learning_rate)

    def init(params: Any) -> AdagradState:
        return AdagradState(_no_steps(), jax.tree.map(lambda p: jnp.full_like(p, initial), params))

    def update(gradient: Any, state: AdagradState, params: Any = None) -> tuple[Any, AdagradState]:
        del params
        squares = jax.tree.map(lambda s, g: s + g * g, state.squares, gradient)
        step_size = -rate(state.num_steps)
        steps = jax.tree.map(lambda s, g: step_size * g * jax.lax.rsqrt(s + eps), squares, gradient)
        return steps, AdagradState(state.num_steps + 1, squares)

    return optax.GradientTransformation(init, update)


def sgd(learning_rate: LearningRate, *, momentum: float = 0.0) -> optax.GradientTransformation:
    """Gradient descent, with a velocity v <- momentum v + g where momentum is given.

    Guarantees:
      - Steps are those of `optax.sgd` but for rounding.
    """
    _require(0 <= momentum < 1, "momentum must be in [0, 1)", momentum)
    rate = _schedule(learning_rate)

    def init(params: Any) -> SGDState:
        return SGDState(_no_steps(), _zeros_like(params) if momentum else ())

    def update(gradient: Any, state: SGDState, params: Any = None) -> tuple[Any, SGDState]:
        del params
        velocity: Any = ()
        if momentum:
            gradient = velocity = jax.tree.map(lambda v, g: momentum * v + g, state.velocity, gradient)
        step_size = -rate(state.num_steps)
        return jax.tree.map(lambda g: step_size * g, gradient), SGDState(state.num_steps + 1, velocity)

    return optax.GradientTransformation(init, update)


def cosine_decay(
    peak: float, *, num_steps: int, num_warmup_steps: int = 0, final: float = 0.0
) -> Callable[[Array], Array]:
    """A learning rate that rises to `peak` in a straight line and falls to `final` along half a cosine.

    At step t of W warmup steps it is peak (t + 1) / W, so that no step is lost to a rate of zero; from W on,
    final + (peak - final) (1 + cos(pi (t - W) / (T - W))) / 2; from T on, final.

    >>> rate = cosine_decay(0.1, num_steps=100)
    >>> [round(float(rate(t)), 3) for t in (0, 50, 100)]
    [0.1, 0.05, 0.0]
    """
    _require(0 < peak < math.inf and 0 <= final <= peak, "rates must satisfy 0 <= final <= peak", peak, final)
    if not 0 <= num_warmup_steps < num_steps:
        raise InvalidArgument(
            "steps must satisfy 0 <= num_warmup_steps < num_steps; "
            f"got num_warmup_steps={num_warmup_steps}, num_steps={num_steps}."
        )

    def rate(count: Array) -> Array:
        warmth = jnp.minimum(1.0, (count + 1) / max(num_warmup_steps, 1))
        done = jnp.clip((count - num_warmup_steps) / (num_steps - num_warmup_steps), 0.0, 1.0)
        fallen = final + (peak - final) * 0.5 * (1 + jnp.cos(jnp.pi * done))
        return jnp.where(count < num_warmup_steps, peak * warmth, fallen)

    return rate


def _schedule(learning_rate: LearningRate) -> Callable[[Array], Any]:
    if callable(learning_rate):
        return learning_rate
    _require(0 < learning_rate < math.inf, "learning_rate must be a positive number", learning_rate)
    return lambda _: learning_rate


def _require(holds: bool, rule: str, *values: float) -> None:
    if not holds:
        raise InvalidArgument(f"{rule}; got {', '.join(map(repr, values))}.")


def _no_steps() -> Array:
    return jnp.zeros((), jnp.int32)


def _zeros_like(params: Any) -> Any:
    return jax.tree.map(jnp.zeros_like, params)
