import pytest

from truebatch.experiments.sigma_grids import (
    BATCH_SIZES,
    EPSILONS,
    Question,
    amplification,
    by_batch_size,
    by_epochs,
    by_epsilon,
    nominal_epochs,
    paper_specs,
)
from truebatch.specs import TruncatedPoisson

CAPS_BY_BATCH_SIZE = (
    1328,
    2469,
    4681,
    9007,
    17520,
    34355,
    67754,
    134172,
    266474,
)  # the last, in print: 266475
CAPS_BY_EPSILON = (67642, 67667, 67725, 67841, 68059, 68449, 69106, 70156, 71760)
SAMPLERS = {
    "deterministic",
    "poisson",
    "truncated_poisson",
    "persistent_shuffle",
    "dynamic_shuffle",
    "balls_and_bins",
}


def _caps(points, num_epochs):
    return tuple(
        point.spec.max_batch_size
        for point in points
        if isinstance(point.spec, TruncatedPoisson) and nominal_epochs(point.spec) == num_epochs
    )


def test_batch_sizes_are_the_papers_with_its_caps():
    points = by_batch_size()
    assert BATCH_SIZES == (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144)
    assert _caps(points, 1) == CAPS_BY_BATCH_SIZE
    assert {(p.epsilon, p.delta) for p in points} == {(5.0, 2.7e-8)}
    assert len(points) == 9 * 2 * 6
    assert {nominal_epochs(p.spec) for p in points} == {1, 5}


def test_epsilons_are_the_papers_with_its_caps():
    points = by_epsilon()
    assert EPSILONS == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert _caps(points, 1) == CAPS_BY_EPSILON
    assert {p.spec.batch_size for p in points} == {65536}
    assert len(points) == 9 * 2 * 6


def test_epochs_go_from_one_to_fifty():
    points = by_epochs()
    assert [nominal_epochs(p.spec) for p in points if p.curve == "dynamic_shuffle"] == list(range(1, 51))
    assert {(p.spec.batch_size, p.epsilon) for p in points} == {(65536, 5.0)}


def test_appendix_c_has_one_epoch_and_two_readings_of_delta0():
    points = amplification()
    curves = {p.curve for p in points}
    assert curves == {"deterministic", "persistent_shuffle", Question.CLONES_STEPS, Question.CLONES_EXAMPLES}
    assert {nominal_epochs(p.spec) for p in points} == {1}
    assert len(points) == 9 * 4


@pytest.mark.parametrize("batch_size", BATCH_SIZES)
@pytest.mark.parametrize("num_epochs", [1, 5])
def test_every_sampler_takes_the_same_steps_and_whole_epoch_ones_the_nearest_valid_n(batch_size, num_epochs):
    specs = paper_specs(batch_size=batch_size, num_epochs=num_epochs, epsilon=5.0, delta=2.7e-8)
    assert {spec.name for spec in specs} == SAMPLERS
    assert len({spec.num_steps for spec in specs}) == 1
    for spec in specs:
        assert nominal_epochs(spec) == num_epochs
        if "poisson" in spec.name:
            assert spec.num_examples == 36672493
        else:
            assert spec.num_examples % batch_size == 0
            assert abs(spec.num_examples - 36672493) <= batch_size / 2


def test_dear_bounds_are_asked_for_only_where_some_sampler_has_them():
    dear = {p.curve for p in by_batch_size(dear=True) if p.dear}
    assert dear == {"persistent_shuffle", "dynamic_shuffle", "balls_and_bins"}
    assert {p.curve for p in by_batch_size() if p.dear} == {"balls_and_bins"}


def test_balls_and_bins_takes_its_own_bounds_where_they_take_seconds():
    asked = [p for p in (*by_batch_size(), *by_epsilon(), *by_epochs()) if p.dear]
    assert {p.curve for p in asked} == {"balls_and_bins"}
    assert max(p.epsilon for p in asked) == 32
    assert {nominal_epochs(p.spec) for p in by_epochs() if p.dear} == {1, 2, 3, 4, 5, 10, 20, 30, 40, 50}


def test_the_same_setting_is_the_same_point_in_every_figure():
    shared = set(by_batch_size()) & set(by_epochs())
    assert {(p.spec.batch_size, nominal_epochs(p.spec)) for p in shared} == {(65536, 1), (65536, 5)}
    assert {p.curve for p in shared} == SAMPLERS
