"""Faults of the loop where a batch, or a device's share of it, is empty."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import scipy.stats

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.training import Privacy, train
from truebatch.training.feed import Arrays, batches_from
from truebatch.training.models import linear_model
from truebatch.training.noise import Noise
from truebatch.training.prepare import sum_program
from trust.chances import REJECT
from trust.fault import Check, Fault, replaced

MODEL = linear_model(buckets=(3,), num_numeric=2)
# A third of the batches is empty.
SPARSE = TruncatedPoisson(num_examples=400, batch_size=1, num_steps=40, max_batch_size=8)
KEY = Key.for_tests(7003)
SIGMA, CLIP_NORM, DEVICES = 2.0, 1.0, 2


class Drawn(list[dict[str, Any]]):
    """The batches of SPARSE under KEY, of some steps, as columns."""

    def __init__(self, steps: list[int]) -> None:
        rng, B = np.random.default_rng(3), SPARSE.max_batch_size
        for step in steps:
            size = len(schedule(SPARSE, KEY).members(step))
            i, c = rng.normal(size=(B, 2)).astype(np.float32), rng.integers(0, 3, (B, 1)).astype(np.int32)
            weight = (np.arange(B) < size).astype(np.float32)
            self.append({"i": i, "c": c, "label": (i[:, 0] > 0).astype(np.int8), "weight": weight})


def trained(steps: list[int], **more: Any) -> Any:
    spec = TruncatedPoisson(num_examples=400, batch_size=1, num_steps=len(steps), max_batch_size=8)
    privacy = Privacy(spec=spec, clip_norm=CLIP_NORM, delta=1e-5, sigma=SIGMA)
    done = train(MODEL, Drawn(steps), key=KEY, privacy=privacy, optimizer=optax.sgd(1.0), spec=spec, **more)
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(done.params)]


def every_step_is_taken() -> None:
    seen: list[int] = []
    trained(list(range(SPARSE.num_steps)), watch=lambda now: seen.append(now.step))
    assert seen == list(range(1, SPARSE.num_steps + 1)), f"{len(seen)} steps of {SPARSE.num_steps} are taken"


def steps_on_nothing_are_noise() -> None:
    """Null: k steps on empty batches move d parameters by N(0, k (sigma C / b)^2) each. Chi-square."""
    empty = np.flatnonzero(schedule(SPARSE, KEY).sizes() == 0)[:8].tolist()
    before = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(MODEL.init(0))]
    moved = np.concatenate([(a - b).ravel() for a, b in zip(trained(empty), before, strict=True)])
    statistic = float(np.square(moved).sum() / (len(empty) * (SIGMA * CLIP_NORM) ** 2))
    p = 2 * min(scipy.stats.chi2.sf(statistic, moved.size), scipy.stats.chi2.cdf(statistic, moved.size))
    assert p > REJECT, f"steps on empty batches move {moved.size} parameters by {statistic:.3g} of the noise"


def devices_do_not_show() -> None:
    """Two simulated devices, of which one often has padding only, and one device that has all."""
    devices, steps = _devices(DEVICES), list(range(SPARSE.num_steps))
    one, two = trained(steps), trained(steps, devices=devices, micro_batch=8)
    for a, b in zip(one, two, strict=True):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-4), f"devices show, by {np.abs(a - b).max():.3g}"


def _devices(count: int) -> list[jax.Device]:
    """Simulated devices; JAX makes them if it has not begun."""
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", count)
    if len(jax.devices()) < count:
        raise RuntimeError(f"this process has {len(jax.devices())} devices, and {count} are needed")
    return jax.devices()[:count]


def skips_empty_batches(*values: Any, **more: Any) -> Iterator[Arrays]:
    return (arrays for arrays in batches_from(*values, **more) if float(arrays.weights.sum()))


_ADD = Noise.add


def no_noise_on_nothing(self: Noise, step: int, gradient: Any) -> Any:
    empty = not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(gradient))
    return gradient if empty else _ADD(self, step, gradient)


def needs_rows_on_every_device(*values: Any, devices: Any, **more: Any) -> Any:
    program = sum_program(*values, devices=devices, **more)

    def sums(params: Any, scratch: Any, examples: Any, weights: Any) -> Any:
        found = program(params, scratch, examples, weights)
        shares = np.asarray(weights).reshape(len(devices or [0]), -1)
        if devices and not shares.any(axis=1).all():
            return found._replace(gradient=jax.tree.map(lambda x: 0 * x, found.gradient))
        return found

    return sums


FAULTS: tuple[Fault, ...] = (
    Fault(
        number=3,
        name="the loop skips empty batches",
        how="a batch without a real row is passed over by the loop, with its noise and its update",
        inject=partial(replaced, {"truebatch.training.train:batches_from": skips_empty_batches}),
        check=Check(name="every step is taken", run=every_step_is_taken),
    ),
    Fault(
        number=3,
        name="an empty batch gets no noise",
        how="a step whose sum is zero is taken without noise, which tells that nobody was in it",
        inject=partial(replaced, {"truebatch.training.noise:Noise.add": no_noise_on_nothing}),
        check=Check(
            name="steps on empty batches move the parameters by the noise, in law",
            run=steps_on_nothing_are_noise,
            false_alarm=REJECT,
        ),
    ),
    Fault(
        number=3,
        name="a device without rows ends the step",
        how="a batch is dropped when one device's share of it is padding only",
        inject=partial(replaced, {"truebatch.training.train:sum_program": needs_rows_on_every_device}),
        check=Check(name="one device and two train the same model", run=devices_do_not_show),
    ),
)
