"""The loop: batches to a model, with a claim that says what ran."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from jax import Array, Device

from truebatch.errors import InvalidArgument, NotFinite
from truebatch.keys import Key
from truebatch.specs import Sampler
from truebatch.training import checkpoint
from truebatch.training.claim import Claim, run_meta
from truebatch.training.curves import PRIVATE_LOSS, Curves
from truebatch.training.evaluate import Rows, evaluation
from truebatch.training.feed import Feed, batches_from, first_batch, spec_of
from truebatch.training.models import Model
from truebatch.training.noise import Noise
from truebatch.training.prepare import Road, model_and_params, require_columns, road_of, sum_program
from truebatch.training.privacy import NoPrivacy, Privacy, require_match
from truebatch.training.tape import Loss, Params
from truebatch.training.update import compiled_update, require_optimizer

# A clock may stand still for a step.
_TICK_S = 1e-9


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run is. Free of what depends on private rows: speed counts the target b for every step."""

    step: int
    num_steps: int
    examples_per_s: float
    metrics: dict[str, float]
    claim: Claim

    def epsilon(self) -> float | None:
        """What may be claimed so far; takes up to about a second, and is None without noise."""
        return self.claim.epsilon_after(self.step)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The model after the last step, and what may be claimed for it."""

    params: Params = field(repr=False)
    claim: Claim
    metrics: dict[str, float]
    road: Road
    why_by_examples: str | None
    seconds: float

    def __str__(self) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics.items())
        return f"{self.claim.drawn_by.num_steps} steps; {self.claim}" + (f"; {metrics}" if metrics else "")


def train(
    model: Model | Loss,
    batches: Feed,
    *,
    key: Key,
    privacy: Privacy | NoPrivacy,
    optimizer: optax.GradientTransformation,
    accounted_as: str | None = None,
    spec: Sampler | None = None,
    params: Params | None = None,
    seed: int = 0,
    road: Road = "auto",
    micro_batch: int | None = None,
    devices: Sequence[Device] | None = None,
    constant_time: bool = False,
    validation: Rows | None = None,
    evaluate_every: int | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    curves: str | Path | None = None,
    with_private_loss: bool = False,
    watch: Callable[[Progress], None] = lambda _: None,
) -> Trained:
    """Clip, sum, add noise, divide by b, optimize, for every batch: Algorithm 1.

    `model` is a Model, or the loss of one example with its `params`. The noise of `privacy` must have been
    calibrated for the sampler that drew the batches, unless `accounted_as` names another on purpose.
    `checkpoints` is a directory: a run that finds its own there goes on from it. `validation` rows are not
    protected; metrics on them are taken every `evaluate_every` steps (a tenth of the run) and at the end.
    With `constant_time` a step works through all B rows of its batch, padding included, so that how long it
    takes does not tell how many were drawn; SECURITY.md says what it costs and what remains.

    Guarantees:
      - All T steps are taken, empty batches included, and sums are divided by batch_size: never by the rows
        that were drawn.
      - The same key, batches and number of devices give the same bits, whether or not the run was stopped,
        with `constant_time` or without.
      - What is returned, watched or written depends on private rows through the noise alone; the loss that
        `with_private_loss` adds to the curves is the exception, and named so.
    """
    # Set up: what is wrong is found here, before a step is taken.
    drawn_by = spec_of(batches, spec)
    require_match(drawn_by, privacy, accounted_as=accounted_as)
    model, params = model_and_params(model, params, seed=seed)
    like = first_batch(batches, drawn_by)
    require_columns(model, like, validation)
    road, why = road_of(model, params, like, wanted=road)
    claim = Claim.of(privacy, drawn_by, num_parameters=sum(x.size for x in jax.tree.leaves(params)))
    T, b = drawn_by.num_steps, drawn_by.batch_size
    evaluate_every = _cadence("evaluate_every", evaluate_every, T)
    checkpoint_every = _cadence("checkpoint_every", checkpoint_every, T)

    # Gradient, noise and update are three compiled programs; all state is on one device from the start, and
    # goes round through them in place: a program is compiled anew for arrays that have no device yet.
    home = devices[0] if devices else jax.devices()[0]
    clipped_sum = sum_program(
        model.loss,
        params,
        like,
        clip_norm=privacy.clip_norm,
        road=road,
        micro_batch=micro_batch,
        devices=devices,
        constant_time=constant_time,
    )
    noise = Noise(key, claim.sigma, privacy.clip_norm) if isinstance(privacy, Privacy) else None
    params = jax.device_put(params, home)
    state = jax.device_put(require_optimizer(optimizer, params), home)
    update = compiled_update(optimizer, batch_size=b)
    evaluate = None if validation is None else evaluation(model, validation)
    scratch = jax.device_put(jax.tree.map(jnp.zeros_like, params), home)

    # Go on where an earlier run of the same claim and key stopped.
    start, meta = 0, run_meta(claim, key)
    if checkpoints is not None:
        found = checkpoint.latest(checkpoints, like=(params, state), expect=meta)
        if found is not None:
            start, (params, state) = found.step, found.state
    recorder = None if curves is None else Curves(curves, claim, start=start)

    metrics: dict[str, float] = {}
    began = time.monotonic()
    for step, batch in enumerate(batches_from(batches, start, drawn_by, like=like), start):
        sums = clipped_sum(params, scratch, batch.examples, batch.weights)
        # Nobody keeps the noised sum, so that its memory, like the clipped sum's, is used again.
        params, state = update(
            params, state, sums.gradient if noise is None else noise.add(step, sums.gradient)
        )
        scratch = sums.gradient
        sums.loss.block_until_ready()  # So that batches do not pile up in front of a slow device.

        done = step + 1
        if checkpoints is not None and (done % checkpoint_every == 0 or done == T):
            _require_finite(params, {}, done)
            checkpoint.save(checkpoints, done, (params, state), meta)
        if done % evaluate_every == 0 or done == T:
            metrics = {} if evaluate is None else evaluate(params)
            _require_finite(params, metrics, done)
            if recorder is not None:
                private = {PRIVATE_LOSS: float(sums.loss) / b} if with_private_loss else {}
                recorder.add(
                    step=done,
                    seconds=time.monotonic() - began,
                    epsilon=claim.epsilon_after(done),
                    metrics=metrics | private,
                )
        speed = (done - start) * b / max(time.monotonic() - began, _TICK_S)
        watch(Progress(step=done, num_steps=T, examples_per_s=speed, metrics=metrics, claim=claim))

    if start == T and evaluate is not None:
        metrics = evaluate(params)
    seconds = time.monotonic() - began
    return Trained(
        params=params, claim=claim, metrics=metrics, road=road, why_by_examples=why, seconds=seconds
    )


def _cadence(name: str, every: int | None, num_steps: int) -> int:
    if every is None:
        return max(1, num_steps // 10)
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise InvalidArgument(f"{name} must be a positive whole number of steps; got {name}={every!r}.")
    return every


def _require_finite(params: Params, metrics: dict[str, float], step: int) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NotFinite(
                f"metrics must stay finite; got {name}={value} after step {step}.",
                hint="a smaller learning rate, or validation rows that the model is made for.",
            )
    if not _all_finite(params):
        raise NotFinite(
            f"parameters must stay finite; some are not after step {step}.",
            hint="use a smaller learning rate.",
        )


@jax.jit
def _all_finite(params: Params) -> Array:
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(params)]).all()
