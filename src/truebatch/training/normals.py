"""Rounded normal numbers from words of 64 bits, at the speed of memory.

The result is defined by `exact_normal.rounded_normal`, without floats. Here float64 finds it for all words
but a few in ten million: wherever the error of a float, or the bits of the refinement, could move the rounded
number, the word is marked UNDECIDED and left to whole numbers. So the numbers are the same on every
processor, device and version of the compiler.
"""

import jax
import jax.numpy as jnp
from jax import lax

# What stands where a number is still to be decided. No normal number comes near it.
UNDECIDED = -(2**31)
# Numbers are laid out in rows of this many, and `undecided_rows` says in which ones to look.
ROW = 1024

# With v = P(|Z| > z), w = -ln(v (2 - v)): z = sqrt(w H(w)), where H = P/Q grows from pi/2 towards 2 and the
# rational function is within 8e-16 of it (relative) for v >= _FAR. All coefficients are positive, so nothing
# cancels. Fitted to 90-digit values at Chebyshev nodes by weighted least squares.
_FAR = 2.0**-22
_H_P = (
    5.402091211981397e-10, 2.1499977925871803e-08, 5.888627071466572e-07, 1.2207338043819122e-05,
    0.00016649792059516064, 0.0019003415417969806, 0.013612724647162877, 0.09868052390935277,
    0.3222691363423199, 1.570796326794897,
)  # fmt: skip
_H_Q = (
    2.7081850096603455e-10, 1.139621739375342e-08, 3.0885898095304667e-07, 6.655250301478803e-06,
    8.982836264640788e-05, 0.0010823274022644352, 0.007516302374450524, 0.059067009321283614,
    0.18156412862106328, 1.0,
)  # fmt: skip
# ln(1 + t) = t P(t) / Q(t) within 2.5e-16 for 1 + t from sqrt(1/2) to sqrt(2). A logarithm of ours because it
# is compiled to wide instructions, which the library's is not: a fifth of the time.
_LOG_P = (
    -2.9117960429496498e-05, 0.001245021760349556, 0.08914532926900483, 0.72158948037612,
    2.0573787119711593, 2.4176146486117815, 0.9999999999999998,
)  # fmt: skip
_LOG_Q = (
    0.026361178366785892, 0.35283689827287434, 1.5904776156438647, 3.182852702943612, 2.917614648611782, 1.0,
)  # fmt: skip
_LN_2 = 0.6931471805599453
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_EXPONENT = -(2**52)

# The margin around a boundary between two numbers, in z. It covers the float error of z (below 6e-15; tests
# measure it) and half the stretch of z that one word stands for, at most 2^-64 / (v z): 8e-16 where
# v >= _NEAR, and 4.4e-14 where v >= _FAR.
_NEAR = 2.0**-16
_NEAR_MARGIN, _FAR_MARGIN = 2.0**-45, 2.0**-43
# Added to a whole float64 of moderate size, this leaves the number in its low bits.
_TO_WHOLE = 1.5 * 2.0**52
_TO_WHOLE_BITS = 0x4338000000000000


def _horner(coefficients: tuple[float, ...], x: jax.Array) -> jax.Array:
    value = jnp.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value


def distance_from_zero(tail: jax.Array) -> jax.Array:
    """z with P(|Z| > z) = tail, a float64 in (0, 1); of use where tail is at least 2^-22.

    Guarantees:
      - Within 6e-15.
    """
    inside = 1 - tail
    product = tail * (1 + inside)  # 1 - inside^2
    bits = lax.bitcast_convert_type(product, jnp.int64)
    exponent = (bits - _ROOT_HALF_BITS) & _EXPONENT
    mantissa = lax.bitcast_convert_type(bits - exponent, jnp.float64)
    # Near zero, the distance of the product from 1 must keep its own digits.
    t = jnp.where(exponent == 0, -inside * inside, mantissa - 1)
    log = t * _horner(_LOG_P, t) / _horner(_LOG_Q, t) + (exponent >> 52).astype(jnp.float64) * _LN_2
    w = -log
    return jnp.sqrt(w * _horner(_H_P, w) / _horner(_H_Q, w))


def rounded_normals(words: jax.Array, scale: jax.Array) -> jax.Array:
    """int32 numbers for uint64 words; some are UNDECIDED.

    `scale` is a float64 up to 2^23. Needs 64-bit types enabled.
    """
    tail = (
        lax.shift_right_logical(words, jnp.uint64(1)).astype(jnp.int64).astype(jnp.float64) + 0.5
    ) * 2.0**-63
    position = distance_from_zero(tail) * scale
    nearest = jnp.round(position)
    margin = jnp.where(tail >= _NEAR, _NEAR_MARGIN, _FAR_MARGIN) * scale
    decided = (jnp.abs(position - nearest) < 0.5 - margin) & (tail >= _FAR)
    number = lax.bitcast_convert_type(nearest + _TO_WHOLE, jnp.int64) - _TO_WHOLE_BITS
    negative = -(words & jnp.uint64(1)).astype(jnp.int64)
    signed = (number ^ negative) - negative
    return jnp.where(decided, signed, UNDECIDED).astype(jnp.int32)


@jax.jit
def undecided_rows(numbers: jax.Array) -> jax.Array:
    """Which rows hold an UNDECIDED number. Apart from `rounded_normals`, which it would make run twice."""
    return (numbers == UNDECIDED).any(axis=-1)
