"""A pair of rounded normal numbers from random bits, worked out to 60 digits.

A radius word and an angle word of 64 bits, w and a, each continued by 128 bits of refinement, r and s, name

    U     = (floor(w / 4) 2^128 + r + 1/2) / 2^190      in (0, 1)
    Theta = (a 2^128 + s + 1/2) / 2^192                 in (-1/2, 1/2), a read as a signed number

and with them two normal numbers (Box and Muller 1958): with R = sqrt(-2 ln U) and phi = (Theta + 1/2) pi/2,

    X = R cos(phi), negative if bit 0 of w is set;  Y = R sin(phi), negative if bit 1 of w is set.

`rounded_pair` is scale * X and scale * Y, each rounded to the nearest whole number.
"""

from decimal import Context, Decimal

REFINEMENT_BITS = 128
_DIGITS = Context(prec=70)
_NOTHING = Decimal("1e-68")
_HALF_PI = Decimal(
    "1.5707963267948966192313216916397514420985846996875529104874722961539082031431044993140174126710585339910740"
)


def rounded_pair(
    radius: int, angle: int, radius_more: int, angle_more: int, *, scale: float
) -> tuple[int, int]:
    """scale * X and scale * Y to the nearest whole numbers, for the X and Y that these bits name.

    The error before rounding is below 1e-58. A half is rounded to the even number.

    >>> rounded_pair(2**62, 0, 0, 0, scale=2.0**20)  # U is a quarter, phi is pi/4: R/sqrt(2) is 1.1774
    (1234604, 1234604)
    >>> rounded_pair(2**62 + 1, 2**63, 0, 0, scale=2.0**20)  # phi is nearly 0: R is 1.6651, and negative
    (-1745994, 0)
    """
    d = _DIGITS
    units = ((radius >> 2) << REFINEMENT_BITS | radius_more) * 2 + 1
    signed = angle - 2**64 if angle >= 2**63 else angle
    turned = ((signed << REFINEMENT_BITS | angle_more) * 2 + 1) + 2**192
    log = d.ln(d.divide(Decimal(units), Decimal(2**191)))
    length = d.multiply(Decimal(scale), d.sqrt(d.multiply(Decimal(-2), log)))
    phi = d.multiply(_HALF_PI, d.divide(Decimal(turned), Decimal(2**193)))
    square = d.multiply(phi, phi)
    cos, sin = _series(Decimal(1), square, 0), _series(phi, square, 1)
    x, y = (int(d.to_integral_value(d.multiply(length, part))) for part in (cos, sin))
    return (-x if radius & 1 else x), (-y if radius & 2 else y)


def _series(term: Decimal, square: Decimal, k: int) -> Decimal:
    """term - term square / ((k+1) (k+2)) + ...: the cosine from 1 and 0, the sine from phi and 1."""
    d = _DIGITS
    total = term
    while abs(term) > _NOTHING:
        term = d.minus(d.divide(d.multiply(term, square), Decimal((k + 1) * (k + 2))))
        total, k = d.add(total, term), k + 2
    return total
