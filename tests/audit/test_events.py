import numpy as np
import pytest
from scipy.stats import binomtest, norm

from truebatch.accounting.deterministic import delta_deterministic
from truebatch.audit import clopper_pearson, epsilon_lower
from truebatch.audit.events import Event, best_event, judge


@pytest.mark.parametrize(("successes", "trials"), [(0, 7), (7, 7), (3, 20), (500, 1000), (1, 100_000)])
def test_clopper_pearson_is_that_of_scipy(successes: int, trials: int) -> None:
    low, high = clopper_pearson(np.array(float(successes)), trials, 0.025)
    exact = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert (float(low), float(high)) == pytest.approx((exact.low, exact.high), rel=1e-9)


def violations(*, repetitions: int, trials: int, failure_prob: float, seed: int = 0) -> int:
    """How often scores that say nothing prove an epsilon above 0."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(repetitions, 2, trials))
    return sum(epsilon_lower(*pair, delta=0.0, failure_prob=failure_prob).epsilon > 0 for pair in scores)


def test_null_scores_prove_nothing_but_for_one_in_twenty() -> None:
    assert violations(repetitions=1000, trials=200, failure_prob=0.05) <= 50


def test_choosing_and_judging_on_the_same_trials_would_be_noticed(monkeypatch) -> None:
    assert violations(repetitions=300, trials=200, failure_prob=0.5) <= 150
    monkeypatch.setattr("truebatch.audit.events.halves", lambda scores: (scores, scores))
    assert violations(repetitions=300, trials=200, failure_prob=0.5) > 170


def test_the_bound_is_below_the_truth_and_near_it() -> None:
    """Scores of the Gaussian mechanism, whose epsilon is known; 200 repetitions at 95 %."""
    delta = float(delta_deterministic(epsilon=1.0, sigma=1.0, num_epochs=1))
    rng = np.random.default_rng(1)
    found = np.array(
        [
            epsilon_lower(
                rng.normal(size=2000) + 1, rng.normal(size=2000), delta=delta, failure_prob=0.05
            ).epsilon
            for _ in range(200)
        ]
    )
    assert (found > 1.0).mean() <= 0.05
    assert np.median(found) > 0.6


def test_delta_pays_for_outcomes_that_are_only_possible_with_the_canary() -> None:
    """A mechanism that shows the canary with probability 5 % and nothing otherwise is (0, 0.05)-private."""
    rng = np.random.default_rng(2)
    shown = np.where(rng.random(4000) < 0.05, 9.0, rng.normal(size=4000))
    hidden = rng.normal(size=4000)
    assert epsilon_lower(shown, hidden, delta=0.05, failure_prob=0.05).epsilon == 0
    assert epsilon_lower(shown, hidden, delta=0.0, failure_prob=0.05).epsilon > 2


def test_both_directions_of_adjacency_are_tried() -> None:
    """Low scores that only the zeroed-out data set can give."""
    rng = np.random.default_rng(3)
    without = np.where(rng.random(4000) < 0.3, -9.0, rng.normal(size=4000))
    found = epsilon_lower(rng.normal(size=4000), without, delta=0.01, failure_prob=0.05)
    assert not found.event.with_canary
    assert found.epsilon > 2


def test_the_interval_of_an_event_holds_its_epsilon() -> None:
    event = Event(threshold=0.5, with_canary=True)
    truth = np.log((norm.sf(-0.5) - 0.01) / norm.sf(0.5))
    rng = np.random.default_rng(4)
    found = [
        judge(event, rng.normal(size=500) + 1, rng.normal(size=500), delta=0.01, failure_prob=0.05)
        for _ in range(300)
    ]
    inside = [j.epsilon <= truth <= j.epsilon_of_event_upper for j in found]
    assert np.mean(inside) >= 0.95
    assert all(j.epsilon <= j.estimate <= j.epsilon_of_event_upper for j in found)


def test_the_chosen_event_is_about_the_best_one() -> None:
    rng = np.random.default_rng(5)
    event = best_event(rng.normal(size=20_000) + 1, rng.normal(size=20_000), delta=0.1, failure_prob=0.05)
    # For the Gaussian mechanism the best event at delta is where the loss is epsilon, here 0.90 at x = 1.40,
    # or its mirror image.
    at = event.threshold if event.with_canary else 1 - event.threshold
    assert at == pytest.approx(1.4, abs=0.4)


def test_no_trials_prove_nothing() -> None:
    none = np.empty(0)
    assert epsilon_lower(none, none, delta=0.0, failure_prob=0.05).epsilon == 0
    assert epsilon_lower(np.ones(1), np.zeros(1), delta=0.0, failure_prob=0.05).epsilon == 0
