"""Our optimizers take Optax's steps, in place."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from truebatch.errors import InvalidArgument
from truebatch.training.optimizers import adagrad, adam, cosine_decay, sgd
from truebatch.training.update import compiled_update

SHAPES = {"table": (40, 6), "bias": (7,), "scalar": ()}
DECAY = optax.cosine_decay_schedule(0.03, 40)
PAIRS = {
    "adam": (adam(0.01), optax.adam(0.01)),
    "adam, decaying": (adam(DECAY, b1=0.8, b2=0.95, eps=1e-3), optax.adam(DECAY, b1=0.8, b2=0.95, eps=1e-3)),
    "adagrad": (adagrad(0.1), optax.adagrad(0.1)),
    "adagrad, decaying": (adagrad(DECAY, initial=0.5), optax.adagrad(DECAY, initial_accumulator_value=0.5)),
    "sgd": (sgd(0.1), optax.sgd(0.1)),
    "sgd, decaying, with momentum": (sgd(DECAY, momentum=0.9), optax.sgd(DECAY, momentum=0.9)),
}


def tree(seed: int, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=s) * scale, jnp.float32) for name, s in SHAPES.items()}


def path(optimizer: optax.GradientTransformation, num_steps: int = 40) -> list[dict[str, np.ndarray]]:
    params = tree(0)
    state, update, seen = optimizer.init(params), compiled_update(optimizer, batch_size=4), []
    for step in range(num_steps):
        params, state = update(params, state, tree(step + 1, scale=4 * 10.0 ** (step % 3 - 1)))
        seen.append(jax.tree.map(np.asarray, params))
    return seen


def distance(ours, theirs) -> float:
    return max(
        float(np.abs(a[name] - b[name]).max()) for a, b in zip(ours, theirs, strict=True) for name in a
    )


@pytest.mark.parametrize("name", PAIRS)
def test_forty_steps_are_those_of_optax_but_for_rounding(name):
    ours, theirs = map(path, PAIRS[name])
    assert distance(ours, theirs) < 5e-6
    assert distance(ours[:1] * 40, theirs) > 1e-2  # which is not because nothing moves


def test_the_comparison_sees_a_wrong_correction_for_bias():
    plain = optax.chain(optax.scale_by_adam(), optax.scale(-0.01))
    late = optax.chain(optax.scale_by_adam(eps=1e-3), optax.scale(-0.01))
    assert distance(path(adam(0.01)), path(plain)) < 5e-6
    assert distance(path(adam(0.01)), path(late)) > 5e-5


@pytest.mark.parametrize("optimizer", [adam(0.01), adagrad(0.1), sgd(0.1, momentum=0.9)])
def test_params_and_state_are_updated_in_their_own_memory(optimizer):
    params = {"table": jnp.ones((512, 64), jnp.float32)}
    state, total = optimizer.init(params), jax.tree.map(jnp.ones_like, params)
    state = jax.tree.map(lambda x: x + 0, state)  # zeros of one kind may share their memory before

    def places(*trees):
        return {x.unsafe_buffer_pointer() for x in jax.tree.leaves(trees) if x.size > 1}

    before = places(params, state)
    params, state = compiled_update(optimizer, batch_size=1)(params, state, total)
    assert places(params, state) == before


def test_a_state_is_plain_arrays_that_depend_on_the_params_shapes_alone():
    for optimizer in (adam(0.1), adagrad(0.1), sgd(0.1), sgd(0.1, momentum=0.5)):
        first, second = (jax.tree.leaves(optimizer.init(tree(seed))) for seed in (1, 2))
        assert all(isinstance(leaf, jax.Array) for leaf in first)
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_cosine_decay_is_that_of_optax_after_a_warmup_that_loses_no_step():
    rate = cosine_decay(0.5, num_steps=30, num_warmup_steps=10, final=0.1)
    theirs = optax.cosine_decay_schedule(0.5, 20, alpha=0.2)
    assert [float(rate(t)) for t in range(10)] == pytest.approx([0.05 * (t + 1) for t in range(10)])
    assert [float(rate(t)) for t in range(10, 40)] == pytest.approx([float(theirs(t)) for t in range(30)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: adam(0.0), "learning_rate"),
        (lambda: adam(float("nan")), "learning_rate"),
        (lambda: adam(0.1, b1=1.0), "b1 and b2"),
        (lambda: adagrad(0.1, eps=0.0), "eps"),
        (lambda: sgd(0.1, momentum=1.0), "momentum"),
        (lambda: cosine_decay(-1.0, num_steps=10), "peak"),
        (lambda: cosine_decay(0.1, num_steps=10, final=0.2), "final"),
        (lambda: cosine_decay(0.1, num_steps=10, num_warmup_steps=10), "num_warmup_steps=10, num_steps=10"),
    ],
)
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()
