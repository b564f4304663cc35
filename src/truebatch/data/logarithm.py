"""sign(x) log(1 + |x|) in single precision, with the same bits on every processor."""

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TABLE_SIZE = 1 << 16
_SMALL = 1e-4  # below, 1 + x loses digits of x, and three terms of the power series are exact enough
_TERMS = 9  # of the series of artanh: the next one is below 1e-16 of the whole


def signed_log(values: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """sign(x) log(1 + |x|) of finite numbers.

    Library logarithms differ in their last bit between processors, and rounding to single precision lets
    that show now and then. This one is made of additions, products and quotients, which do not differ.

    Guarantees:
      - Within one unit in the last place of single precision.
      - Odd and not decreasing; integers give what equal floats give.
    """
    if (
        values.dtype.kind in "iu"
        and len(values)
        and -_TABLE_SIZE < values.min() <= values.max() < _TABLE_SIZE
    ):
        small = values.astype(np.int32, copy=False)
        found = _TABLE.take(np.abs(small))
        return np.where(small < 0, -found, found) if values.min() < 0 else found
    x = values.astype(np.float64)
    size = np.abs(x)
    least = np.minimum(size, _SMALL)
    series = least * (1 - least * (1 / 2 - least / 3))
    return np.copysign(np.where(size < _SMALL, series, _log_1p(size)), x).astype(np.float32)


def _log_1p(x: Floats) -> Floats:
    """log(1 + x) = e log 2 + 2 artanh((m - 1) / (m + 1)), with 1 + x = m 2^e and m within [0.7, 1.42)."""
    m, e = np.frexp(1.0 + x)
    low = m < math.sqrt(0.5)
    m = np.where(low, 2 * m, m)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = np.full_like(z, 1 / (2 * _TERMS + 1))
    for k in range(_TERMS - 1, -1, -1):
        series = series * z + 1 / (2 * k + 1)
    log: Floats = (e - low) * math.log(2) + 2 * s * series
    return log


_TABLE = _log_1p(np.arange(_TABLE_SIZE, dtype=np.float64)).astype(np.float32)
