import dataclasses
import functools
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_runs import KEY, MODEL, SPEC, gathered, rows

from truebatch import DynamicShuffle, Key, Poisson, accounting, schedule
from truebatch.errors import (
    CheckpointMismatch,
    InvalidArgument,
    InvalidData,
    InvalidLoss,
    NotFinite,
    PrivacyMismatch,
    TruebatchError,
)
from truebatch.training.privacy import NoPrivacy, Privacy
from truebatch.training.train import Progress, Trained, train

PRIVATE = Privacy(spec=SPEC, clip_norm=0.5, delta=1e-5, sigma=0.8)
NOISELESS = dataclasses.replace(PRIVATE, sigma=0.0)


def run(**changes: Any) -> Trained:
    given: dict[str, Any] = {"key": KEY, "privacy": PRIVATE, "optimizer": optax.sgd(0.3), "spec": SPEC}
    given |= changes
    model, batches = given.pop("model", MODEL), given.pop("batches", gathered())
    return train(model, batches, **given)


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(params)])


@functools.cache
def gradient_of_sum() -> Any:
    return jax.jit(jax.grad(lambda p, batch, real: (jax.vmap(MODEL.loss, (None, 0))(p, batch) * real).sum()))


@functools.cache
def plain_sgd(num_steps: int, *, divide_by: str) -> np.ndarray:
    """The same run without this package's training: float64, one gradient of the summed loss a step."""
    with jax.enable_x64(True):
        data = rows()
        params = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), MODEL.init(0))
        total = gradient_of_sum()
        for members in schedule(SPEC, KEY).batches(0, num_steps):
            filled = np.resize(members, SPEC.max_batch_size)
            real = np.arange(SPEC.max_batch_size) < len(members)
            gradient = total(params, {name: column[filled] for name, column in data.items()}, real)
            size = {"b": SPEC.batch_size, "realised": len(members), "B": SPEC.max_batch_size}[divide_by]
            params = jax.tree.map(lambda p, g, size=size: p - 0.3 * g / size, params, gradient)
        return flat(params)


@pytest.mark.parametrize("road", ["layers", "examples"])
@pytest.mark.parametrize("privacy", [dataclasses.replace(NOISELESS, clip_norm=1e6), NoPrivacy()])
def test_without_noise_and_with_a_huge_clip_norm_a_run_is_plain_sgd(privacy: Any, road: Any) -> None:
    found = flat(run(privacy=privacy, road=road).params)
    right = plain_sgd(SPEC.num_steps, divide_by="b")
    assert np.abs(found - right).max() < 1e-5 * np.abs(right).max()


def test_dividing_by_anything_but_b_is_told_apart() -> None:
    found = flat(run(privacy=NoPrivacy()).params)
    for divide_by in ("realised", "B"):
        wrong = plain_sgd(SPEC.num_steps, divide_by=divide_by)
        assert np.abs(found - wrong).max() > 1e-3 * np.abs(wrong).max()


@functools.cache
def as_given() -> np.ndarray:
    return flat(run().params)


@pytest.mark.parametrize("padding", [math.nan, -1.0])
def test_what_padding_holds_never_moves_the_result(padding: float) -> None:
    assert np.array_equal(flat(run(batches=gathered(padding=padding)).params), as_given())


def test_the_noise_of_a_step_is_sigma_times_the_clip_norm_over_b() -> None:
    noisy = flat(run(model=constant_model(3000), params={"w": jnp.zeros(3000)}, road="examples").params)
    # SGD on zero gradients: what is left is the sum of T independent draws.
    expected = 0.3 * PRIVATE.sigma * PRIVATE.clip_norm / SPEC.batch_size * math.sqrt(SPEC.num_steps)
    assert abs(noisy.std() / expected - 1) < 6 / math.sqrt(2 * 3000)


def constant_model(size: int) -> Any:
    return lambda params, example: 0.0 * params["w"].sum() + example["i"].sum()


def test_empty_batches_add_noise_and_step() -> None:
    spec = dataclasses.replace(SPEC, num_steps=5)
    empty = [
        {name: np.zeros_like(x[:60]) for name, x in rows().items()} | {"weight": np.zeros(60, np.float32)}
    ] * 5
    steps: list[int] = []
    done = run(
        batches=empty,
        spec=spec,
        privacy=dataclasses.replace(PRIVATE, spec=spec),
        watch=lambda progress: steps.append(progress.step),
    )
    assert steps == [1, 2, 3, 4, 5]
    assert (flat(done.params) != 0).all()


def test_the_same_key_gives_the_same_bits_and_another_key_does_not() -> None:
    assert np.array_equal(flat(run().params), as_given())
    assert not np.array_equal(flat(run(key=Key.for_tests(12)).params), as_given())


def test_training_leaves_the_callers_parameters_alone() -> None:
    params = MODEL.init(0)
    run(params=params)
    assert (flat(params) == 0).all()


def test_a_private_run_learns_and_says_what_may_be_claimed() -> None:
    validation = rows(2000, seed=1)
    done = run(privacy=Privacy(spec=SPEC, clip_norm=1.0, delta=1e-5, epsilon=8.0), validation=validation)
    assert done.metrics["loss"] < 0.65
    assert done.metrics["auc"] > 0.7
    assert done.claim.is_private
    assert done.claim.epsilon is not None
    assert 7.99 < done.claim.epsilon <= 8.0
    needed = accounting.sigma(SPEC, epsilon=8.0, delta=1e-5).upper.value
    assert needed < done.claim.sigma < 1.001 * needed
    assert "at most 8 (may claim 8) at delta = 1e-05 (zero-out)" in str(done)


# The wrong pairing, and none.

SHUFFLED = DynamicShuffle(num_examples=900, batch_size=30, num_steps=30)


def test_noise_of_another_sampler_is_refused_unless_named_and_then_printed() -> None:
    batches = gathered(spec=SHUFFLED, size=30)
    privacy = dataclasses.replace(PRIVATE, spec=Poisson(num_examples=900, batch_size=30, num_steps=30))
    with pytest.raises(PrivacyMismatch, match='accounted_as="Poisson"'):
        run(batches=batches, spec=SHUFFLED, privacy=privacy)
    with pytest.raises(PrivacyMismatch, match="accounted_as must name"):
        run(batches=batches, spec=SHUFFLED, privacy=privacy, accounted_as="Deterministic")
    with pytest.raises(PrivacyMismatch, match="leave accounted_as out"):
        run(accounted_as="TruncatedPoisson")
    with pytest.raises(PrivacyMismatch, match="nothing is accounted for"):
        run(privacy=NoPrivacy(), accounted_as="TruncatedPoisson")
    done = run(batches=batches, spec=SHUFFLED, privacy=privacy, accounted_as="Poisson")
    assert not done.claim.is_private
    assert "NOT GUARANTEED" in str(done)
    assert done.claim.as_dict()["accounted_as"] == "poisson"


def test_a_run_without_privacy_claims_nothing() -> None:
    done = run(privacy=NoPrivacy())
    assert "not private" in str(done)
    assert done.claim.epsilon is None
    assert not done.claim.is_private


# What leaves a run.


def test_progress_is_free_of_realised_sizes_and_knows_epsilon_so_far() -> None:
    seen: list[Progress] = []
    run(watch=seen.append)
    assert [progress.step for progress in seen] == list(range(1, 41))
    late = seen[35].epsilon()
    right = accounting.epsilon(dataclasses.replace(SPEC, num_steps=36), sigma=0.8, delta=1e-5).upper.value
    assert late is not None
    assert right <= late < right * 1.001


def test_curves_hold_the_claim_the_metrics_and_no_private_loss_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "curves.csv"
    run(curves=path, validation=rows(500, seed=1), evaluate_every=20)
    lines = path.read_text().splitlines()
    assert lines[0].startswith("# epsilon ")
    assert lines[1] == "step,seconds,epsilon,loss,auc"
    assert [line.split(",")[0] for line in lines[2:]] == ["20", "40"]
    run(curves=path, evaluate_every=20, with_private_loss=True)
    assert path.read_text().splitlines()[1].endswith(",private_loss_not_covered")


# Bad input, each refused before the first step.


def with_column(name: str, change: Any) -> list[dict[str, Any]]:
    batches = list(gathered())
    return [{**batches[0], name: change(batches[0][name])}, *batches[1:]]


def two_labels(labels: Any) -> Any:
    changed = np.array(labels)
    changed[0] = 2
    return changed


REFUSED: dict[str, tuple[dict[str, Any], type[TruebatchError], str]] = {
    "labels outside their range": (
        {"batches": with_column("label", two_labels)},
        InvalidData,
        "column 'label' must be from 0 to 1",
    ),
    "buckets outside the tables": ({"batches": with_column("c", lambda c: c + 5)}, InvalidData, "column 'c'"),
    "columns of other shapes": ({"batches": with_column("i", lambda i: i[:, :2])}, InvalidLoss, "float32"),
    "columns of another length": (
        {"batches": with_column("i", lambda i: i[:9])},
        InvalidData,
        "one row for each",
    ),
    "no weights": (
        {"batches": [{k: v for k, v in batch.items() if k != "weight"} for batch in gathered()]},
        InvalidData,
        "must have a column 'weight'",
    ),
    "too few batches": ({"batches": list(gathered())[:-1]}, InvalidData, "a batch for every step"),
    "batches of another size": (
        {"batches": [{k: v[:50] for k, v in batch.items()} for batch in gathered()]},
        InvalidData,
        "must have 60 rows",
    ),
    "an iterator": ({"batches": iter(gathered())}, InvalidArgument, "iterable more than once"),
    "no spec": ({"spec": None}, InvalidArgument, "needs the spec"),
    "a loss that is not per example": (
        {"model": lambda p, e: jnp.ones(3), "params": {"w": jnp.zeros(3)}},
        InvalidLoss,
        "one float",
    ),
    "a loss without parameters": ({"model": MODEL.loss}, InvalidArgument, "params to begin with"),
    "parameters of another type": ({"params": {"w": jnp.zeros(3, jnp.int32)}}, InvalidLoss, "float32"),
    "no optimizer": ({"optimizer": 0.1}, InvalidArgument, "init and update"),
    "no model": ({"model": 3}, InvalidArgument, "must be a Model"),
    "an unknown road": ({"road": "fast"}, InvalidArgument, "road must be"),
    "a road that is closed": (
        {
            "model": lambda p, e: p["w"] * e["i"].sum(),
            "params": {"w": jnp.zeros(())},
            "road": "layers",
        },
        InvalidLoss,
        "belongs to no layer",
    ),
    "a cadence of zero": ({"evaluate_every": 0}, InvalidArgument, "positive whole number"),
    "micro-batches of nothing": ({"micro_batch": 0}, InvalidArgument, "micro_batch must be"),
    "validation rows without a column": (
        {"validation": {"i": rows()["i"], "label": rows()["label"]}},
        InvalidData,
        "needs a column 'c'",
    ),
    "validation labels outside their range": (
        {"validation": rows() | {"label": rows()["label"] + 1}},
        InvalidData,
        "the validation rows",
    ),
    "another spec than the noise is for": (
        {"privacy": dataclasses.replace(PRIVATE, spec=dataclasses.replace(SPEC, num_steps=20))},
        PrivacyMismatch,
        "calibrated for",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_is_refused_before_the_first_step(name: str) -> None:
    changes, kind, message = REFUSED[name]
    steps: list[int] = []
    with pytest.raises(kind, match=message):
        run(**changes, watch=lambda progress: steps.append(progress.step))
    assert not steps


def test_a_batch_of_another_shape_later_on_is_refused() -> None:
    batches = list(gathered())
    batches[3] = batches[3] | {"i": batches[3]["i"][:, :2]}
    with pytest.raises(InvalidData, match="at step 3"):
        run(batches=batches)


def test_what_is_no_longer_finite_stops_the_run() -> None:
    with pytest.raises(NotFinite, match="finite"):
        run(privacy=NoPrivacy(), optimizer=optax.sgd(math.inf), evaluate_every=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm must be a positive number"),
        ({"clip_norm": math.nan}, "clip_norm must be a positive number"),
        ({"delta": 0.0}, "delta must be above 0"),
        ({"sigma": None}, "one of epsilon and sigma"),
        ({"epsilon": 1.0}, "one of epsilon and sigma"),
        ({"sigma": -1.0}, "sigma must be a number from 0 on"),
    ],
)
def test_privacy_that_cannot_be_is_refused_when_stated(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        dataclasses.replace(PRIVATE, **changes)


def test_nothing_is_compiled_after_the_first_step_whatever_the_batch_sizes() -> None:
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, *_, **__: compiled.append(event))
    counts: list[int] = []
    try:
        run(
            evaluate_every=SPEC.num_steps,
            watch=lambda _: counts.append(sum("backend_compile" in event for event in compiled)),
        )
    finally:
        jax.monitoring.clear_event_listeners()
    assert counts[0] > 0
    assert set(counts[:-1]) == {counts[0]}  # The last step checks that all is finite.


# Several devices.

ON_EIGHT = """
import jax, numpy as np, optax
from small_runs import KEY, MODEL, SPEC, gathered
from truebatch.training.privacy import Privacy
from truebatch.training.train import train

assert len(jax.devices()) == 8
privacy = Privacy(spec=SPEC, clip_norm=0.5, delta=1e-5, sigma=0.8)
for devices in (None, jax.devices()[:2], jax.devices()):
    done = train(
        MODEL, gathered(), spec=SPEC, key=KEY, privacy=privacy, optimizer=optax.sgd(0.3), devices=devices
    )
    leaves = [np.asarray(leaf, np.float64).reshape(-1) for leaf in jax.tree.leaves(done.params)]
    print(*np.concatenate(leaves).tolist())
"""


def test_a_run_on_eight_devices_is_that_on_one_up_to_rounding_and_adds_its_noise_once() -> None:
    support = Path(__file__).parents[1] / "support"
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(support)}
    done = subprocess.run(
        [sys.executable, "-c", ON_EIGHT], capture_output=True, text=True, check=False, env=os.environ | flags
    )
    assert not done.returncode, done.stderr
    one, two, eight = (np.array(line.split(), np.float64) for line in done.stdout.splitlines())
    # The noise alone moves parameters by some hundredths: another draw, or a second one, would show.
    assert np.abs(one - two).max() < 1e-5
    assert np.abs(one - eight).max() < 1e-5
    assert np.array_equal(one, as_given())


# Stopping and going on.


class Killed(Exception):
    """Stands for whatever ends a process between two steps."""


def stop_at(step: int) -> Any:
    def watch(progress: Progress) -> None:
        if progress.step == step:
            raise Killed

    return watch


def test_a_run_stopped_again_and_again_ends_with_the_bits_of_one_left_alone(tmp_path: Path) -> None:
    optimizer = optax.adam(0.05)
    right = run(optimizer=optimizer).params
    for step in (1, 8, 10, 33):
        with pytest.raises(Killed):
            run(optimizer=optimizer, checkpoints=tmp_path, checkpoint_every=3, watch=stop_at(step))
    done = run(optimizer=optimizer, checkpoints=tmp_path, checkpoint_every=3)
    assert np.array_equal(flat(done.params), flat(right))
    again = run(optimizer=optimizer, checkpoints=tmp_path, watch=stop_at(0), validation=rows(50, seed=1))
    assert np.array_equal(flat(again.params), flat(right))
    assert again.metrics["loss"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": Key.for_tests(12)}, "key_check"),
        ({"privacy": dataclasses.replace(PRIVATE, sigma=0.9)}, "sigma"),
        ({"privacy": NoPrivacy()}, "private"),
        ({"optimizer": optax.adam(0.3)}, "fit the model and the optimizer"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Killed):
        run(checkpoints=tmp_path, checkpoint_every=1, watch=stop_at(2))
    steps: list[int] = []
    with pytest.raises(CheckpointMismatch, match=message):
        run(checkpoints=tmp_path, watch=lambda progress: steps.append(progress.step), **changes)
    assert not steps


def test_curves_go_on_where_the_run_does(tmp_path: Path) -> None:
    given = {
        "checkpoints": tmp_path / "held",
        "checkpoint_every": 10,
        "evaluate_every": 5,
        "curves": tmp_path / "c",
    }
    with pytest.raises(Killed):
        run(**given, watch=stop_at(18))
    run(**given)
    steps = [line.split(",")[0] for line in (tmp_path / "c").read_text().splitlines()[2:]]
    assert steps == [str(step) for step in range(5, 41, 5)]


KILLED_RUN = """
import sys
import numpy as np, jax, optax
from small_runs import KEY, MODEL, SPEC, gathered
from truebatch.training.privacy import Privacy
from truebatch.training.train import train

done = train(
    MODEL, gathered(), spec=SPEC, key=KEY, privacy=Privacy(spec=SPEC, clip_norm=0.5, delta=1e-5, sigma=0.8),
    optimizer=optax.adam(0.05), checkpoints=sys.argv[1] or None, checkpoint_every=1,
    watch=lambda progress: print(progress.step, flush=True),
)
print("digest", b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(done.params)).hex(), flush=True)
"""


@pytest.mark.slow
def test_a_run_killed_twenty_times_ends_with_the_bits_of_one_left_alone(tmp_path: Path) -> None:
    def started(directory: str) -> subprocess.Popen[str]:
        support = Path(__file__).parents[1] / "support"
        command = [sys.executable, "-c", KILLED_RUN, directory]
        environment = os.environ | {"PYTHONPATH": str(support)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)

    right = started("").communicate()[0].splitlines()[-1]
    rng = np.random.default_rng(6)
    for _ in range(20):
        process = started(str(tmp_path))
        assert process.stdout is not None
        for _ in range(int(rng.integers(1, 3))):
            process.stdout.readline()
        time.sleep(float(rng.uniform(0, 0.02)))  # In the middle of whatever it then does, writing included.
        process.kill()
        process.communicate()
    found = started(str(tmp_path)).communicate()[0].splitlines()[-1]
    assert right.startswith("digest ")
    assert found == right
