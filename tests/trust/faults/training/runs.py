"""A run of `train` as a user starts it, with an optimizer that writes down what it is handed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import optax

from truebatch import Key, TruncatedPoisson
from truebatch.training import Privacy, Trained, train

Leaves = list[npt.NDArray[np.float32]]
LEARNING_RATE, DELTA = 0.125, 1e-5


@dataclass(frozen=True)
class Seen:
    """One call of the optimizer: how many there were before, the gradient, the parameters as they stood."""

    count: int
    gradient: Leaves
    params: Leaves


def recording(into: list[Seen]) -> optax.GradientTransformation:
    """Gradient descent that writes every call down."""

    def init(_: Any) -> jax.Array:
        return jax.numpy.zeros((), jax.numpy.int32)

    def note(count: Any, gradient: Any, params: Any) -> None:
        leaves = ([np.array(x) for x in jax.tree.leaves(tree)] for tree in (gradient, params))
        into.append(Seen(int(count), *leaves))

    def update(gradient: Any, state: jax.Array, params: Any = None) -> tuple[Any, jax.Array]:
        jax.debug.callback(note, state, gradient, params, ordered=True)
        return jax.tree.map(lambda g: -LEARNING_RATE * g, gradient), state + 1

    return optax.GradientTransformation(init, update)


@dataclass(frozen=True)
class Run:
    """What a run was, seen from outside."""

    seen: list[Seen]
    trained: Trained


def run(
    loss: Callable[..., Any],
    params: Any,
    batches: Iterable[Any],
    *,
    spec: TruncatedPoisson,
    sigma: float,
    clip_norm: float,
    key: Key | None = None,
    seen: list[Seen] | None = None,
    **more: Any,
) -> Run:
    """`train`, recorded. `seen` may be given to keep what a run that is stopped has seen."""
    seen = [] if seen is None else seen
    privacy = Privacy(spec=spec, clip_norm=clip_norm, delta=DELTA, sigma=sigma)
    trained = train(
        loss,
        batches,
        key=key or Key.for_tests(5),
        privacy=privacy,
        optimizer=recording(seen),
        spec=spec,
        params=params,
        **more,
    )
    jax.effects_barrier()
    return Run(seen, trained)


def padded(columns: dict[str, Any], members: Sequence[int], rows: int, *, fill: float = 0) -> dict[str, Any]:
    """One batch of `rows`: those members, then padding that holds `fill` wherever it can."""
    batch = {}
    for name, column in columns.items():
        filler = np.full((rows - len(members), *column.shape[1:]), fill if column.dtype.kind == "f" else 0)
        batch[name] = np.concatenate([column[list(members)], filler.astype(column.dtype)])
    return batch | {"weight": (np.arange(rows) < len(members)).astype(np.float32)}
