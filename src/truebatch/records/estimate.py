"""How long a run will step, from a few steps taken now: on this machine, with this model, on rows made up."""

import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from truebatch.batching import batch_rows
from truebatch.data import Features
from truebatch.keys import Key
from truebatch.records.plan import RunPlan
from truebatch.records.run import optimizer_of
from truebatch.training.feed import Arrays
from truebatch.training.microbatches import micro_batch_rows
from truebatch.training.noise import Noise
from truebatch.training.prepare import sum_program
from truebatch.training.privacy import Privacy
from truebatch.training.update import compiled_update

# Seconds to spend on steps of one kind, and how many of them at most.
_BUDGET_S, _MOST_STEPS = 0.3, 20


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step took, and what all of them will: without reading, preparing, evaluating and compiling."""

    step_s: float
    num_steps: int

    @property
    def stepping_s(self) -> float:
        """All steps."""
        return self.step_s * self.num_steps

    def __str__(self) -> str:
        return (
            f"about {_in_words(self.stepping_s)} of stepping, from steps of {self.step_s:.3g} s taken just "
            "now on made-up rows; preparing, compiling, evaluating and checkpoints come on top"
        )


def estimate(plan: RunPlan, *, constant_time: bool = False) -> Estimate:
    """Take a few of the run's steps on made-up rows: nothing is read, and nothing is written.

    A step costs so much whatever its batch holds (noise, update), and so much for each micro-batch. Where a
    whole batch takes long, one micro-batch stands for all.
    """
    step = _Step(plan, constant_time=constant_time)
    size = micro_batch_rows(batch_rows(plan.spec))
    rows = batch_rows(plan.spec) if constant_time else plan.spec.batch_size
    step.seconds(1)  # compiles, once for batches of every size
    if constant_time:
        return Estimate(step_s=step.seconds(rows), num_steps=plan.spec.num_steps)
    nothing, one = step.seconds(0), step.seconds(min(size, rows))
    step_s = nothing + max(one - nothing, 0.0) * -(-rows // size)
    if step_s < _BUDGET_S:
        step_s = step.seconds(rows)
    return Estimate(step_s=step_s, num_steps=plan.spec.num_steps)


class _Step:
    """The programs of a run's step and what they work on."""

    def __init__(self, plan: RunPlan, *, constant_time: bool) -> None:
        privacy = plan.claim.privacy
        home = jax.devices()[0]
        self._params = jax.device_put(plan.model.init(plan.config.seed), home)
        self._scratch = jax.device_put(jax.tree.map(jnp.zeros_like, self._params), home)
        optimizer = optimizer_of(plan)
        self._state = jax.device_put(optimizer.init(self._params), home)
        self._rows = batch_rows(plan.spec)
        self._examples = _made_up(plan.features, self._rows)
        self._sum = sum_program(
            plan.model.loss,
            self._params,
            Arrays(self._examples, self._weights(1)),
            clip_norm=privacy.clip_norm,
            road="layers",
            micro_batch=None,
            devices=None,
            constant_time=constant_time,
        )
        self._noise: Noise | None = None
        if isinstance(privacy, Privacy):
            self._noise = Noise(Key.for_tests(0), plan.claim.sigma, privacy.clip_norm)
        self._update = compiled_update(optimizer, batch_size=plan.spec.batch_size)

    def seconds(self, rows: int) -> float:
        """The median of a few steps on batches of so many rows."""
        found = [self._take(rows)]
        while sum(found) < _BUDGET_S and len(found) < _MOST_STEPS:
            found.append(self._take(rows))
        return float(np.median(found))

    def _take(self, rows: int) -> float:
        began = time.monotonic()
        sums = self._sum(self._params, self._scratch, self._examples, self._weights(rows))
        total = sums.gradient if self._noise is None else self._noise.add(0, sums.gradient)
        self._params, self._state = self._update(self._params, self._state, total)
        self._scratch = sums.gradient
        for leaf in jax.tree.leaves(self._params):
            leaf.block_until_ready()
        return time.monotonic() - began

    def _weights(self, rows: int) -> Array:
        return jnp.asarray((np.arange(self._rows) < rows).astype(np.float32))


def _made_up(features: Features, rows: int) -> dict[str, Array]:
    """Rows of the columns that a model takes: labels, numbers and buckets by chance."""
    rng = np.random.default_rng(0)
    columns: dict[str, Any] = {"label": rng.integers(0, 2, rows).astype(np.int8)}
    if features.numeric:
        columns["i"] = rng.normal(size=(rows, len(features.numeric))).astype(np.float32)
    if features.categorical:
        columns["c"] = rng.integers(0, np.asarray(features.num_buckets), (rows, len(features.categorical)))
        columns["c"] = columns["c"].astype(np.int32)
    return {name: jnp.asarray(column) for name, column in columns.items()}


def _in_words(seconds: float) -> str:
    """Two digits are more than the estimate is worth.

    >>> _in_words(0.4), _in_words(100.0), _in_words(1500.0), _in_words(200_000.0)
    ('a second', '100 seconds', '25 minutes', '56 hours')
    """
    if seconds < 1.5:
        return "a second"
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{float(f'{seconds:.2g}'):g} seconds"
