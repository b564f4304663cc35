"""An empirical lower bound on epsilon: run the step on neighbouring data sets, and tell them apart."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from truebatch.audit.attacks import AttackName, attack, attacks_of
from truebatch.audit.events import epsilon_lower
from truebatch.audit.result import Audit, Finding, proven
from truebatch.audit.steps import OurStep, TrainStep
from truebatch.audit.trials import MANY_TRIALS, TRIALS, Progress, canaries_in_a_run, dependence, scores_of
from truebatch.errors import InvalidArgument
from truebatch.specs import Sampler
from truebatch.training.prepare import Road


def audit(
    train_step: TrainStep | None,
    spec: Sampler,
    *,
    sigma: float,
    delta: float,
    clip_norm: float = 1.0,
    claimed_epsilon: float | None = None,
    trials: int | None = None,
    confidence: float = 0.95,
    attacks: Sequence[AttackName] | None = None,
    canary_norm: float = 10.0,
    canaries_per_run: int | None = None,
    road: Road = "layers",
    seed: int = 0,
    seconds: float | None = None,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Audit:
    """A lower bound on the epsilon of a training step, from running it on neighbouring data sets.

    `train_step` is any `TrainStep`; None is ours, `OurStep(spec, ...)`, by `road`. `spec`, `sigma`
    and `clip_norm` say what the step is meant to be: they choose the data sets and the score. Neighbours
    differ in one example that is zeroed out. Rows are `canary_norm` clip norms long, and count for one if
    the step clips them. `trials` are runs of each data set for each attack, unless a run holds several.
    Every run has a key of its own, derived from `Key.for_tests(seed)`. After `seconds`, or once `stop` says
    so (it is asked between runs and must not look at what they gave), the audit ends with what there is.

    Guarantees:
      - Whatever the step does, the bound is above its epsilon with probability 1 - confidence at most, if
        trials with different keys are independent, and several canaries in a run are as independent as the
        spec says. `canaries_per_run=1`, the default for a step of yours, leaves out the second condition.
      - Events are chosen on one half of the trials and judged on the other; attacks share the failure
        probability.
    """
    _require(spec, confidence, trials, canaries_per_run)
    _require_positive(sigma=sigma, clip_norm=clip_norm, canary_norm=canary_norm, delta=delta)
    names = tuple(dict.fromkeys(attacks_of(spec) if attacks is None else attacks))
    if not names or set(names) - {"alone", "crowd"}:
        raise InvalidArgument(f'attacks must be some of "alone" and "crowd"; got attacks={attacks!r}.')
    failure_prob = (1 - confidence) / len(names)
    step = OurStep(spec, sigma=sigma, clip_norm=clip_norm, road=road) if train_step is None else train_step
    findings, end = [], math.inf if seconds is None else time.monotonic() + seconds
    for position, name in enumerate(names):
        found = canaries_in_a_run(name, spec, failure_prob) if train_step is None else 1
        m = (canaries_per_run or found) if name == "alone" else 1
        now = time.monotonic()
        deadline = now + (end - now) / (len(names) - position)
        scores, runs = scores_of(
            step,
            attack(name, spec, sigma=sigma, clip_norm=clip_norm, canary_norm=canary_norm, num_canaries=m),
            trials=trials or (TRIALS if m == 1 else MANY_TRIALS),
            seed=seed,
            watch=watch,
            stop=lambda: stop() or time.monotonic() > deadline,  # noqa: B023 - asked in this turn alone
        )
        allowed = _allowed(failure_prob, spec, runs=runs, canaries=m)
        judgement = epsilon_lower(*scores, delta=delta, failure_prob=allowed)
        findings.append(
            Finding(
                attack=name, judgement=judgement, failure_prob=failure_prob, runs=runs, canaries_per_run=m
            )
        )
    return Audit(
        spec=spec,
        sigma=sigma,
        clip_norm=clip_norm,
        delta=delta,
        confidence=confidence,
        seed=seed,
        findings=tuple(findings),
        proven=proven(spec, sigma=sigma, clip_norm=clip_norm, delta=delta),
        claimed_epsilon=claimed_epsilon,
    )


def _allowed(failure_prob: float, spec: Sampler, *, runs: int, canaries: int) -> float:
    """The failure probability without what canaries in one run may take of it by not being independent."""
    allowed = failure_prob - runs * dependence(spec, canaries)
    if allowed <= 0:
        raise InvalidArgument(
            "several canaries in a run need batches that are almost never cut; "
            f"got canaries_per_run={canaries} for {spec}.",
            hint="use canaries_per_run=1.",
        )
    return allowed


def _require(spec: Any, confidence: float, trials: int | None, canaries_per_run: int | None) -> None:
    if not isinstance(spec, Sampler):
        raise InvalidArgument(f"spec must be a sampler; got an object of type {type(spec).__name__}.")
    if not 0 < confidence < 1:
        raise InvalidArgument(f"confidence must be above 0 and below 1; got confidence={confidence!r}.")
    for name, number in (("trials", trials), ("canaries_per_run", canaries_per_run)):
        if number is not None and number < 1:
            raise InvalidArgument(f"{name} must be at least 1; got {name}={number}.")
    if canaries_per_run is not None and canaries_per_run > spec.num_examples:
        raise InvalidArgument(
            f"canaries_per_run must be at most num_examples; got canaries_per_run={canaries_per_run}, "
            f"num_examples={spec.num_examples}."
        )


def _require_positive(*, delta: float, **numbers: float) -> None:
    for name, value in numbers.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidArgument(f"{name} must be a positive number; got {name}={value!r}.")
    if not 0 < delta < 1:
        raise InvalidArgument(f"delta must be above 0 and below 1; got delta={delta!r}.")
