"""A batch over its cap keeps a uniform subset of its rows."""

import itertools

import numpy as np
import pytest
import scipy.stats

from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import Poisson, TruncatedPoisson

KEY = Key.for_tests(2025)
REJECT = 1e-6
N, B, T = 60, 12, 30_000


@pytest.fixture(scope="module")
def batches():
    """Uncut and cut batches of the same steps."""
    full = {"num_examples": N, "batch_size": B, "num_steps": T}
    uncut = list(schedule(Poisson(**full), KEY).batches())
    cut = list(schedule(TruncatedPoisson(**full, max_batch_size=B), KEY).batches())
    return list(zip(uncut, cut, strict=True))


def dropped_places(uncut: np.ndarray, kept: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(~np.isin(uncut, kept)).tolist())


def keep_the_first(uncut: np.ndarray) -> np.ndarray:
    """Twin: the cap as it is often written."""
    return uncut[:B]


def p_value(places: list[tuple[int, ...]], *, size: int, num_dropped: int) -> float:
    """Null: each set of num_dropped places among `size` is equally likely. Chi-square over all sets."""
    cells = list(itertools.combinations(range(size), num_dropped))
    counts = np.array([places.count(cell) for cell in cells])
    assert counts.sum() == len(places)
    return float(scipy.stats.chisquare(counts).pvalue)


@pytest.mark.parametrize("num_dropped", [1, 2])
def test_every_place_is_dropped_equally_often(batches, num_dropped):
    over = [(uncut, cut) for uncut, cut in batches if len(uncut) == B + num_dropped]
    assert len(over) > 1500
    places = [dropped_places(uncut, cut) for uncut, cut in over]
    assert p_value(places, size=B + num_dropped, num_dropped=num_dropped) > 1e-3
    twin = [dropped_places(uncut, keep_the_first(uncut)) for uncut, _ in over]
    assert p_value(twin, size=B + num_dropped, num_dropped=num_dropped) < REJECT


def test_a_cut_step_drops_no_row_more_often_than_another(batches):
    """Null: given the uncut batches, a row survives with probability B/M. Tested on thirds of the rows."""
    over = [(uncut, cut) for uncut, cut in batches if len(uncut) > B]

    def z_of(pairs):
        for third in np.array_split(np.arange(N), 3):
            drift = variance = 0.0
            for uncut, kept in pairs:
                M, inside = len(uncut), int(np.isin(uncut, third).sum())
                drift += np.isin(kept, third).sum() - inside * B / M
                # Hypergeometric variance.
                variance += B * (inside / M) * (1 - inside / M) * (M - B) / (M - 1)
            yield drift / variance**0.5

    assert all(2 * scipy.stats.norm.sf(abs(z)) > REJECT for z in z_of(over[:3000]))
    twin = [(uncut, keep_the_first(uncut)) for uncut, _ in over[:3000]]
    assert any(2 * scipy.stats.norm.sf(abs(z)) < REJECT for z in z_of(twin))
