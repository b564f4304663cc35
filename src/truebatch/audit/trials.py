"""Runs on neighbouring data sets: how many, how many trials each is, and their scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from truebatch.accounting.truncation import log_overflow_prob
from truebatch.audit.attacks import Attack, AttackName
from truebatch.audit.rows import Floats
from truebatch.audit.steps import TrainStep
from truebatch.batching.shape import batch_rows
from truebatch.errors import InvalidData
from truebatch.keys import Key
from truebatch.specs import BallsAndBins, Deterministic, Poisson, Sampler, TruncatedPoisson

# Trials on each of two neighbours: where a run is one trial, and where it is thousands.
TRIALS, MANY_TRIALS = 1000, 20_000
MOST_CANARIES = 4096
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


def scores_of(
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


def canaries_in_a_run(name: AttackName, spec: Sampler, failure_prob: float) -> int:
    """How many rows of one run are trials of their own: each in its own direction, alone there.

    Exactly equivalent to runs of their own where rows are placed independently of each other, since noise is
    independent between directions. Cut batches are not, but are as good as that while none is cut.
    """
    if name == "crowd" or not isinstance(spec, Poisson | BallsAndBins | Deterministic | TruncatedPoisson):
        return 1
    if MANY_TRIALS * dependence(spec, 2) > _CUT_SHARE * failure_prob:
        return 1
    rows = spec.batch_size if isinstance(spec, Poisson | BallsAndBins) else batch_rows(spec)
    most = min(spec.num_examples, MOST_CANARIES, max(1, _BATCH_NUMBERS // rows))
    return most - most % 2 if most > 1 else 1


def dependence(spec: Sampler, canaries: int) -> float:
    """Total variation distance of a run's canaries to as many runs of one, a bound.

    Both are those of Poisson unless a batch is cut, in the one run or in any of the others.
    """
    if canaries == 1 or not isinstance(spec, TruncatedPoisson):
        return 0.0
    log_psi = log_overflow_prob(
        num_examples=spec.num_examples, batch_size=spec.batch_size, max_batch_size=spec.max_batch_size
    )
    return (canaries + 1) * spec.num_steps * math.exp(log_psi)
