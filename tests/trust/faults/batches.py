"""Faults of sampling and batching: who joins which batch, and whether every batch is there."""

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy.stats

from truebatch.batching import Batch, GatherBatches, make_batches, open_batches
from truebatch.batching.batches import require_steps
from truebatch.batching.files import FileBatches
from truebatch.data import TableSource
from truebatch.errors import InvalidSpec
from truebatch.keys import Key
from truebatch.sampling import Schedule, schedule
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.sampling.plans import plan_for
from truebatch.sampling.poisson import RATE_BITS, PoissonPlan
from truebatch.sampling.tables import CountTable, binomial_table
from truebatch.sampling.tiling import Placements, Steps
from truebatch.specs import (
    Deterministic,
    DynamicShuffle,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
)
from trust import chances
from trust.chances import FALSE_ALARM, REJECT
from trust.fault import Check, Fault, replaced

Int64s = npt.NDArray[np.int64]

KEY = Key.for_tests(7001)


def breaks(**places: Any) -> Callable[[], AbstractContextManager[None]]:
    """An injection: each of `PLACES` by its short name."""
    return partial(replaced, {PLACES[name]: new for name, new in places.items()})


_POISSON, _GATHER = "truebatch.sampling.poisson", "truebatch.batching.gather"
PLACES = {
    "placements": f"{_POISSON}:PoissonPlan.placements",
    "batches": f"{_POISSON}:PoissonPlan.batches",
    "counts": f"{_POISSON}:PoissonPlan._counts",
    "dropped": f"{_POISSON}:PoissonPlan._dropped",
    "table": f"{_POISSON}:binomial_table",
    "plan": "truebatch.sampling.plans:PoissonPlan",
    "draw": "truebatch.sampling.blocks:KeyStream.draw",
    "plan_for": "truebatch.sampling.schedule:plan_for",
    "gather_schedule": f"{_GATHER}:schedule",
    "gathered": f"{_GATHER}:GatherBatches._made",
    "gather_steps": f"{_GATHER}:require_steps",
    "file_steps": "truebatch.batching.files:require_steps",
    "files": "truebatch.batching.files:FileBatches._read",
    "whole_epochs": "truebatch.specs:_WholeEpochs.__post_init__",
}

# ---- 1. Workers share or copy the state of a generator ----

# Four tiles of 256 rows, and a worker for each.
COINS = Poisson(num_examples=1024, batch_size=400, num_steps=400)
WORKERS, EPOCH = 4, 100


def memberships(spec: Sampler, *, workers: int) -> npt.NDArray[np.float64]:
    """The yes/no matrix (row, step), read by as many workers, each with a schedule and rows of its own."""
    matrix = np.zeros((spec.num_examples, spec.num_steps))
    for rows in np.array_split(np.arange(spec.num_examples), workers):
        worker = schedule(spec, Key.from_bytes(KEY.to_bytes()))
        step, _, row = worker.placements(int(rows[0]), int(rows[-1]) + 1)
        matrix[row, step] = 1
    return matrix


def rows_are_independent() -> None:
    z = chances.pairs_z(memberships(COINS, workers=WORKERS), COINS.sampling_prob)
    assert chances.two_sided(z) > REJECT, f"rows go together: z = {z:.3g}"


def steps_are_independent() -> None:
    z = chances.pairs_z(memberships(COINS, workers=1).T, COINS.sampling_prob)
    assert chances.two_sided(z) > REJECT, f"steps go together: z = {z:.3g}"


def no_cell_is_like_another() -> None:
    """A cell is a tile in a step. Two of them agree on all 256 rows with probability 0.52^256."""
    tile = schedule(COINS, KEY).tile_rows
    cells = memberships(COINS, workers=1).reshape(-1, tile, COINS.num_steps).transpose(0, 2, 1)
    different = np.unique(cells.reshape(-1, tile), axis=0)
    assert len(different) == cells.shape[0] * cells.shape[1], "cells of different steps hold the same rows"


def from_a_copied_generator(self: PoissonPlan, start: int, stop: int, steps: Steps) -> Iterator[Placements]:
    generator = np.random.default_rng(list(self._stream._key.to_bytes()))
    taken = generator.random((stop - start, len(steps))).T < self.rate / 2**RATE_BITS
    at, row = np.nonzero(taken)
    yield Placements(step=np.asarray(steps)[at], slot=row, row=row + start)


_DRAW = KeyStream.draw


def seeded_every_epoch(self: KeyStream, purpose: Purpose, step: Any, unit: Any, counter: Any) -> Any:
    return _DRAW(self, purpose, np.asarray(step) % EPOCH, unit, counter)


def seeds_added_up(self: KeyStream, purpose: Purpose, step: Any, unit: Any, counter: Any) -> Any:
    return _DRAW(self, purpose, np.asarray(step) + np.asarray(unit), 0, counter)


# ---- 2. Inclusion is decided by a 32-bit float ----

# About four million memberships at each rate: a standard error of 0.05 %.
RATES = {q: Poisson(num_examples=round(400_000 / q), batch_size=400_000, num_steps=10) for q in (1e-6, 1e-8)}
FLOAT_BITS = 24


def rows_join_at_the_stated_rate() -> None:
    for q, spec in RATES.items():
        drawn = schedule(spec, KEY)
        trials = spec.num_examples * spec.num_steps
        z = chances.binomial_z(int(drawn.sizes().sum()), trials, float(drawn.sampling_prob))
        assert chances.two_sided(z) > REJECT, f"rows do not join at the rate of {q:g}: z = {z:.3g}"


def the_rate_is_the_accounted_one() -> None:
    """Never above b/n, which the accountant is told, and below it by less than 2^-64."""
    for n, b in ((49, 1), (1000, 300), (36_672_493, 65_536), (10**11, 3)):
        drawn = schedule(Poisson(num_examples=n, batch_size=b, num_steps=1), KEY)
        gap = Fraction(b, n) - drawn.sampling_prob
        assert 0 <= gap < Fraction(1, 2**64), f"the rate of b={b} of n={n} is off by {float(gap):.3g}"


def float_rate(prob: Fraction) -> Fraction:
    """How often a uniform float of 24 bits, which is a multiple of 2^-24, is below prob."""
    return Fraction(math.ceil(prob * 2**FLOAT_BITS), 2**FLOAT_BITS)


def float_table(*, trials: int, prob: Fraction) -> CountTable:
    return binomial_table(trials=trials, prob=float_rate(prob))


class FloatRatePlan(PoissonPlan):
    def __init__(self, *args: Any, rate: int, **more: Any) -> None:
        single = Fraction(float(np.float32(rate / 2**RATE_BITS)))
        super().__init__(*args, rate=int(single * 2**RATE_BITS), **more)


# ---- 3. Empty batches are dropped; 4. steps are lost ----

# A third of the batches is empty.
SPARSE = TruncatedPoisson(num_examples=1000, batch_size=1, num_steps=300, max_batch_size=8)
# 1/q is 3.33: three steps an epoch are not enough.
UNEVEN = TruncatedPoisson(num_examples=1000, batch_size=300, num_steps=30, max_batch_size=400)


def numbered(spec: Sampler) -> TableSource:
    """As many rows as the spec has examples, each with its number from 1 on: a 0 is padding."""
    field = pa.field("row", pa.int32(), nullable=False)
    return TableSource(
        pa.table([pa.array(np.arange(1, spec.num_examples + 1, dtype=np.int32))], pa.schema([field]))
    )


def gathered(spec: Sampler) -> Iterator[Batch]:
    return GatherBatches(numbered(spec), spec, KEY).read()


def written(spec: Sampler) -> Iterator[Batch]:
    with tempfile.TemporaryDirectory() as place:
        make_batches(numbered(spec), spec, f"{place}/batches", KEY, memory=2**20, workers=1)
        yield from open_batches(f"{place}/batches").read()


Road = Callable[[Sampler], Iterable[Batch]]


def every_batch_is_as_drawn(road: Road, *specs: Sampler) -> None:
    """T batches in order, of one shape: the rows of the schedule, and then zeros of weight 0."""
    for spec in specs:
        drawn, steps = schedule(spec, KEY), 0
        for steps, batch in enumerate(road(spec), start=1):
            members, size = drawn.members(batch.step), getattr(spec, "max_batch_size", spec.batch_size)
            expected = np.zeros(size, np.int32)
            expected[: len(members)] = members + 1
            assert batch.step == steps - 1, f"batch {batch.step} comes in the place of batch {steps - 1}"
            assert batch.rows == size, f"batch {batch.step} does not have the shape of all batches"
            assert np.array_equal(batch["row"], expected), f"batch {batch.step} does not hold the rows drawn"
            assert np.array_equal(batch.weight, expected > 0), f"batch {batch.step} has other weights"
        assert steps == spec.num_steps, f"{steps} batches of {spec.num_steps} are there"


def there_is_a_batch_for_every_step() -> None:
    found = [len(rows) for rows in schedule(SPARSE, KEY).batches()]
    assert found == schedule(SPARSE, KEY).sizes().tolist(), "batches and their sizes differ"
    assert len(found) == SPARSE.num_steps, f"{len(found)} batches of {SPARSE.num_steps} are there"


def batches_are_empty_as_often_as_coins_say() -> None:
    """Null: each of T batches is empty with probability (1 - q)^n."""
    drawn = schedule(SPARSE, KEY)
    empty = float((1 - drawn.sampling_prob) ** SPARSE.num_examples)
    found = int((drawn.sizes() == 0).sum())
    p = scipy.stats.binomtest(found, SPARSE.num_steps, empty).pvalue
    assert p > REJECT, (
        f"{found} of {SPARSE.num_steps} batches are empty, {SPARSE.num_steps * empty:.0f} expected"
    )


_BATCHES, _FILES = PoissonPlan.batches, FileBatches._read


def no_empty_batch(self: PoissonPlan, steps: Steps) -> Iterator[Int64s]:
    return (rows for rows in _BATCHES(self, steps) if len(rows))


def no_empty_batch_of_a_file(self: FileBatches, steps: range) -> Iterator[Batch]:
    return (batch for batch in _FILES(self, steps) if batch.weight.any())


def redrawn_when_empty(*args: Any, **more: Any) -> PoissonPlan:
    return PoissonPlan(*args, **{**more, "floor": 1})


def int_steps(spec: Sampler) -> int:
    return int(spec.num_epochs * int(1 / spec.sampling_prob))


def int_one_over_q(start: int, stop: int | None, spec: Sampler) -> range:
    return require_steps(start, int_steps(spec) if stop is None else stop, spec)


# ---- 6. Shuffled batches are reported as Poisson's ----

# Every epoch has 50 steps, so that a shuffle fits the same numbers.
WHOLE = TruncatedPoisson(num_examples=2000, batch_size=40, num_steps=200, max_batch_size=90)
OFTEN = Poisson(num_examples=2000, batch_size=40, num_steps=2000)


def shuffle_of(spec: Sampler) -> DynamicShuffle:
    n, b, T = spec.num_examples, spec.batch_size, spec.num_steps
    return DynamicShuffle(num_examples=n, batch_size=b, num_steps=T)


def shuffled(spec: Sampler, key: Key) -> Schedule:
    """What says it is a schedule of `spec`, and walks through a shuffle, where epochs are whole."""
    drawn = schedule(spec, key)
    if spec.num_examples % spec.batch_size == 0:
        drawn._plan = schedule(shuffle_of(spec), key)._plan
    return drawn


def shuffle_for_poisson(spec: Sampler, stream: KeyStream) -> Any:
    return plan_for(shuffle_of(spec), stream)


def rows_come_back_as_coins_do() -> None:
    """Null: how often a row is taken is Binomial(T, q). By chi-square over rows, which a shuffle makes 0."""
    n, T, q = OFTEN.num_examples, OFTEN.num_steps, OFTEN.sampling_prob
    times = np.bincount(np.concatenate(list(schedule(OFTEN, KEY).batches())), minlength=n)
    statistic = float(np.square(times - T * q).sum() / (T * q * (1 - q)))
    p = 2 * min(scipy.stats.chi2.sf(statistic, n), scipy.stats.chi2.cdf(statistic, n))
    assert p > REJECT, f"how often rows are taken varies by {statistic / n:.3g} of what coins give"


# ---- 13. A cut batch keeps its first B rows ----

CUT = TruncatedPoisson(num_examples=60, batch_size=12, num_steps=30_000, max_batch_size=12)
UNCUT = Poisson(num_examples=CUT.num_examples, batch_size=CUT.batch_size, num_steps=CUT.num_steps)
OVER_BY = 2


def a_cut_drops_every_place_equally_often() -> None:
    """Null: of a batch two over the cap, each pair of places is dropped equally often. Chi-square."""
    B = CUT.max_batch_size
    pairs = zip(schedule(UNCUT, KEY).batches(), schedule(CUT, KEY).batches(), strict=True)
    over = [(rows, kept) for rows, kept in pairs if len(rows) == B + OVER_BY]
    places = [tuple(np.flatnonzero(~np.isin(rows, kept)).tolist()) for rows, kept in over]
    cells = list(itertools.combinations(range(B + OVER_BY), OVER_BY))
    assert set(places) <= set(cells), "a cut batch has another size than the cap"
    p = float(scipy.stats.chisquare([places.count(cell) for cell in cells]).pvalue)
    assert p > REJECT, f"of {len(cells)} pairs of places some are dropped more often: p = {p:.3g}"


_DROPPED = PoissonPlan._dropped


def keeps_the_first(self: PoissonPlan, steps: Int64s, totals: Int64s) -> Any:
    over, _, sizes = _DROPPED(self, steps, totals)
    first = totals[over] - sizes
    ranks = [np.arange(low, low + size) for low, size in zip(first, sizes, strict=True)]
    return over, np.concatenate([*ranks, np.empty(0, np.int64)]), sizes


def cuts_all_steps_alike(self: PoissonPlan, steps: Int64s, totals: Int64s) -> Any:
    return _DROPPED(self, np.zeros_like(steps), totals)


# ---- 18. The last batch is partial ----

TILES = Poisson(num_examples=1500, batch_size=400, num_steps=2000)


def epochs_are_whole() -> None:
    """Samplers of whole epochs take every row once an epoch in batches of b, or refuse n."""
    for kind, (n, b) in itertools.product(
        (Deterministic, PersistentShuffle, DynamicShuffle), ((960, 64), (1000, 64), (1000, 400))
    ):
        try:
            spec = kind(num_examples=n, batch_size=b, num_steps=2 * (n // b))
        except InvalidSpec:
            assert n % b, f"{kind.__name__} refuses n={n}, which b={b} divides"
            continue
        found = list(schedule(spec, KEY).batches())
        assert {len(rows) for rows in found} == {b}, f"batches of {kind.__name__} do not all have {b} rows"
        times = np.bincount(np.concatenate(found), minlength=n)
        assert (times == 2).all(), f"rows of {kind.__name__} are not taken once an epoch"


def every_row_is_taken_equally_often() -> None:
    """Null: the rows of the last tile, which is short, join as often as the others. z of their number."""
    tile = schedule(TILES, KEY).tile_rows
    first = TILES.num_examples // tile * tile
    rows = TILES.num_examples - first
    found = sum(int((batch >= first).sum()) for batch in schedule(TILES, KEY).batches())
    z = chances.binomial_z(found, rows * TILES.num_steps, TILES.sampling_prob)
    assert chances.two_sided(z) > REJECT, (
        f"the last {rows} rows are not taken as often as others: z = {z:.3g}"
    )


_GATHERED, _COUNTS = GatherBatches._made, PoissonPlan._counts


def last_is_short(self: GatherBatches, steps: range) -> Iterator[Batch]:
    for batch in _GATHERED(self, steps):
        real = int(batch.weight.sum())
        last = batch.step == self.spec.num_steps - 1
        yield Batch(step=batch.step, record=batch.record.slice(0, real)) if last else batch


def drops_the_last_tile(self: PoissonPlan, steps: Int64s, units: Int64s) -> Int64s:
    counts = _COUNTS(self, steps, units)
    if units.shape[-1] == self.tiling.num_tiles and self.tiling.last_rows < self.tiling.tile_rows:
        counts[:, -1] = 0
    return counts


# ---- The faults ----

_ROWS = Check(
    name="rows that four workers read are pairwise independent",
    run=rows_are_independent,
    false_alarm=FALSE_ALARM,
    power=chances.pairs_power(
        lines=1024, length=400, q=COINS.sampling_prob, copies=256 * math.comb(WORKERS, 2)
    ),
)
_STEPS = Check(
    name="steps are pairwise independent",
    run=steps_are_independent,
    false_alarm=FALSE_ALARM,
    power=chances.pairs_power(
        lines=400, length=1024, q=COINS.sampling_prob, copies=EPOCH * math.comb(400 // EPOCH, 2)
    ),
)
_CELLS = Check(
    name="no two cells of the schedule hold the same rows",
    run=no_cell_is_like_another,
    false_alarm=math.comb(1600, 2) * (0.4**2 + 0.6**2 + 0.01) ** 256,
)
_RATE = Check(
    name="rows join at rates of 1e-6 and 1e-8, by counting four million of each",
    run=rows_join_at_the_stated_rate,
    false_alarm=FALSE_ALARM,
    power=max(
        chances.binomial_power(
            trials=spec.num_examples * spec.num_steps, said=q, done=float(float_rate(Fraction(q)))
        )
        for q, spec in RATES.items()
    ),
)
_EXACT = Check(
    name="the rate that is drawn is the one that is accounted, to 2^-64", run=the_rate_is_the_accounted_one
)
_SCHEDULED = Check(name="a schedule has a batch for every step", run=there_is_a_batch_for_every_step)
_EMPTY = Check(
    name="batches are empty as often as coins say",
    run=batches_are_empty_as_often_as_coins_say,
    false_alarm=REJECT,
)
_WRITTEN = Check(
    name="the batches that were written are those of the schedule, empty ones included",
    run=partial(every_batch_is_as_drawn, written, SPARSE, UNEVEN),
)
_GATHERED_BATCHES = Check(
    name="the batches that a trainer reads are those of the schedule, of one shape",
    run=partial(every_batch_is_as_drawn, gathered, WHOLE, UNEVEN),
)
_COMES_BACK = Check(
    name="how often rows are taken varies as coins do",
    run=rows_come_back_as_coins_do,
    false_alarm=FALSE_ALARM,
)
_CUTS = Check(
    name="a cut batch loses a uniform subset of its places",
    run=a_cut_drops_every_place_equally_often,
    false_alarm=FALSE_ALARM,
)
_EPOCHS = Check(name="an epoch takes every row once, in batches of b, or is refused", run=epochs_are_whole)
_LAST = Check(
    name="the last rows are taken as often as the others",
    run=every_row_is_taken_equally_often,
    false_alarm=FALSE_ALARM,
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        number=1,
        name="a generator is pickled with the work",
        how="Each worker draws the coins of its rows from its own copy of one numpy generator, as in a "
        "transform that holds one and is sent to every bundle.",
        inject=breaks(placements=from_a_copied_generator),
        check=_ROWS,
    ),
    Fault(
        number=1,
        name="generators are seeded anew every epoch",
        how="The step in a block's number counts from 0 in every epoch, as where a data loader's workers "
        "begin each epoch with the same numpy state.",
        inject=breaks(draw=seeded_every_epoch),
        check=_STEPS,
    ),
    Fault(
        number=1,
        name="seeds are added up",
        how="A cell's stream is named by step + tile, as by seed + epoch + worker: step 3 of tile 4 is "
        "step 4 of tile 3.",
        inject=breaks(draw=seeds_added_up),
        check=_CELLS,
    ),
    Fault(
        number=2,
        name="coins are 32-bit floats",
        how="A row joins where a uniform multiple of 2^-24 is below q, as with rand(n) < q in single "
        "precision: at q = 1e-8 six times as often.",
        inject=breaks(table=float_table),
        check=_RATE,
    ),
    Fault(
        number=2,
        name="the rate is a 32-bit float",
        how="Q is rounded to single precision before rows are drawn, while b/n is accounted.",
        inject=breaks(plan=FloatRatePlan),
        check=_EXACT,
    ),
    Fault(
        number=3,
        name="the sampler skips empty batches",
        how="The schedule gives only batches with rows in them, as where a loader cannot hold an empty one.",
        inject=breaks(batches=no_empty_batch),
        check=_SCHEDULED,
    ),
    Fault(
        number=3,
        name="an empty batch is drawn again",
        how="A step without rows is drawn anew until it has one, the other obvious repair of such a loader.",
        inject=breaks(plan=redrawn_when_empty),
        check=_EMPTY,
    ),
    Fault(
        number=3,
        name="the reader skips empty batches",
        how="Written batches without a real row are passed over when they are read.",
        inject=breaks(files=no_empty_batch_of_a_file),
        check=_WRITTEN,
    ),
    Fault(
        number=4,
        name="a reader ends after int(1/q) steps an epoch",
        how="Batches are given for int(1/q) int(E) steps, the length of a loader that rounds down.",
        inject=breaks(gather_steps=int_one_over_q, file_steps=int_one_over_q),
        check=_GATHERED_BATCHES,
    ),
    Fault(
        number=6,
        name="a loader shuffles",
        how="What the trainer reads walks through a shuffle, while the spec says truncated Poisson.",
        inject=breaks(gather_schedule=shuffled),
        check=_GATHERED_BATCHES,
    ),
    Fault(
        number=6,
        name="the sampler shuffles, and says Poisson",
        how="The whole sampling room draws a dynamic shuffle for a spec of Poisson, so that all who derive "
        "the schedule again agree with it.",
        inject=breaks(plan_for=shuffle_for_poisson),
        check=_COMES_BACK,
    ),
    Fault(
        number=13,
        name="the first B rows are kept",
        how="A batch over its cap loses its last rows in the order of the data.",
        inject=breaks(dropped=keeps_the_first),
        check=_CUTS,
    ),
    Fault(
        number=13,
        name="all steps are cut alike",
        how="The rows to drop are drawn once, so that in all batches of one size the same places go.",
        inject=breaks(dropped=cuts_all_steps_alike),
        check=_CUTS,
    ),
    Fault(
        number=18,
        name="n need not be whole batches",
        how="The rule that b divides n is gone, so that the end of an epoch is a batch of another "
        "size, or left out.",
        inject=breaks(whole_epochs=Sampler.__post_init__),
        check=_EPOCHS,
    ),
    Fault(
        number=18,
        name="the last batch is not padded",
        how="The last batch that a trainer reads has its real rows only, and tells how many were drawn.",
        inject=breaks(gathered=last_is_short),
        check=_GATHERED_BATCHES,
    ),
    Fault(
        number=18,
        name="the rows of the last partial tile are dropped",
        how="Rows beyond the last whole tile are never drawn, as by a loader that drops its remainder.",
        inject=breaks(counts=drops_the_last_tile),
        check=_LAST,
    ),
)
