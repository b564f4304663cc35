"""Families 10 and 16, and three of family 1: how much noise is added, and of what law."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch.training.noise import Noise
from trust.faults.training import check_noise as noise_checks
from trust.faults.training.injecting import (
    Batch,
    fault,
    noise_by,
    plus,
    pure_noise,
    scaled,
)


def _generated(make: Callable[[Any, int, tuple[int, ...]], Any]) -> AbstractContextManager[None]:
    """sigma C times `make(key, shape)` for each leaf, added as floats."""

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        leaves, structure = jax.tree.flatten(total)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(1), step), len(leaves))
        deviation = np.float32(noise.sigma * noise.clip_norm)
        drawn = [make(key, leaf.shape) for key, leaf in zip(keys, leaves, strict=True)]
        return plus(total, jax.tree.unflatten(structure, drawn), deviation)

    return noise_by(add)


# Family 16


def _tails(cut: Callable[[Any], Any]) -> AbstractContextManager[None]:
    """The true noise with `cut` done to it, in deviations."""

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        deviation = np.float32(noise.sigma * noise.clip_norm)
        drawn = jax.tree.map(lambda z: cut(z / deviation) * deviation, pure_noise(noise, step, total))
        return plus(total, drawn)

    return noise_by(add)


def _twelve_uniforms(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
    rng = np.random.default_rng(step)

    def drawn(leaf: Any) -> Any:
        found = np.full(leaf.shape, -6, np.float32)
        for _ in range(12):
            found += rng.random(leaf.shape, np.float32)
        return found

    return plus(total, jax.tree.map(drawn, total), noise.sigma * noise.clip_norm)


def _on_a_grid_of_the_data() -> AbstractContextManager[None]:
    """Noised sums are rounded to a grid that follows the largest entry of the sum."""

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(total))
        grid = np.float32(2.0 ** (np.ceil(np.log2(max(largest, 1e-9))) - 16))
        return jax.tree.map(lambda x: jnp.round(x / grid) * grid, plus(total, pure_noise(noise, step, total)))

    return noise_by(add)


# Family 1


def _leaves_alike() -> AbstractContextManager[None]:
    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        return jax.tree.map(lambda leaf: leaf + pure_noise(noise, step, leaf), total)

    return noise_by(add)


def _pairs_alike() -> AbstractContextManager[None]:
    """Coordinates of an array come in pairs, and the second has the magnitude of the first."""

    def paired(z: Any) -> Any:
        flat = z.reshape(-1)
        even = flat.size // 2 * 2
        magnitude = jnp.abs(flat[0:even:2])
        return flat.at[1:even:2].set(jnp.copysign(magnitude, flat[1:even:2])).reshape(z.shape)

    def add(noise: Noise, step: int, total: Any, batch: Batch) -> Any:
        return plus(total, jax.tree.map(paired, pure_noise(noise, step, total)))

    return noise_by(add)


FAULTS = (
    fault(
        1,
        "every array of a sum draws the same noise",
        "The stream of a step begins anew for each array, as one generator key does that is used for all.",
        _leaves_alike,
        noise_checks.MEASURED,
    ),
    fault(
        1,
        "every step draws the same noise",
        "The step is left out of what noise is keyed by: two steps subtracted are the gradients.",
        lambda: noise_by(lambda noise, step, total, batch: plus(total, pure_noise(noise, 0, total))),
        noise_checks.MEASURED,
    ),
    fault(
        1,
        "two coordinates share one magnitude",
        "Numbers that are made in pairs share more than they may: only their signs differ.",
        _pairs_alike,
        noise_checks.MEASURED,
    ),
    fault(
        10,
        "noise for the mean is added to the sum",
        "The deviation is sigma C / b: too little by b.",
        lambda: scaled(lambda noise, batch: 1 / noise_checks.b),
        noise_checks.MEASURED,
    ),
    fault(
        10,
        "noise for the sum is added to the mean",
        "The deviation is sigma C where the sum has been divided already: too much by b.",
        lambda: scaled(lambda noise, batch: noise_checks.b),
        noise_checks.MEASURED,
    ),
    fault(
        10,
        "noise does not know the clip norm",
        "The deviation is sigma.",
        lambda: scaled(lambda noise, batch: 1 / noise.clip_norm),
        noise_checks.MEASURED,
    ),
    fault(
        10,
        "the variance is taken for the deviation",
        "The deviation is (sigma C)^2.",
        lambda: scaled(lambda noise, batch: noise.sigma * noise.clip_norm),
        noise_checks.MEASURED,
    ),
    fault(
        16,
        "tails are cut at five deviations",
        "What lies beyond is put onto the edge.",
        lambda: _tails(lambda z: jnp.clip(z, -5, 5)),
        noise_checks.LAW,
    ),
    fault(
        16,
        "noise is of a float32 generator",
        "A uniform float32 through the inverse of the error function: 2^23 values, none beyond 5.42.",
        lambda: _generated(jax.random.normal),
        noise_checks.LAW,
    ),
    fault(
        16,
        "noise is of a 16-bit generator",
        "A uniform bfloat16 through the inverse of the error function.",
        lambda: _generated(
            lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16).astype(jnp.float32)
        ),
        noise_checks.LAW,
    ),
    fault(
        16,
        "noise is the sum of twelve uniform numbers",
        "Near a normal law in the middle, with none beyond six.",
        lambda: noise_by(_twelve_uniforms),
        noise_checks.LAW,
    ),
    fault(
        16,
        "noise is added as floats",
        "Sum and noise are rounded when they have been added, so what can come out depends on the sum.",
        lambda: noise_by(lambda noise, step, total, batch: plus(total, pure_noise(noise, step, total))),
        noise_checks.SUPPORT,
    ),
    fault(
        16,
        "the grid follows the data",
        "Noised sums are rounded to a grid that is chosen by the largest entry of the sum.",
        _on_a_grid_of_the_data,
        noise_checks.SUPPORT,
    ),
)
