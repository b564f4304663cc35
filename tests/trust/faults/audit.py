"""Faults of the auditor, which cries wolf; and shuffled batches called Poisson, which it has to notice."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import scipy.stats

from truebatch import DynamicShuffle, Poisson, accounting
from truebatch.audit import NOT_REFUTED, audit, epsilon_lower
from truebatch.audit.events import epsilon_of
from truebatch.audit.rows import Floats
from truebatch.sampling.plans import plan_for
from trust.fault import Check, Fault, replaced

# ---- Null scores: both neighbours alike, so that whatever is proven is wrong ----

REPETITIONS, NULL_TRIALS = 1000, 200
# Audits may err at two rates: the usual one, and one so large that smaller faults show.
RATES = (0.05, 0.5)
# Of so many audits, more than this err at the allowed rate with probability 1e-9 or less.
MOST = {rate: int(scipy.stats.binom.isf(1e-9, REPETITIONS, rate)) for rate in RATES}


def false_proofs(*, rate: float, seed: int) -> int:
    """How many audits of null scores prove an epsilon above 0."""
    scores = np.random.default_rng(seed).normal(size=(REPETITIONS, 2, NULL_TRIALS))
    found = (epsilon_lower(*pair, delta=1e-9, failure_prob=rate).epsilon for pair in scores)
    return sum(epsilon > 0 for epsilon in found)


def nothing_is_proven_of_null_scores() -> None:
    for seed, rate in enumerate(RATES):
        found = false_proofs(rate=rate, seed=seed)
        assert found <= MOST[rate], (
            f"{found} of {REPETITIONS} audits of scores that say nothing prove something; "
            f"{rate:.0%} may, and {MOST[rate]} at the very most"
        )


NULL = Check(
    name="of 1,000 audits of null scores no more prove something than may",
    run=nothing_is_proven_of_null_scores,
    false_alarm=2e-9,
    power=1 - 1e-6,
)


# ---- True Poisson: what is proven of it is exact, and nothing may be above ----

TRUE = Poisson(num_examples=256, batch_size=32, num_steps=16)
TRUE_SIGMA, TRUE_DELTA, SURE = 0.8, 0.2, 1 - 1e-6


def true_poisson_stays_below_its_bound() -> None:
    found = audit(
        None, TRUE, sigma=TRUE_SIGMA, delta=TRUE_DELTA, attacks=("alone",), confidence=SURE, seed=15
    )
    upper = accounting.epsilon(TRUE, sigma=TRUE_SIGMA, delta=TRUE_DELTA).upper.value
    assert found.epsilon <= upper, f"epsilon >= {found.epsilon:.3f} of Poisson batches that have {upper:.3f}"


TRUE_POISSON = Check(
    name="audit of our step on Poisson batches, against the exact epsilon, at confidence 1 - 1e-6",
    run=true_poisson_stays_below_its_bound,
    false_alarm=1e-6,
    power=1 - 1e-6,
)


# ---- How the auditor is broken ----


def point_estimates(successes: Floats, trials: int, failure_prob: float) -> tuple[Floats, Floats]:
    """Frequencies, as if they were probabilities."""
    found = np.asarray(successes, dtype=float) / max(trials, 1)
    return found, found


def same_trials(scores: Floats) -> tuple[Floats, Floats]:
    """Chooses and judges by all of them."""
    return scores, scores


def without_delta(likely: Floats, rare: Floats, delta: float) -> Floats:
    """Delta is read and forgotten."""
    return epsilon_of(likely, rare, 0.0)


def injected(place: str, new: Any) -> Callable[[], Any]:
    return partial(replaced, {place: new})


# ---- Shuffled batches, called Poisson ----

CALLED_POISSON = Poisson(num_examples=64, batch_size=8, num_steps=8)
SHUFFLE_SIGMA, SHUFFLE_DELTA, SHUFFLE_TRIALS = 0.6, 0.2, 1400


def poisson_batches_keep_poissons_claim() -> None:
    claim = accounting.epsilon(CALLED_POISSON, sigma=SHUFFLE_SIGMA, delta=SHUFFLE_DELTA).upper.value
    found = audit(
        None,
        CALLED_POISSON,
        sigma=SHUFFLE_SIGMA,
        delta=SHUFFLE_DELTA,
        claimed_epsilon=claim,
        attacks=("crowd",),
        trials=SHUFFLE_TRIALS,
        confidence=SURE,
        seed=6,
    )
    assert found.verdict == NOT_REFUTED, f"{found}, for batches that are said to be Poisson's"


def shuffled_plan(spec: Any, stream: Any) -> tuple[Any, Fraction]:
    """Poisson specs are drawn by shuffling, with the name, probability and noise of Poisson."""
    if not isinstance(spec, Poisson):
        return plan_for(spec, stream)
    n, b, T = spec.num_examples, spec.batch_size, spec.num_steps
    return plan_for(DynamicShuffle(num_examples=n, batch_size=b, num_steps=T), stream)


AUDITED = Check(
    name="audit of our step with the crowd's data sets, against Poisson's epsilon, at confidence 1 - 1e-6",
    run=poisson_batches_keep_poissons_claim,
    false_alarm=1e-6,
    power=0.99,
)


FAULTS = (
    Fault(
        number=15,
        name="frequencies are taken for probabilities",
        how="clopper_pearson gives successes / trials as both bounds",
        inject=injected("truebatch.audit.events:clopper_pearson", point_estimates),
        check=NULL,
    ),
    Fault(
        number=15,
        name="the event is chosen and judged on the same trials",
        how="halves gives all trials twice",
        inject=injected("truebatch.audit.events:halves", same_trials),
        check=NULL,
    ),
    Fault(
        number=15,
        name="delta is ignored",
        how="epsilon_of takes delta for 0",
        inject=injected("truebatch.audit.events:epsilon_of", without_delta),
        check=TRUE_POISSON,
    ),
    Fault(
        number=6,
        name="the schedule shuffles and is called Poisson",
        how="plan_for gives a Poisson spec the plan of a dynamic shuffle",
        inject=injected("truebatch.sampling.schedule:plan_for", shuffled_plan),
        check=AUDITED,
    ),
)
