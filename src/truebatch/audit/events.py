"""From scores on two neighbouring data sets to an epsilon that is proven by them, with stated confidence."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from truebatch.audit.rows import Floats

# Thresholds that are tried: all scores up to this many; of more, those in the tails and some between.
_MOST_THRESHOLDS = 512


@dataclass(frozen=True, kw_only=True)
class Event:
    """Scores of at least (or at most) a threshold; likelier with the canary, or without it."""

    threshold: float
    with_canary: bool

    def count(self, scores: Floats) -> int:
        """How many scores are in the event."""
        inside = scores >= self.threshold if self.with_canary else scores <= self.threshold
        return int(inside.sum())


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """An event's counts on both data sets, and the epsilon that they prove.

    `likely` of `likely_trials` are those of the data set on which the event is the likelier, `rare` those of
    its neighbour. `epsilon` is a lower bound at the stated confidence and 0 if nothing is proven;
    `estimate` and `epsilon_of_event_upper` are the middle and the upper end of what the event alone could
    show with more trials, infinite where the event was never seen on the neighbour.
    """

    event: Event
    likely: int
    likely_trials: int
    rare: int
    rare_trials: int
    epsilon: float
    estimate: float
    epsilon_of_event_upper: float


def clopper_pearson(successes: Floats, trials: int, failure_prob: float) -> tuple[Floats, Floats]:
    """Lower and upper bound of a probability; each is on its wrong side with `failure_prob` at most.

    >>> low, high = clopper_pearson(np.array([0.0, 10.0]), 10, 0.025)
    >>> [round(float(x), 4) for x in (*low, *high)]
    [0.0, 0.6915, 0.3085, 1.0]
    """
    k = np.asarray(successes, dtype=float)
    # The distribution of order statistics has no parameter of zero: those ends are 0 and 1.
    low = np.where(k > 0, betaincinv(np.maximum(k, 1), trials - k + 1, failure_prob), 0.0)
    high = np.where(k < trials, betaincinv(k + 1, np.maximum(trials - k, 1), 1 - failure_prob), 1.0)
    return low, high


def epsilon_of(likely: Floats, rare: Floats, delta: float) -> Floats:
    """The least epsilon with likely <= e^epsilon rare + delta, and at least 0.

    >>> round(float(epsilon_of(np.array(0.5), np.array(0.1), 0.1)), 6) == round(math.log(4), 6)
    True
    """
    above = np.maximum(likely - delta, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(above > 0, np.log(above / rare), 0.0)
    result: Floats = np.maximum(found, 0.0)
    return result


def halves(scores: Floats) -> tuple[Floats, Floats]:
    """Trials to choose an event by, and trials to judge it by: none is in both."""
    return scores[0::2], scores[1::2]


def epsilon_lower(with_canary: Floats, without: Floats, *, delta: float, failure_prob: float) -> Judgement:
    """An epsilon that both neighbours' scores prove: above the true one with `failure_prob` at most.

    The event is chosen on one half of the trials and judged on the other, so it is one event for the other
    half, and only one. Each of its two probabilities takes half of `failure_prob`. Both directions of
    adjacency are choices.
    """
    chosen_with, judged_with = halves(with_canary)
    chosen_without, judged_without = halves(without)
    event = best_event(chosen_with, chosen_without, delta=delta, failure_prob=failure_prob)
    return judge(event, judged_with, judged_without, delta=delta, failure_prob=failure_prob)


def judge(
    event: Event, with_canary: Floats, without: Floats, *, delta: float, failure_prob: float
) -> Judgement:
    """What fresh trials say of an event."""
    likely, rare = (with_canary, without) if event.with_canary else (without, with_canary)
    k, m = event.count(likely), event.count(rare)
    (p_low, p_high), (q_low, q_high) = (
        clopper_pearson(np.array(count), len(scores), failure_prob / 2)
        for count, scores in ((k, likely), (m, rare))
    )
    return Judgement(
        event=event,
        likely=k,
        likely_trials=len(likely),
        rare=m,
        rare_trials=len(rare),
        epsilon=float(epsilon_of(p_low, q_high, delta)),
        estimate=float(epsilon_of(np.array(k / max(len(likely), 1)), np.array(m / max(len(rare), 1)), delta)),
        epsilon_of_event_upper=float(epsilon_of(p_high, q_low, delta)),
    )


def best_event(with_canary: Floats, without: Floats, *, delta: float, failure_prob: float) -> Event:
    """The event that would prove most, if as many fresh trials fell as these did.

    One more is taken to fall on the rare side than did: the threshold just beyond the last of them would be
    chosen by its luck. Where none would prove anything, the one that looks best.
    """
    thresholds = _thresholds(np.concatenate([with_canary, without]))
    best, found = Event(threshold=math.inf, with_canary=True), 0.0
    for prob in (failure_prob, 1.0) if thresholds.size else ():
        for with_first in (True, False):
            likely, rare = (with_canary, without) if with_first else (without, with_canary)
            k, m = (_counts(scores, thresholds, above=with_first) for scores in (likely, rare))
            low, _ = clopper_pearson(k, len(likely), prob / 2)
            _, high = clopper_pearson(np.minimum(m + 1, len(rare)), len(rare), prob / 2)
            reached = epsilon_of(low, high, delta)
            i = int(np.argmax(reached))
            if reached[i] > found:
                best, found = Event(threshold=float(thresholds[i]), with_canary=with_first), float(reached[i])
        if found > 0:
            break
    return best


def _counts(scores: Floats, thresholds: Floats, *, above: bool) -> Floats:
    ranked = np.sort(scores)
    if above:
        return (len(ranked) - np.searchsorted(ranked, thresholds, side="left")).astype(float)
    return np.searchsorted(ranked, thresholds, side="right").astype(float)


def _thresholds(scores: Floats) -> Floats:
    ranked = np.sort(scores)
    if len(ranked) <= _MOST_THRESHOLDS:
        return ranked
    tail = _MOST_THRESHOLDS // 4
    between = np.linspace(tail, len(ranked) - tail - 1, 2 * tail).astype(int)
    return np.concatenate([ranked[:tail], ranked[between], ranked[-tail:]])
