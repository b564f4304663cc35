"""The logarithm of numbers: exact to single precision, odd, and the same for integers and floats."""

import mpmath
import numpy as np
import pytest

from truebatch.data.logarithm import _TABLE_SIZE, signed_log

EDGES = [
    0,
    1e-300,
    1e-30,
    1e-9,
    1e-8,
    1.1e-8,
    1e-6,
    0.1,
    0.4,
    0.41422,
    0.5,
    1,
    3,
    4,
    65535,
    65536,
    1e9,
    1e300,
]


def exact(x):
    with mpmath.workdps(40):
        return float(mpmath.sign(x) * mpmath.log1p(abs(mpmath.mpf(float(x)))))


@pytest.mark.parametrize("sign", [1, -1])
def test_it_is_the_nearest_number_of_single_precision(sign):
    # Not promised for every number, but for these; so their bits are pinned on every processor.
    rng = np.random.default_rng(5)
    x = sign * np.concatenate([EDGES, np.exp(rng.uniform(-40, 60, 2000)), rng.integers(0, 10**6, 1000)])
    want = np.array([exact(v) for v in x]).astype(np.float32)
    assert np.array_equal(signed_log(x), want)
    # The twin: a logarithm taken in single precision is often another number.
    with np.errstate(over="ignore"):
        single = np.log(np.float32(1) + np.abs(x).astype(np.float32))
    assert np.mean(np.copysign(single, x) != want) > 0.1


def test_it_never_decreases():
    x = np.unique(np.concatenate([EDGES, np.exp(np.linspace(-30, 30, 200_001))]))
    x = np.concatenate([-x[::-1], x])
    assert np.all(np.diff(signed_log(x)) >= 0)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_integers_give_what_floats_give(kind):
    info = np.iinfo(kind)
    around = np.array([0, 1, 2, 100, _TABLE_SIZE - 1, _TABLE_SIZE, _TABLE_SIZE + 1, -1, -5, -_TABLE_SIZE])
    whole = around[(around >= info.min) & (around <= info.max)].astype(kind)
    for values in (whole, whole[:3], np.array([info.min, info.max], kind), whole[:0]):
        floats = signed_log(values.astype(np.float64))
        assert signed_log(values).tobytes() == (floats + np.float32(0)).tobytes()
