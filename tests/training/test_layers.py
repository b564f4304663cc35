import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch.training.layers import Affine, Dense, Embedding, Layer, Use


@given(seed=st.integers(0, 10**6), gap=st.sampled_from([1.0, 1e-2, 1e-4, 1e-6, 0.0]))
@settings(max_examples=50, deadline=None)
def test_a_norm_whose_parts_cancel_is_never_too_small(seed: int, gap: float) -> None:
    """Two positions that nearly cancel: what float32 loses must not let a row grow past its clip."""
    rng = np.random.default_rng(seed)
    a, d = rng.normal(size=(2, 20)).astype(np.float32)
    inputs = np.stack([a, a + np.float32(gap) * rng.normal(size=20).astype(np.float32)])
    deltas = np.stack([d, -d])
    exact = np.sqrt(np.square(inputs.astype(np.float64).T @ deltas.astype(np.float64)).sum())
    use = Use((jnp.asarray(inputs)[None],), jnp.asarray(deltas)[None])
    found = float(jnp.sqrt(Dense(weight=jnp.zeros((20, 20))).squared_norms([use])[0]))
    size = np.sqrt(np.square(a).sum() * np.square(d).sum())
    assert found >= exact * (1 - 1e-6)
    assert found <= exact + 3e-3 * size


def test_an_id_outside_its_table_gives_nan_and_never_another_row() -> None:
    table = jnp.arange(10.0).reshape(5, 2)
    whole = Embedding(table=table)
    parts = Embedding(table=table, sizes=(2, 3))
    assert np.array_equal(whole(jnp.array([0, 4])), [[0, 1], [8, 9]])
    assert np.array_equal(parts(jnp.array([1, 0])), [[2, 3], [4, 5]])
    for ids in ([-1, 0], [5, 0], [2**31 - 1, 0], [-(2**31), 0]):
        found = np.asarray(whole(jnp.array(ids, jnp.int32)))
        assert np.isnan(found[0]).all()
        assert np.array_equal(found[1], [0, 1])
    # 2 is a row of the whole table, but not of the first feature's.
    assert np.isnan(parts(jnp.array([2, 0]))[0]).all()
    assert np.isnan(parts(jnp.array([0, 3]))[1]).all()


@pytest.mark.parametrize(
    "layer",
    [
        Dense(weight=jnp.ones((2, 3))),
        Dense(weight=jnp.ones((2, 3)), bias=jnp.ones(3)),
        Embedding(table=jnp.ones((4, 2)), sizes=(1, 3)),
        Affine(scale=jnp.ones(2)),
        Affine(shift=jnp.ones(2)),
    ],
)
def test_a_layer_is_a_pytree_of_its_arrays(layer: Layer) -> None:
    leaves, structure = jax.tree.flatten(layer)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)
    assert type(jax.tree.unflatten(structure, leaves)) is type(layer)
    doubled = jax.tree.map(lambda x: 2 * x, layer)
    assert all((np.asarray(x) == 2).all() for x in jax.tree.leaves(doubled))


def test_sums_go_on_from_a_total() -> None:
    layer = Dense(weight=jnp.ones((2, 3)), bias=jnp.ones(3))
    use = Use((jnp.ones((4, 2)),), jnp.ones((4, 3)))
    found = layer.add_sum(jax.tree.map(lambda x: 10 * x, layer), [use, use])
    assert (np.asarray(found.weight) == 18).all()
    assert found.bias is not None
    assert (np.asarray(found.bias) == 18).all()
