import pickle

import numpy as np
import pytest
from scipy.stats import chisquare

from truebatch import DynamicShuffle, Key, accounting, schedule
from truebatch.audit import BufferSchedule, BufferShuffle
from truebatch.audit.buffer_shuffle import last_row_prob
from truebatch.errors import InvalidArgument, InvalidKey, InvalidSpec
from truebatch.specs import SAMPLERS


def spec(buffer_size: int, *, n: int = 24, b: int = 4, epochs: int = 1) -> BufferShuffle:
    return BufferShuffle(num_examples=n, batch_size=b, num_steps=epochs * n // b, buffer_size=buffer_size)


@pytest.mark.parametrize("K", [1, 2, 5, 23, 24])
def test_every_row_is_in_exactly_one_batch_of_each_epoch(K: int) -> None:
    drawn = BufferSchedule(spec(K, epochs=2), Key.for_tests(0))
    batches = list(drawn.batches())
    for epoch in (batches[:6], batches[6:]):
        assert np.sort(np.concatenate(epoch)).tolist() == list(range(24))


def test_steps_and_epochs_agree_and_keys_decide() -> None:
    drawn = BufferSchedule(spec(7, epochs=2), Key.for_tests(0))
    for step, batch in enumerate(drawn.batches()):
        assert drawn.members(step).tolist() == batch.tolist()
    assert drawn.order(0).tolist() == BufferSchedule(spec(7, epochs=2), Key.for_tests(0)).order(0).tolist()
    assert drawn.order(0).tolist() != drawn.order(1).tolist()
    assert drawn.order(0).tolist() != BufferSchedule(spec(7, epochs=2), Key.for_tests(1)).order(0).tolist()


def test_a_buffer_of_one_keeps_the_order() -> None:
    assert BufferSchedule(spec(1), Key.for_tests(0)).order(0).tolist() == list(range(24))


def test_no_row_comes_out_before_the_buffer_reaches_it() -> None:
    for seed in range(50):
        position = np.argsort(BufferSchedule(spec(5), Key.for_tests(seed)).order(0))
        assert (position >= np.arange(24) - 4).all()


def positions(buffer_size: int, row: int, repetitions: int = 4000) -> np.ndarray:
    orders = [BufferSchedule(spec(buffer_size), Key.for_tests(seed)).order(0) for seed in range(repetitions)]
    return np.bincount([int(np.flatnonzero(order == row)[0]) for order in orders], minlength=24)


def test_the_last_row_is_uniform_over_the_last_outputs() -> None:
    counts = positions(5, 23)
    assert counts[:19].sum() == 0
    assert chisquare(counts[19:]).pvalue > 1e-6
    assert counts.reshape(6, 4).sum(axis=1) / 4000 == pytest.approx(last_row_prob(spec(5)), abs=0.04)


def test_the_first_row_waits_a_geometric_time_and_hides_better_than_the_last() -> None:
    counts = positions(5, 0)
    expected = 4000 * 0.2 * 0.8 ** np.arange(19)
    assert chisquare(counts[:19], expected * counts[:19].sum() / expected.sum()).pvalue > 1e-6
    first, last = counts / 4000, np.repeat(last_row_prob(spec(5)), 4) / 4

    def entropy(p: np.ndarray) -> float:
        return float(-(p[p > 0] * np.log(p[p > 0])).sum())

    assert entropy(first) > entropy(positions(5, 23) / 4000) > 0
    assert last.sum() == pytest.approx(1)


def test_a_full_buffer_is_a_full_shuffle() -> None:
    assert chisquare(positions(24, 0)).pvalue > 1e-6
    assert chisquare(positions(24, 17)).pvalue > 1e-6


def test_it_is_for_study_only() -> None:
    assert "buffer_shuffle" not in SAMPLERS
    with pytest.raises(InvalidArgument, match="one of truebatch's samplers"):
        schedule(spec(5), Key.for_tests(0))
    with pytest.raises(accounting.UnknownAnalysis, match="BufferShuffle"):
        accounting.epsilon(spec(5), sigma=1.0, delta=0.01)
    with pytest.raises(InvalidKey):
        pickle.dumps(BufferSchedule(spec(5), Key.for_tests(0)))


def test_the_end_of_the_data_is_a_shuffle_of_its_own() -> None:
    assert spec(8, epochs=3).shuffle_of_the_end == DynamicShuffle(num_examples=8, batch_size=4, num_steps=6)
    assert spec(3, epochs=3).shuffle_of_the_end == DynamicShuffle(num_examples=4, batch_size=4, num_steps=3)
    assert spec(6).shuffle_of_the_end is None


def test_a_buffer_has_a_size() -> None:
    for size in (0, 25):
        with pytest.raises(InvalidSpec, match="buffer_size"):
            spec(size)
    with pytest.raises(InvalidSpec, match="must divide"):
        BufferShuffle(num_examples=25, batch_size=4, num_steps=6, buffer_size=3)
