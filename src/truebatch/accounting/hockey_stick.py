"""A privacy loss curve, given at a lattice of epsilons, as a pair whose losses are on that lattice.

The curve H(a) = E_Q[(dP/dQ - a)_+] determines a pair up to equivalence, and a convex function above H is the
curve of a pair that dominates, in one use and under composition (Zhu, Dong and Wang, arXiv 2106.08567; by
Blackwell's theorem the one pair is a randomization of the other). The chords through upper values are such a
function: connect-the-dots, Doroshenko et al., arXiv 2207.04380.
"""

import numpy as np
from scipy.optimize import isotonic_regression

from truebatch.accounting.lattice import LatticeLoss
from truebatch.accounting.lognormal import Array


def connect_the_dots(*, log_call: Array, log_put: Array, spacing: float) -> tuple[LatticeLoss, LatticeLoss]:
    """Losses log(P/Q) under P and log(Q/P) under Q of a pair that dominates.

    `log_call[j]` is an upper value of log H at a = e^(spacing j), and `log_put[j]` one of the log of the put
    E_Q[(a - dP/dQ)_+] = H - (1 - a) at a = e^(-spacing j). At a = 1 they are the same number; the call's
    value is taken for both.
    """
    call, put = np.exp(log_call), np.exp(log_put)[::-1]
    put[-1] = call[0]
    ones = put.size - 1
    loss = spacing * np.arange(-ones, call.size)
    a = np.exp(loss)
    left, right = np.diff(a[: ones + 1], prepend=0.0), np.diff(a[ones:])
    rising = increasing_slopes(np.diff(put, prepend=0.0) / left, left)
    falling = np.append(increasing_slopes(np.diff(call) / right, right), 0.0)
    mass = np.concatenate([np.diff(rising), [falling[0] - rising[-1] + 1], np.diff(falling)])
    with np.errstate(divide="ignore"):
        log_mass = np.log(np.maximum(mass, 0.0))
        log_at_zero = float(np.log(max(rising[0], 0.0)))
    first = float(loss[0])
    remove = LatticeLoss(
        log_prob=log_mass + loss, first=first, spacing=spacing, log_infinite=float(log_call[-1])
    )
    add = LatticeLoss(
        log_prob=log_mass[::-1], first=-float(loss[-1]), spacing=spacing, log_infinite=log_at_zero
    )
    return remove, add


def increasing_slopes(slopes: Array, widths: Array) -> Array:
    """Slopes of the greatest convex minorant of the piecewise linear function with these slopes."""
    return np.asarray(isotonic_regression(slopes, weights=widths).x)
