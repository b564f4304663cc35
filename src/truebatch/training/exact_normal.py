"""A rounded normal number from random bits, decided with whole numbers only.

A word of 64 bits w and a refinement of 128 bits r name one number U in (0, 1):

    U = (floor(w / 2) 2^128 + r + 1/2) / 2^191

and with it the normal Z whose distance from zero is exceeded with probability U, negative if w is odd:

    P(|Z| > z) = erfc(z / sqrt(2)) = U

`rounded_normal` is scale * Z, rounded to the nearest whole number.
"""

import functools
import math
from fractions import Fraction

from scipy.special import ndtri

_TAIL_BITS = 191
# erfc is needed to 2^-_TAIL_BITS or so. U >= 2^-192 keeps z below 16.2, where the terms of the series reach
# e^(z^2/2) = 2^190 and cancel down to less than 1: 60 bits are left over.
_BITS = 448


def rounded_normal(word: int, refinement: int, *, scale: float) -> int:
    """scale * Z to the nearest whole number, for the Z that these bits name.

    The number n >= 0 with T(n + 1/2) < U <= T(n - 1/2), where T(x) = erfc(x / (scale sqrt(2))) is found by a
    guess that floats make and that whole numbers correct: no rounding of floats can show in the result.

    >>> rounded_normal(2**63, 0, scale=2.0**20)  # U is a half, Z is 0.67449
    707254
    >>> rounded_normal(1, 0, scale=2.0**20), rounded_normal(2**64 - 1, 2**128 - 1, scale=2.0**20)
    (-16912594, 0)
    """
    tail = (((word >> 1) << 128 | refinement) << 1) + 1  # U in units of 2^-192
    guess = round(scale * -float(ndtri(math.ldexp(tail, -193))))
    n = max(guess, 0)
    while n > 0 and _is_below(2 * n - 1, tail, scale):
        n -= 1
    while not _is_below(2 * n + 1, tail, scale):
        n += 1
    return -n if word & 1 else n


def _is_below(twice: int, tail: int, scale: float) -> bool:
    """Whether T(twice / 2) < U."""
    return _erfc(Fraction(twice) / 2 / Fraction(scale)) < tail << (_BITS - _TAIL_BITS - 1)


def _erfc(z: Fraction) -> int:
    """erfc(z / sqrt(2)) for z > 0, in units of 2^-_BITS, to within 2^-230.

    The Maclaurin series of erf, in which y = z / sqrt(2):

        erf(y) = 2 / sqrt(pi) * sum over k of (-1)^k y^(2k+1) / (k! (2k+1))
    """
    square = z * z / 2
    y2 = (square.numerator << _BITS) // square.denominator
    power = math.isqrt(y2 << _BITS)
    total, k = power, 0
    while power:
        k += 1
        power = (power * y2 >> _BITS) // k
        total += -(power // (2 * k + 1)) if k % 2 else power // (2 * k + 1)
    return (1 << _BITS) - (total * _two_over_root_pi() >> _BITS)


@functools.cache
def _two_over_root_pi() -> int:
    """2 / sqrt(pi) in units of 2^-_BITS, by Machin's formula for pi."""
    one = 1 << (_BITS + 64)

    def arctan_of_inverse(x: int) -> int:
        term = total = one // x
        k = 1
        while term:
            term //= -x * x
            k += 2
            total += term // k
        return total

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    return (2 << (2 * _BITS)) // math.isqrt(pi << (2 * _BITS - _BITS - 64))
