"""The schedule: two views of one matrix, for every sampler, at any size, and what it refuses."""

import contextlib
import hashlib
import pickle
import threading
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch.errors import InvalidArgument, InvalidKey, InvalidSpec, TruebatchError
from truebatch.keys import Key
from truebatch.sampling import SCHEME, permutation, schedule
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
)

KEY = Key.for_tests(1)
WALKS = (Deterministic, PersistentShuffle, DynamicShuffle, BallsAndBins)


@st.composite
def specs(draw, largest=3000):
    kind = draw(st.sampled_from([*WALKS, Poisson, TruncatedPoisson, FixedSizeSampling]))
    if kind in WALKS:
        S, E = draw(st.integers(1, 12)), draw(st.integers(1, 3))
        b = draw(st.one_of(st.just(1), st.integers(1, largest // S)))
        return kind(num_examples=b * S, batch_size=b, num_steps=S * E)
    n = draw(
        st.one_of(st.integers(1, 5), st.integers(1, largest), st.sampled_from([127, 128, 129, 1024, 1025]))
    )
    b = draw(st.one_of(st.just(1), st.just(n), st.integers(1, n)))
    extra = {}
    if kind is TruncatedPoisson:
        extra["max_batch_size"] = draw(st.one_of(st.just(b), st.integers(b, n + 5)))
    return kind(
        num_examples=n, batch_size=b, num_steps=draw(st.one_of(st.just(1), st.integers(1, 8))), **extra
    )


def check_views(spec: Sampler, *, ranges, steps=None) -> list[np.ndarray]:
    s = schedule(spec, KEY)
    n, T = spec.num_examples, spec.num_steps
    batches = [s.members(t) for t in range(T)]
    for batch, size in zip(batches, s.sizes().tolist(), strict=True):
        assert batch.dtype == np.int64
        assert len(batch) == size
        assert (np.diff(batch) > 0).all()
        assert size == 0 or (batch[0] >= 0 and batch[-1] < n)
    for got, batch in zip(s.batches(), batches, strict=True):
        assert np.array_equal(got, batch)
    for start, stop in ranges:
        for wanted in (None, steps):
            placed = s.placements(start, stop, steps=wanted)
            expected = [
                (t, slot, row)
                for t in (range(T) if wanted is None else wanted)
                for slot, row in enumerate(batches[t].tolist())
                if start <= row < stop
            ]
            assert list(zip(*(column.tolist() for column in placed), strict=True)) == expected
            assert all(column.dtype == np.int64 for column in placed)
    return batches


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_the_two_views_agree(data):
    spec = data.draw(specs())
    n, T = spec.num_examples, spec.num_steps
    R = schedule(spec, KEY).tile_rows
    edge = st.integers(0, n // R).map(lambda k: k * R)
    row = st.one_of(st.integers(0, n), edge, st.just(n))
    ranges = [tuple(sorted((data.draw(row), data.draw(row)))) for _ in range(2)]
    steps = sorted(data.draw(st.sets(st.integers(0, T - 1))))
    check_views(spec, ranges=[*ranges, (0, n)], steps=steps)


@pytest.mark.parametrize(
    "spec",
    [
        Poisson(num_examples=1, batch_size=1, num_steps=1),
        TruncatedPoisson(num_examples=1, batch_size=1, num_steps=1, max_batch_size=1),
        FixedSizeSampling(num_examples=1, batch_size=1, num_steps=1),
        *(kind(num_examples=1, batch_size=1, num_steps=1) for kind in WALKS),
        *(kind(num_examples=7, batch_size=7, num_steps=3) for kind in WALKS),
        Poisson(num_examples=7, batch_size=7, num_steps=3),
        FixedSizeSampling(num_examples=7, batch_size=7, num_steps=3),
        TruncatedPoisson(num_examples=900, batch_size=300, num_steps=9, max_batch_size=300),
        Poisson(num_examples=10_000, batch_size=1, num_steps=40),
        FixedSizeSampling(num_examples=10_000, batch_size=1, num_steps=40),
    ],
    ids=lambda spec: f"{spec.name}-{spec.num_examples}-{spec.batch_size}",
)
def test_the_two_views_agree_in_the_corners(spec):
    n = spec.num_examples
    batches = check_views(spec, ranges=[(0, n), (0, 0), (n, n), (n - 1, n), (n // 3, n // 2)])
    if spec.batch_size == n:
        assert all(batch.tolist() == list(range(n)) for batch in batches)


@pytest.mark.parametrize("kind", [PersistentShuffle, DynamicShuffle, BallsAndBins])
@pytest.mark.parametrize(("S", "b"), [(64, 1500), (33, 700), (130, 700)])
def test_the_two_views_agree_over_many_large_tiles(kind, S, b):
    spec = kind(num_examples=S * b, batch_size=b, num_steps=2 * S)
    s = schedule(spec, KEY)
    assert s.tile_rows > permutation.SORTED_ROWS / 2
    assert spec.num_examples > 4 * s.tile_rows
    batches = list(s.batches())
    R = s.tile_rows
    for start, stop in ((0, R), (R - 3, 2 * R + 5), (spec.num_examples - 10, spec.num_examples)):
        step, slot, row = s.placements(start, stop)
        assert all(batches[t][i] == r for t, i, r in zip(step[::37], slot[::37], row[::37], strict=True))
        assert np.array_equal(np.sort(row), np.repeat(np.arange(start, stop), 2))
    for t in (0, S - 1, S, 2 * S - 1):
        assert np.array_equal(s.members(t), batches[t])


@settings(deadline=None, max_examples=60)
@given(specs(largest=600))
def test_sizes_are_what_each_sampler_promises(spec):
    s = schedule(spec, KEY)
    n, b, sizes = spec.num_examples, spec.batch_size, s.sizes()
    assert len(sizes) == spec.num_steps
    if isinstance(spec, Deterministic | PersistentShuffle | DynamicShuffle | FixedSizeSampling):
        assert (sizes == b).all()
    if isinstance(spec, TruncatedPoisson):
        assert (sizes <= spec.max_batch_size).all()
    if isinstance(spec, WALKS):
        S = spec.steps_per_epoch
        for e in range(spec.whole_epochs):
            rows = np.concatenate(list(s.batches(e * S, (e + 1) * S)))
            assert np.array_equal(np.sort(rows), np.arange(n))


def test_deterministic_batches_are_in_row_order():
    s = schedule(Deterministic(num_examples=12, batch_size=3, num_steps=8), KEY)
    assert [s.members(t).tolist() for t in (0, 3, 4, 7)] == [[0, 1, 2], [9, 10, 11], [0, 1, 2], [9, 10, 11]]


def test_persistent_shuffle_repeats_its_first_epoch_and_dynamic_shuffle_does_not():
    persistent = schedule(PersistentShuffle(num_examples=60, batch_size=10, num_steps=18), KEY)
    dynamic = schedule(DynamicShuffle(num_examples=60, batch_size=10, num_steps=18), KEY)
    for t in range(6):
        assert np.array_equal(persistent.members(t), persistent.members(t + 12))
        assert np.array_equal(persistent.members(t), dynamic.members(t))
        assert not np.array_equal(dynamic.members(t), dynamic.members(t + 6))


def test_a_cut_batch_is_part_of_the_uncut_one_and_larger_caps_keep_more():
    plain = schedule(Poisson(num_examples=4000, batch_size=900, num_steps=20), KEY)
    cuts = [
        schedule(TruncatedPoisson(num_examples=4000, batch_size=900, num_steps=20, max_batch_size=cap), KEY)
        for cap in (900, 905, 4000)
    ]
    over = 0
    for t in range(20):
        small, large, uncut = (set(s.members(t).tolist()) for s in cuts)
        assert small <= large <= uncut == set(plain.members(t).tolist())
        over += len(uncut) > 900
    assert over > 3


def test_the_schedule_of_fewer_steps_is_the_beginning_of_the_longer_one():
    short, long = (schedule(Poisson(num_examples=4000, batch_size=90, num_steps=T), KEY) for T in (3, 30))
    assert all(np.array_equal(short.members(t), long.members(t)) for t in range(3))


def test_other_keys_give_other_batches():
    spec = Poisson(num_examples=4000, batch_size=90, num_steps=3)
    assert not np.array_equal(schedule(spec, KEY).members(0), schedule(spec, Key.for_tests(2)).members(0))


def test_threads_read_the_same_batches():
    s = schedule(DynamicShuffle(num_examples=64_000, batch_size=1000, num_steps=128), KEY)
    expected, wrong = [s.members(t) for t in range(128)], []
    fresh = schedule(s.spec, KEY)

    def read(i):
        for t in np.random.default_rng(i).permutation(128)[:40].tolist():
            if not np.array_equal(fresh.members(t), expected[t]):
                wrong.append(t)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_returned_arrays_belong_to_the_caller():
    s = schedule(Poisson(num_examples=4000, batch_size=90, num_steps=6), KEY)
    for batch in s.batches():
        batch[:] = -1
    first = s.members(0)
    first[:] = -1
    assert s.members(0)[0] >= 0


# --- Scale and memory ---

HUGE = TruncatedPoisson(num_examples=10**11, batch_size=10**5, num_steps=10**6, max_batch_size=10**5 + 2_000)


def test_a_shard_of_a_huge_spec_is_placed_in_bounded_memory():
    s = schedule(HUGE, KEY)
    start = 10**11 // 2
    s.placements(start, start + 1000, steps=range(10))
    tracemalloc.start()
    placed = s.placements(start, start + 10**6, steps=range(500_000, 510_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 9_000 < len(placed.row) < 11_000
    assert peak < 48 * 2**20
    for i in (0, 5000, len(placed.row) - 1):
        assert s.members(int(placed.step[i]))[placed.slot[i]] == placed.row[i]


@pytest.mark.parametrize(
    "spec",
    [
        Poisson(num_examples=46_000_000, batch_size=65_536, num_steps=5),
        FixedSizeSampling(num_examples=46_000_000, batch_size=65_536, num_steps=5),
        DynamicShuffle(num_examples=701 * 65_536, batch_size=65_536, num_steps=701),
        BallsAndBins(num_examples=701 * 65_536, batch_size=65_536, num_steps=701),
    ],
    ids=lambda spec: spec.name,
)
def test_members_needs_no_memory_in_proportion_to_the_rows(spec):
    tracemalloc.start()
    batch = schedule(spec, KEY).members(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(batch) > 60_000
    assert peak < 48 * 2**20 < spec.num_examples * 8 / 7


def test_row_ids_beyond_32_bits_are_exact():
    s = schedule(Poisson(num_examples=2**62, batch_size=300, num_steps=4), KEY)
    rows = np.concatenate(list(s.batches()))
    assert (rows >= 0).all()
    assert len(np.unique(rows % 1024)) > 600
    step, slot, row = s.placements(0, 2**62, steps=[2])
    assert np.array_equal(row, s.members(2))
    assert (step == 2).all()
    assert np.array_equal(slot, np.arange(len(row)))


def test_steps_far_apart_are_reached_directly():
    s = schedule(Poisson(num_examples=10**6, batch_size=100, num_steps=2**40), KEY)
    assert 30 < len(s.members(2**40 - 1)) < 200
    assert len(s.placements(0, 10**6, steps=[0, 2**39, 2**40 - 1]).row) > 150


# --- Facts about a schedule ---


def test_fingerprint_is_of_the_spec_and_scheme_and_not_of_the_key():
    spec = Poisson(num_examples=10, batch_size=2, num_steps=5)
    assert SCHEME == "truebatch-schedule/1"
    assert schedule(spec, KEY).fingerprint() == schedule(spec, Key.generate()).fingerprint()
    text = (
        '{"scheme":"truebatch-schedule/1",'
        '"spec":{"batch_size":2,"num_examples":10,"num_steps":5,"sampler":"poisson"}}'
    )
    assert schedule(spec, KEY).fingerprint() == hashlib.sha256(text.encode()).hexdigest()
    others = [
        Poisson(num_examples=11, batch_size=2, num_steps=5),
        Poisson(num_examples=10, batch_size=2, num_steps=6),
        FixedSizeSampling(num_examples=10, batch_size=2, num_steps=5),
        TruncatedPoisson(num_examples=10, batch_size=2, num_steps=5, max_batch_size=4),
        TruncatedPoisson(num_examples=10, batch_size=2, num_steps=5, max_batch_size=5),
    ]
    prints = {schedule(other, KEY).fingerprint() for other in [spec, *others]}
    assert len(prints) == len(others) + 1


@settings(deadline=None, max_examples=60)
@given(specs())
def test_sampling_prob_is_what_is_drawn(spec):
    q = schedule(spec, KEY).sampling_prob
    exact = Fraction(spec.batch_size, spec.num_examples)
    if isinstance(spec, Poisson | TruncatedPoisson):
        assert (q * 2**64).denominator == 1
        assert 0 <= exact - q < Fraction(1, 2**64)
    else:
        assert q == exact


@settings(deadline=None, max_examples=60)
@given(specs())
def test_statistical_distance_is_tiny_and_grows_with_the_schedule(spec):
    distance = schedule(spec, KEY).statistical_distance
    assert 0 <= distance < 1e-20
    assert (distance == 0) == isinstance(spec, Deterministic)


def test_statistical_distance_of_a_huge_schedule_is_still_far_below_any_delta():
    assert 0 < schedule(HUGE, KEY).statistical_distance < 1e-12


def test_neither_repr_nor_pickle_gives_the_key_away():
    key = Key.from_bytes(bytes(range(100, 132)))
    s = schedule(Poisson(num_examples=10, batch_size=2, num_steps=5), key)
    assert "num_examples=10" in repr(s)
    assert s.fingerprint()[:16] in repr(s)
    assert key.to_bytes().hex() not in repr(s)
    with pytest.raises(InvalidKey, match="to_bytes"):
        pickle.dumps(s)


# --- Bad input ---


@pytest.fixture
def small():
    return schedule(Poisson(num_examples=100, batch_size=10, num_steps=5), KEY)


@pytest.mark.parametrize("step", [-1, 5, 2**70, -(2**70)])
def test_steps_out_of_range_are_refused_with_the_range(small, step):
    with pytest.raises(InvalidArgument, match=rf"from 0 to num_steps-1; got step={step}, num_steps=5"):
        small.members(step)


@pytest.mark.parametrize("step", [1.0, "1", None, True, [1], np.float64(2), np.bool_(True)])
def test_steps_that_are_not_whole_numbers_are_refused(small, step):
    with pytest.raises(InvalidArgument, match="step must be a whole number"):
        small.members(step)


@pytest.mark.parametrize(("start", "stop"), [(-1, 5), (5, 4), (0, 101), (101, 101), (2**70, 2**70)])
def test_rows_out_of_range_are_refused_with_the_values(small, start, stop):
    with pytest.raises(InvalidArgument, match=rf"got start={start}, stop={stop}, num_examples=100"):
        small.placements(start, stop)


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (3, 2), (0, 6), (6, 6)])
def test_step_ranges_out_of_range_are_refused(small, first, last):
    for call in (small.sizes, small.batches):
        with pytest.raises(InvalidArgument, match=f"got start_step={first}, stop_step={last}, num_steps=5"):
            call(first, last)


@pytest.mark.parametrize("steps", [[0, 5], [-1, 2], range(3, 8), range(-2, 2), np.array([7]), range(0, 9, 2)])
def test_step_lists_out_of_range_are_refused(small, steps):
    with pytest.raises(InvalidArgument, match="num_steps=5"):
        small.placements(0, 10, steps=steps)


@pytest.mark.parametrize("steps", [[2, 1], [1, 1], range(4, 0, -1)])
def test_step_lists_must_increase(small, steps):
    with pytest.raises(InvalidArgument, match="increasing"):
        small.placements(0, 10, steps=steps)


@pytest.mark.parametrize("steps", [[0.5], ["a"], 3, [[1, 2]], "abc", [True, False], [[1], [1, 2]], [2**80]])
def test_step_lists_must_be_lists_of_whole_numbers(small, steps):
    with pytest.raises(InvalidArgument, match="steps must be"):
        small.placements(0, 10, steps=steps)


@pytest.mark.parametrize("steps", [[], range(0), np.array([], dtype=np.int64), range(5, 5), range(9, 9)])
def test_no_steps_give_no_placements(small, steps):
    assert [len(column) for column in small.placements(0, 100, steps=steps)] == [0, 0, 0]


def test_numpy_integers_are_fine(small):
    assert np.array_equal(small.members(np.int32(3)), small.members(3))
    assert np.array_equal(
        small.placements(np.int64(0), np.uint8(50), steps=np.array([1, 3], dtype=np.uint8)).row,
        small.placements(0, 50, steps=[1, 3]).row,
    )


@pytest.mark.parametrize("key", [bytes(32), "key", None, 5])
def test_only_keys_open_a_schedule(key):
    with pytest.raises(InvalidKey, match=f"type {type(key).__name__}"):
        schedule(Poisson(num_examples=10, batch_size=2, num_steps=5), key)


@pytest.mark.parametrize("spec", [None, "poisson", {"sampler": "poisson"}, Poisson])
def test_only_samplers_have_schedules(spec):
    with pytest.raises(InvalidArgument, match="spec must be a sampler"):
        schedule(spec, KEY)


def test_a_sampler_of_no_known_kind_is_refused():
    with pytest.raises(InvalidArgument, match="one of truebatch's samplers"):
        schedule(Sampler(num_examples=10, batch_size=2, num_steps=5), KEY)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (Poisson(num_examples=10, batch_size=2, num_steps=2**40 + 1), "num_steps"),
        (Poisson(num_examples=2**40, batch_size=2**32 + 1, num_steps=1), "batch_size"),
        (DynamicShuffle(num_examples=2**45, batch_size=2**30, num_steps=2**15), "num_examples"),
        (BallsAndBins(num_examples=2**28, batch_size=1, num_steps=2**28), "num_examples/batch_size"),
    ],
)
def test_specs_past_the_scheme_are_refused_when_the_schedule_is_made(spec, name):
    with pytest.raises(InvalidSpec, match=f"{name} must be at most 2\\^"):
        schedule(spec, KEY)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_bad_input_raises_our_errors_and_nothing_else(data):
    anything = st.one_of(
        st.integers(-(2**70), 2**70),
        st.integers(-3, 120),
        st.floats(),
        st.text(),
        st.none(),
        st.booleans(),
        st.lists(st.integers(-2, 9)),
        st.binary(),
    )
    s = schedule(data.draw(specs(largest=60)), KEY)
    calls = (
        lambda: s.members(data.draw(anything)),
        lambda: s.sizes(data.draw(anything), data.draw(anything)),
        lambda: s.placements(data.draw(anything), data.draw(anything)),
        lambda: s.placements(0, 1, steps=data.draw(anything)),
        lambda: list(s.batches(data.draw(anything))),
    )
    for call in calls:
        with contextlib.suppress(TruebatchError):
            call()
