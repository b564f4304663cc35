"""Pairs of rounded normal numbers from pairs of words, at the speed of memory.

The result is defined by `exact_normal.rounded_pair`, to 60 digits. Here float64 finds it for all pairs but a
few in ten million: wherever the error of a float, or the bits of the refinement, could move a rounded
number, the pair is left undecided. So numbers are the same on every processor, device and version of the
compiler.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

# ln(1 + t) = t P(t) for 1 + t from sqrt(1/2) to sqrt(2); sin y = y P(y^2) and cos y = P(y^2) for |y| up to
# pi/4: within 1.2e-16 (relative). Chebyshev interpolation with 90 digits; the lowest power first. Polynomials
# rather than the library's functions, or quotients, because they compile to the widest instructions.
_LOG = (
    1.0, -0.4999999999999992, 0.3333333333332591, -0.25000000000033595, 0.20000000002056925,
    -0.1666666666349147, 0.14285714065198032, -0.12499999996813993, 0.11111122928547465,
    -0.10000012799803608, 0.09090558863565067, -0.0833264971300386, 0.0769813905960958,
    -0.0715930776300252, 0.06616916103729839, -0.06044932248651876, 0.0600236262459681,
    -0.06793484925253536, 0.0624974432991521, -0.027579154885274428,
)  # fmt: skip
_SIN = (
    1.0, -0.16666666666666616, 0.008333333333320363, -0.000198412698286503, 2.755731337640013e-06,
    -2.5050716974102745e-08, 1.5894736651849094e-10,
)  # fmt: skip
_COS = (
    1.0, -0.4999999999999925, 0.041666666666472306, -0.0013888888869978658, 2.4801578538562985e-05,
    -2.755523388484742e-07, 2.0630454379662294e-09,
)  # fmt: skip
_LN_2, _HALF_PI = 0.6931471805599453, 1.5707963267948966
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXPONENT, _EXPONENT_UNIT = -(2**52), 2.0**-52

# The margin around a boundary between two numbers, in deviations. It covers the float error (below 6e-15;
# tests measure it) and half of what the bits beyond a word can change: for a radius word of tail U at most
# 2^-63 / (U R), which is 2e-15 where U >= _NEAR, and 2e-11 where U >= _FAR. Where U is above 1 - 2^-26,
# numbers are small and the bits beyond the word matter again.
_NEAR, _FAR = 2.0**-16, 2.0**-30
_NEAR_MARGIN, _FAR_MARGIN = 2.0**-46, 2.0**-35
_LEAST_TAIL, _MOST_TAIL = 2**32, 2**62 - 2**36  # _FAR and 1 - 2^-26, in units of 2^-62
_SIGN = np.uint64(2**63)


class Pairs(NamedTuple):
    """Two whole numbers, as float64, for each pair of words; of use where they are decided."""

    first: Array
    second: Array
    decided: Array


def rounded_pairs(radius: Array, angle: Array, scale: Array) -> Pairs:
    """What `rounded_pair` gives for each pair of words, where float64 can tell.

    `scale` is a float64 up to 2^23. Needs 64-bit types enabled.
    """
    x, y, tail = normals(radius, angle)
    x, y = x * scale, y * scale
    first, second = jnp.round(x), jnp.round(y)
    furthest = jnp.maximum(jnp.abs(x - first), jnp.abs(y - second))
    margin = jnp.where(tail >= _NEAR, _NEAR_MARGIN, _FAR_MARGIN) * scale
    units = lax.shift_right_logical(radius, jnp.uint64(2))
    known = units - np.uint64(_LEAST_TAIL) < np.uint64(_MOST_TAIL - _LEAST_TAIL)
    return Pairs(first, second, (furthest < 0.5 - margin) & known)


def normals(radius: Array, angle: Array) -> tuple[Array, Array, Array]:
    """Two normal numbers for each pair of words, and the tail U of the radius; all float64.

    Guarantees:
      - Each is within 6e-15 of what the middle of the words names, where 2^-30 <= U <= 1 - 2^-26.
    """
    units = lax.shift_right_logical(radius, jnp.uint64(2)).astype(jnp.int64)
    tail = (units.astype(jnp.float64) + 0.5) * 2.0**-62
    inside = ((2**62 - units).astype(jnp.float64) - 0.5) * 2.0**-62
    bits = lax.bitcast_convert_type(tail, jnp.int64)
    exponent = (bits - _ROOT_HALF_BITS) & _EXPONENT
    mantissa = lax.bitcast_convert_type(bits - exponent, jnp.float64)
    # Where U is near 1, its distance from 1 must keep its own digits.
    t = jnp.where(exponent == 0, -inside, mantissa - 1)
    log = t * _polynomial(_LOG, t) + exponent.astype(jnp.float64) * (_LN_2 * _EXPONENT_UNIT)
    length = jnp.sqrt(-log)  # R / sqrt(2)
    # With phi = pi/4 + y: sqrt(2) cos(phi) = cos(y) - sin(y), and sqrt(2) sin(phi) = cos(y) + sin(y).
    y = lax.bitcast_convert_type(angle, jnp.int64).astype(jnp.float64) * (_HALF_PI * 2.0**-64)
    square = y * y
    cos, sin = _polynomial(_COS, square) * length, _polynomial(_SIN, square) * (y * length)
    return _signed(cos - sin, radius, bit=0), _signed(cos + sin, radius, bit=1), tail


def _signed(value: Array, word: Array, *, bit: int) -> Array:
    """Minus the value, where that bit of the word is set."""
    sign = lax.shift_left(word, jnp.uint64(63 - bit)) & _SIGN
    return lax.bitcast_convert_type(lax.bitcast_convert_type(value, jnp.uint64) ^ sign, jnp.float64)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """By Estrin's scheme: short chains of operations keep the processor busy."""
    terms = [jnp.full_like(x, c) for c in coefficients]
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [a + b * x for a, b in zip(terms[::2], terms[1::2], strict=False)] + odd
        x = x * x
    return terms[0]
