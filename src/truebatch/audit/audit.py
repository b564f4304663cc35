"""An empirical lower bound on epsilon: run the step on neighbouring data sets, and tell them apart."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from truebatch import accounting
from truebatch.accounting import Adjacency, Interval, UnknownAnalysis
from truebatch.accounting.rounding import effective_sigma
from truebatch.accounting.truncation import log_overflow_prob
from truebatch.audit.attacks import Attack, AttackName, attack, attacks_of
from truebatch.audit.buffer_shuffle import BufferShuffle
from truebatch.audit.events import Judgement, epsilon_lower
from truebatch.audit.rows import Floats
from truebatch.audit.steps import OurStep, TrainStep
from truebatch.batching.shape import batch_rows
from truebatch.errors import InvalidArgument, InvalidData
from truebatch.keys import Key
from truebatch.specs import BallsAndBins, Deterministic, Poisson, Sampler, TruncatedPoisson, as_dict

REFUTED, NOT_REFUTED = "refuted", "not refuted"

# Trials on each of two neighbours: where a run is one trial, and where it is thousands.
_TRIALS, _MANY_TRIALS = 1000, 20_000
_MOST_CANARIES = 4096
# Numbers in the rows of one batch.
_BATCH_NUMBERS = 2**21
# The share of the failure probability that may go to batches that were cut.
_CUT_SHARE = 0.01


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far an audit has come: runs of one attack."""

    attack: str
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack showed, with its share of the failure probability."""

    attack: AttackName
    judgement: Judgement
    failure_prob: float
    runs: int
    canaries_per_run: int

    @property
    def epsilon(self) -> float:
        """The lower bound that this attack proves."""
        return self.judgement.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Plain values."""
        j = self.judgement
        return {
            "attack": self.attack,
            "epsilon_lower": j.epsilon,
            "estimate": _finite(j.estimate),
            "event_upper": _finite(j.epsilon_of_event_upper),
            "likelier": "with the canary" if j.event.with_canary else "with the canary zeroed out",
            "threshold": _finite(j.event.threshold),
            "likely": [j.likely, j.likely_trials],
            "rare": [j.rare, j.rare_trials],
            "runs": self.runs,
            "canaries_per_run": self.canaries_per_run,
            "failure_prob": self.failure_prob,
        }


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit proved: epsilon at `delta` is at least `epsilon`, with this confidence.

    `proven` is what theorems say of a step that does what `spec` says, and None where nothing is known.
    """

    spec: Sampler
    sigma: float
    clip_norm: float
    delta: float
    confidence: float
    seed: int
    findings: tuple[Finding, ...]
    proven: Interval | None
    claimed_epsilon: float | None = None

    @property
    def epsilon(self) -> float:
        """The largest of what the attacks prove."""
        return max(finding.epsilon for finding in self.findings)

    @property
    def best(self) -> Finding:
        """The attack that proves most."""
        return max(self.findings, key=lambda finding: finding.epsilon)

    @property
    def verdict(self) -> str | None:
        """Whether the claim is refuted; None without one."""
        if self.claimed_epsilon is None:
            return None
        return REFUTED if self.epsilon > self.claimed_epsilon else NOT_REFUTED

    def as_dict(self) -> dict[str, Any]:
        """Plain values for scripts."""
        ends = {} if self.proven is None else {"lower": self.proven.lower, "upper": self.proven.upper}
        return {
            "spec": as_dict(self.spec),
            "sigma": self.sigma,
            "clip_norm": self.clip_norm,
            "delta": self.delta,
            "adjacency": str(Adjacency.ZERO_OUT),
            "confidence": self.confidence,
            "seed": self.seed,
            "epsilon_lower": self.epsilon,
            "proven": {side: _finite(bound.value) for side, bound in ends.items()} or None,
            "claimed_epsilon": self.claimed_epsilon,
            "verdict": self.verdict,
            "findings": [finding.as_dict() for finding in self.findings],
        }

    def __str__(self) -> str:
        said = (
            f"epsilon >= {self.epsilon:.4g} at delta = {self.delta:g}, with {self.confidence:.0%} confidence"
        )
        if self.claimed_epsilon is None:
            return said
        return f"{said}: the claim of epsilon = {self.claimed_epsilon:.4g} is {self.verdict}"


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
    seed: int = 0,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> Audit:
    """A lower bound on the epsilon of a training step, from running it on neighbouring data sets.

    `train_step` is any `TrainStep`; None is ours, `OurStep(spec, sigma=..., clip_norm=...)`. `spec`, `sigma`
    and `clip_norm` say what the step is meant to be: they choose the data sets and the score. Neighbours
    differ in one example that is zeroed out. Rows are `canary_norm` clip norms long, and count for one if
    the step clips them. `trials` are runs of each data set for each attack, unless a run holds several.
    Trial i has the key `Key.for_tests(seed)` derived for it. `stop` is asked between runs: true ends the
    attack with what there is, and must not depend on what the runs gave.

    Guarantees:
      - Whatever the step does, the bound is above its epsilon with probability 1 - confidence at most, if
        trials with different keys are independent, and several canaries in a run are as independent as the
        spec says. `canaries_per_run=1`, the default for a step of yours, leaves out the second condition.
      - Events are chosen on one half of the trials and judged on the other; attacks share the failure
        probability.
    """
    _require(spec, sigma, delta, clip_norm, confidence, canary_norm, trials, canaries_per_run)
    names = tuple(dict.fromkeys(attacks_of(spec) if attacks is None else attacks))
    if not names or set(names) - {"alone", "crowd"}:
        raise InvalidArgument(f'attacks must be some of "alone" and "crowd"; got attacks={attacks!r}.')
    failure_prob = (1 - confidence) / len(names)
    step = OurStep(spec, sigma=sigma, clip_norm=clip_norm) if train_step is None else train_step
    findings = []
    for name in names:
        found = _canaries_per_run(name, spec, failure_prob) if train_step is None else 1
        m = (canaries_per_run or found) if name == "alone" else 1
        attacker = attack(
            name, spec, sigma=sigma, clip_norm=clip_norm, canary_norm=canary_norm, num_canaries=m
        )
        wanted = trials or (_TRIALS if m == 1 else _MANY_TRIALS)
        scores, runs = _scores(step, attacker, trials=wanted, seed=seed, watch=watch, stop=stop)
        allowed = failure_prob - runs * _dependence(spec, m)
        if allowed <= 0:
            raise InvalidArgument(
                "several canaries in a run need batches that are almost never cut; "
                f"got canaries_per_run={m} for {spec}.",
                hint="use canaries_per_run=1.",
            )
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


def proven(spec: Sampler, *, sigma: float, delta: float, clip_norm: float = 1.0) -> Interval | None:
    """What is proven of epsilon when the step is what the spec says; None when nothing is known."""
    if isinstance(spec, BufferShuffle):
        upper = proven(spec.fixed_order, sigma=sigma, delta=delta, clip_norm=clip_norm)
        end = spec.shuffle_of_the_end
        lower = None if end is None else proven(end, sigma=sigma, delta=delta, clip_norm=clip_norm)
        assert upper is not None
        unknown = dataclasses.replace(upper.lower, value=None, source="b does not divide the buffer")
        return Interval(lower=lower.lower if lower else unknown, upper=upper.upper)
    effective = effective_sigma(sigma=sigma, clip_norm=clip_norm, num_coordinates=_MOST_CANARIES)
    try:
        return accounting.epsilon(spec, sigma=effective, delta=delta)
    except UnknownAnalysis:
        return None


def _scores(
    step: TrainStep,
    attacker: Attack,
    *,
    trials: int,
    seed: int,
    watch: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> tuple[tuple[Floats, Floats], int]:
    """Scores with and without the canary, a run or a part of a run each, and how many runs were made."""
    root, m = Key.for_tests(seed), len(attacker.canaries)
    total, runs = math.ceil(2 * trials / m), 0
    total += total % 2
    found: tuple[list[Floats], list[Floats]] = ([], [])
    shape = (attacker.spec.num_steps, m)
    while runs < total and not stop():
        # Present and zeroed in turns, in the next run the other way round.
        present = (np.arange(m) + runs) % 2 == 0
        key = root.derive(f"audit {attacker.name} run {runs}")
        sums = np.asarray(step(attacker.rows(present), key), dtype=float)
        if sums.shape != shape or not np.isfinite(sums).all():
            raise InvalidData(
                f"a step must give finite sums of shape {shape}, steps by dimension; got shape {sums.shape}"
                + ("." if sums.shape != shape else ", not all finite."),
            )
        scores = attacker.scores(sums)
        found[0].append(scores[present])
        found[1].append(scores[~present])
        runs += 1
        watch(Progress(attack=attacker.name, done=runs, total=total))
    with_canary, without = (np.concatenate([*side, np.empty(0)]) for side in found)
    return (with_canary, without), runs


def _canaries_per_run(name: AttackName, spec: Sampler, failure_prob: float) -> int:
    """How many rows of one run are trials of their own: each in its own direction, alone there.

    Exactly equivalent to runs of their own where rows are placed independently of each other, since noise is
    independent between directions. Cut batches are not, but are as good as that while none is cut.
    """
    if name == "crowd" or not isinstance(spec, Poisson | BallsAndBins | Deterministic | TruncatedPoisson):
        return 1
    if _MANY_TRIALS * _dependence(spec, 2) > _CUT_SHARE * failure_prob:
        return 1
    rows = spec.batch_size if isinstance(spec, Poisson | BallsAndBins) else batch_rows(spec)
    most = min(spec.num_examples, _MOST_CANARIES, max(1, _BATCH_NUMBERS // rows))
    return most - most % 2 if most > 1 else 1


def _dependence(spec: Sampler, canaries: int) -> float:
    """Total variation distance of a run's canaries to as many runs of one, a bound.

    Both are those of Poisson unless a batch is cut, in the one run or in any of the others.
    """
    if canaries == 1 or not isinstance(spec, TruncatedPoisson):
        return 0.0
    log_psi = log_overflow_prob(
        num_examples=spec.num_examples, batch_size=spec.batch_size, max_batch_size=spec.max_batch_size
    )
    return (canaries + 1) * spec.num_steps * math.exp(log_psi)


def _require(
    spec: Any,
    sigma: float,
    delta: float,
    clip_norm: float,
    confidence: float,
    canary_norm: float,
    trials: int | None,
    canaries_per_run: int | None,
) -> None:
    if not isinstance(spec, Sampler):
        raise InvalidArgument(f"spec must be a sampler; got an object of type {type(spec).__name__}.")
    for name, value in (("sigma", sigma), ("clip_norm", clip_norm), ("canary_norm", canary_norm)):
        if not (math.isfinite(value) and value > 0):
            raise InvalidArgument(f"{name} must be a positive number; got {name}={value!r}.")
    if not 0 < delta < 1:
        raise InvalidArgument(f"delta must be above 0 and below 1; got delta={delta!r}.")
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


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
