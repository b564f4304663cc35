import jax.numpy as jnp
import numpy as np
import pytest

from truebatch import BallsAndBins, DynamicShuffle, Key, Poisson, TruncatedPoisson, schedule
from truebatch.audit import OurStep, Rows, sums_from_parameters
from truebatch.batching.shape import WEIGHT
from truebatch.specs import Sampler
from truebatch.training import Dense, Privacy, optimizers, train

KEY = Key.for_tests(5)
# b is a power of two: dividing by it is exact, so that adding a step is rounded the same way in both.
SPEC = TruncatedPoisson(num_examples=64, batch_size=8, num_steps=12, max_batch_size=24)
DIMENSION = 7


def some_rows(spec: Sampler = SPEC, scale: float = 3.0) -> Rows:
    rng = np.random.default_rng(0)
    n = spec.num_examples
    return Rows(
        num_rows=n,
        dimension=DIMENSION,
        ids=np.arange(n),
        direction=rng.integers(0, DIMENSION, size=n),
        scale=scale * rng.normal(size=n) * (rng.random(n) < 0.9),
    )


def alike(n: int, *, dimension: int, others: float) -> Rows:
    none = np.empty(0, dtype=int)
    return Rows(
        num_rows=n, dimension=dimension, ids=none, direction=none, scale=none.astype(float), others=others
    )


@pytest.mark.parametrize("road", ["layers", "examples"])
def test_changes_add_up_to_the_parameters_of_train_bit_for_bit(road) -> None:
    rows = np.asarray(some_rows())
    drawn = schedule(SPEC, KEY)
    batches = []
    for members in drawn.batches():
        x = np.zeros((SPEC.max_batch_size, DIMENSION), np.float32)
        x[: len(members)] = rows[members]
        batches.append({"x": x, WEIGHT: (np.arange(SPEC.max_batch_size) < len(members)).astype(np.float32)})
    trained = train(
        lambda params, example: params["linear"](example["x"])[0],
        batches,
        key=KEY,
        spec=SPEC,
        privacy=Privacy(spec=SPEC, clip_norm=2.0, delta=1e-3, sigma=0.7),
        optimizer=optimizers.sgd(1.0),
        params={"linear": Dense(weight=jnp.zeros((DIMENSION, 1)))},
        road=road,
    )
    ours = OurStep(SPEC, sigma=0.7, clip_norm=2.0, road=road).changes(some_rows(), KEY)
    expected = np.asarray(trained.params["linear"].weight)[:, 0]
    assert np.cumsum(ours, axis=0, dtype=np.float32)[-1].tolist() == expected.tolist()
    assert ours.shape == (12, DIMENSION)


@pytest.mark.parametrize("kind", [Poisson, BallsAndBins, DynamicShuffle])
def test_sums_are_those_of_the_schedule_clipped_and_noised(kind) -> None:
    spec = kind(num_examples=60, batch_size=6, num_steps=10)
    rows = np.asarray(some_rows(spec))
    length = np.abs(rows).sum(axis=1)
    clipped = rows * np.minimum(1, 2.0 / np.maximum(length, 1e-9))[:, None]
    quiet = OurStep(spec, sigma=1e-4, clip_norm=2.0)(some_rows(spec), KEY)
    for members, got in zip(schedule(spec, KEY).batches(), quiet, strict=True):
        assert got == pytest.approx(clipped[members].sum(axis=0), abs=2e-3)


def test_noise_has_its_scale_in_every_direction() -> None:
    nothing = alike(64, dimension=400, others=0.0)
    step = OurStep(SPEC, sigma=0.7, clip_norm=2.0)
    sums = np.concatenate([step(nothing, Key.for_tests(i)) for i in range(3)])
    assert sums.std() == pytest.approx(1.4, rel=0.03)
    assert np.abs(np.corrcoef(sums.T) - np.eye(400)).max() < 0.85


def test_programs_are_compiled_once_for_all_keys(monkeypatch) -> None:
    traced = []

    def counted(params, example):
        traced.append(1)
        return params["linear"](example["x"])[0]

    monkeypatch.setattr("truebatch.audit.steps._linear", counted)
    step = OurStep(Poisson(num_examples=60, batch_size=6, num_steps=10), sigma=1.0)
    step(some_rows(step.spec), Key.for_tests(0))
    first = len(traced)
    for i in range(12):
        step(some_rows(step.spec), Key.for_tests(i))
    assert 0 < first == len(traced)


def test_a_batch_larger_than_all_before_is_never_cut() -> None:
    """Poisson has no cap: at b near n every row may come."""
    spec = Poisson(num_examples=40, batch_size=36, num_steps=30)
    rows = alike(40, dimension=1, others=1.0)
    sums = OurStep(spec, sigma=1e-4)(rows, KEY)[:, 0]
    assert sums == pytest.approx(schedule(spec, KEY).sizes(), abs=1e-2)


def test_sums_follow_from_parameters() -> None:
    sums = np.array([[3.0, 1.0], [-2.0, 0.5], [0.0, 4.0]])
    parameters = -np.cumsum(sums, axis=0) * 0.5 / 8
    assert sums_from_parameters(parameters, batch_size=8, learning_rate=0.5) == pytest.approx(sums)
