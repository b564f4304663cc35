"""Shuffles are uniform: all orders for small n, and no structure for large n."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from truebatch.keys import Key
from truebatch.sampling import permutation, plans, schedule
from truebatch.sampling.bins import BinSizes
from truebatch.sampling.blocks import KeyStream
from truebatch.sampling.permutation import Feistel, TilePermutations
from truebatch.sampling.shuffle import WalkPlan
from truebatch.sampling.splits import halves
from truebatch.sampling.tiling import Tiling
from truebatch.specs import BallsAndBins, DynamicShuffle, FixedSizeSampling

KEY = Key.for_tests(2027)
STREAM = KeyStream(KEY)
REJECT = 1e-6


def uniform_p(outcomes: list, cells: list) -> float:
    """Null: every cell is equally likely. Chi-square over all cells."""
    place = {cell: i for i, cell in enumerate(cells)}
    counts = np.bincount([place[outcome] for outcome in outcomes], minlength=len(cells))
    return float(scipy.stats.chisquare(counts).pvalue)


def orders(plan_or_schedule, n: int, num_epochs: int) -> list[tuple[int, ...]]:
    """The order of the rows in each epoch, with batches of one row."""
    rows = np.concatenate(list(plan_or_schedule.batches(0, n * num_epochs)))
    return [tuple(order) for order in rows.reshape(num_epochs, n).tolist()]


def walk(n: int, S: int, E: int, tile_rows: int, *, bins: bool = False) -> WalkPlan:
    """A plan with tiles of our choice, so that small n has many."""
    b = n // S
    bounds = BinSizes(STREAM, num_rows=n, num_steps=S).bounds if bins else lambda _, steps: steps * b
    tiling = Tiling(num_rows=n, tile_rows=tile_rows)
    return WalkPlan(STREAM, tiling=tiling, steps_per_epoch=S, num_epochs=E, bounds=bounds)


@pytest.mark.parametrize(("n", "num_epochs"), [(3, 6000), (4, 4000), (5, 6000)])
def test_all_orders_are_equally_likely(n, num_epochs):
    s = schedule(DynamicShuffle(num_examples=n, batch_size=1, num_steps=n * num_epochs), KEY)
    cells = list(itertools.permutations(range(n)))
    found = orders(s, n, num_epochs)
    assert uniform_p(found, cells) > REJECT
    # Twin: swapping each place with a place drawn from all n, a well-known slip.
    random = np.random.default_rng(5)
    slips = []
    for _ in range(num_epochs):
        order = list(range(n))
        for i, j in enumerate(random.integers(0, n, n).tolist()):
            order[i], order[j] = order[j], order[i]
        slips.append(tuple(order))
    assert uniform_p(slips, cells) < REJECT


@pytest.mark.parametrize("tile_rows", [1, 2])
def test_all_orders_are_equally_likely_when_rows_are_in_several_tiles(tile_rows):
    n, E = 4, 1500
    rows = np.concatenate(list(walk(n, n, E, tile_rows).batches(range(n * E))))
    found = [tuple(order) for order in rows.reshape(E, n).tolist()]
    assert uniform_p(found, list(itertools.permutations(range(n)))) > REJECT


def test_all_partitions_are_equally_likely():
    """Null: all 1,680 ways to put nine rows into three batches of three, told apart by where four rows go."""
    n, S, E = 9, 3, 1500
    batches = list(walk(n, S, E, 2).batches(range(S * E)))
    where = np.empty((E, n), dtype=int)
    for t, batch in enumerate(batches):
        where[t // S, batch] = t % S
    cells = list(itertools.product(range(S), repeat=4))
    left = {cell: math.factorial(5) // math.prod(math.factorial(3 - cell.count(s)) for s in range(S))
            for cell in cells if max(cell.count(s) for s in range(S)) <= 3}  # fmt: skip
    observed = dict.fromkeys(left, 0)
    for line in where[:, [0, 3, 5, 8]].tolist():
        observed[tuple(line)] += 1
    expected = np.array(list(left.values())) / sum(left.values()) * E
    assert scipy.stats.chisquare(list(observed.values()), expected).pvalue > REJECT


@pytest.mark.parametrize("tile_rows", [1, 2, 4])
def test_balls_fall_into_bins_uniformly_and_independently(tile_rows):
    """Null: all S^n ways to throw n balls are equally likely."""
    n, S, E = 4, 2, 1600
    where = np.empty((E, n), dtype=int)
    for t, batch in enumerate(walk(n, S, E, tile_rows, bins=True).batches(range(S * E))):
        where[t // S, batch] = t % S
    found = [tuple(line) for line in where.tolist()]
    assert uniform_p(found, list(itertools.product(range(S), repeat=n))) > REJECT


def test_bin_sizes_are_multinomial():
    """Null: the size of a step is Binomial(n, 1/S), and two steps have covariance -n/S^2."""
    n, S, E = 600, 6, 4000
    s = schedule(BallsAndBins(num_examples=n, batch_size=n // S, num_steps=S * E), KEY)
    sizes = s.sizes().reshape(E, S)
    assert (sizes.sum(axis=1) == n).all()
    centred = sizes - n / S
    variance = n * (S - 1) / S**2
    statistic = (centred**2).sum() / variance * (S - 1) / S
    assert REJECT < scipy.stats.chi2.sf(statistic, E * (S - 1)) < 1 - REJECT
    np.testing.assert_allclose((centred[:, 0] * centred[:, 1]).mean(), -n / S**2, atol=5 * variance / E**0.5)


@pytest.mark.parametrize("spare", [0, plans.SPARE_DEVIATIONS])
def test_fixed_size_batches_are_uniform_subsets(spare, monkeypatch):
    """Without spare rows about half of the steps are drawn again, and that must not show."""
    monkeypatch.setattr(plans, "SPARE_DEVIATIONS", spare)
    s = schedule(FixedSizeSampling(num_examples=6, batch_size=3, num_steps=4000), KEY)
    found = [tuple(batch.tolist()) for batch in s.batches()]
    assert uniform_p(found, list(itertools.combinations(range(6), 3))) > REJECT


# --- Large n ---


def images(*, bits: int, num_tiles: int) -> np.ndarray:
    """Images of values that differ in one half or in both, in many tiles: one line per tile."""
    half = 1 << (bits - bits // 2)
    values = np.array([0, 1, 2, half, 2 * half, half + 1])
    tile = np.repeat(np.arange(num_tiles), len(values))
    return Feistel(STREAM, bits=bits).apply(3, tile, np.tile(values, num_tiles)).reshape(num_tiles, -1)


def pair_statistics(values: np.ndarray, bits: int) -> list[float]:
    """Null: images of two values are uniform and independent. Chi-square on 16 x 16 high and low bits."""
    result = []
    for first, second in ((0, 1), (0, 3), (3, 4), (1, 5), (0, 5)):
        for shift in (bits - 4, 0):
            a, b = values[:, first] >> shift & 15, values[:, second] >> shift & 15
            result.append(float(scipy.stats.chisquare(np.bincount(a * 16 + b, minlength=256)).pvalue))
            x = (values[:, first] ^ values[:, second]) >> shift & 15
            # Two images differ, so their difference is one of 2^bits - 1 values: 0 is a little rarer.
            share = np.full(16, 2.0 ** (bits - 4))
            share[0] -= 1
            counts = np.bincount(x, minlength=16)
            result.append(float(scipy.stats.chisquare(counts, share / share.sum() * len(x)).pvalue))
    return result


@pytest.mark.parametrize("bits", [13, 14, 17])
def test_feistel_images_are_uniform_and_independent_and_too_few_rounds_fail(bits, monkeypatch):
    values = images(bits=bits, num_tiles=20_000)
    assert min(pair_statistics(values, bits)) > REJECT
    monkeypatch.setattr(permutation, "num_rounds", lambda *, bits: 2)
    assert min(pair_statistics(images(bits=bits, num_tiles=20_000), bits)) < REJECT


@pytest.mark.parametrize("rows", [1, 2, 5, 4096, 4097, 5000, 8192, 100_000])
def test_tile_permutations_are_bijections(rows):
    tiles = TilePermutations(STREAM, Tiling(num_rows=rows, tile_rows=1 << (rows - 1).bit_length()))
    whole = tiles.rows(1, np.array([0]), np.array([0]), np.array([rows]))
    assert np.array_equal(np.sort(whole), np.arange(rows))
    half = tiles.rows(1, np.array([0]), np.array([rows // 3]), np.array([rows // 2]))
    assert np.array_equal(half, whole[rows // 3 : rows // 3 + rows // 2])


def test_large_shuffles_have_the_fixed_points_and_cycles_of_random_ones():
    """Null: fixed points are Poisson(1) a permutation, and half the rows keep the parity of their place."""
    rows, E = 5000, 300
    tiles = TilePermutations(STREAM, Tiling(num_rows=rows, tile_rows=8192))
    whole = np.array([tiles.rows(e, np.array([0]), np.array([0]), np.array([rows])) for e in range(E)])
    fixed = int((whole == np.arange(rows)).sum())
    assert scipy.stats.poisson.sf(fixed - 1, E) > REJECT
    assert scipy.stats.poisson.cdf(fixed, E) > REJECT
    kept = int((whole % 2 == np.arange(rows) % 2).sum())
    # Kept parities of one permutation: twice a hypergeometric, variance about rows/4 * 4.
    z = (kept - rows * E / 2) / math.sqrt(rows * E / 4)
    assert 2 * scipy.stats.norm.sf(abs(z) / 2) > REJECT


def test_batches_of_two_epochs_overlap_as_independent_subsets_do():
    """Null: two batches share Hypergeometric(n, b, b) rows; steps of one epoch share none."""
    b, S = 1500, 64
    n = b * S
    s = schedule(DynamicShuffle(num_examples=n, batch_size=b, num_steps=2 * S), KEY)
    where = np.empty((2, n), dtype=int)
    for t, batch in enumerate(s.batches()):
        where[t // S, batch] = t % S
    shared = np.bincount(where[0] * S + where[1], minlength=S * S)
    assert scipy.stats.chi2.sf(((shared - b / S) ** 2).sum() / (b / S), (S - 1) ** 2) > REJECT
    assert scipy.stats.chi2.cdf(((shared - b / S) ** 2).sum() / (b / S), (S - 1) ** 2) > REJECT
    # Twin: a second epoch that only reverses the first.
    twin = np.bincount(where[0] * S + (S - 1 - where[0]), minlength=S * S)
    assert scipy.stats.chi2.sf(((twin - b / S) ** 2).sum() / (b / S), (S - 1) ** 2) < REJECT


@pytest.mark.parametrize("m", [1, 100, 127, 128, 1000, 5001, 2**20, 3 * 2**20 + 777])
def test_halves_are_binomial(m):
    """Null: Binomial(m, 1/2). Chi-square over about ten equally likely bins."""
    drawn = halves(STREAM, 0, np.arange(4000), np.full((4000, 1), m)).ravel()
    edges = np.unique(scipy.stats.binom.ppf(np.linspace(0, 1, 11)[1:-1], m, 0.5))
    cdf = scipy.stats.binom.cdf(edges, m, 0.5)
    expected = np.diff(np.concatenate(([0], cdf, [1]))) * len(drawn)
    observed = np.bincount(np.searchsorted(edges, drawn), minlength=len(edges) + 1)
    full = expected > 0
    assert observed[~full].sum() == 0
    assert scipy.stats.chisquare(observed[full], expected[full]).pvalue > REJECT
