"""(D): batches taken in a fixed order are E Gaussian mechanisms, which are one."""

import math

from scipy.special import erfcx

from truebatch.accounting.bounds import Adjacency, DeltaCurve, Direction


def log_delta_gaussian(*, sigma: float, epsilon: float) -> float:
    """Logarithm of the privacy loss curve of one Gaussian mechanism of sensitivity 1.

    Theorem 3.1, after Balle and Wang (2018), Theorem 8. With a = 1/(2 sigma) - sigma eps and
    b = -1/(2 sigma) - sigma eps:

        delta = Phi(a) - e^eps Phi(b) = phi(a) (R(-a) - R(-b)),

    where R(x) = (1 - Phi(x)) / phi(x) and e^eps phi(b) = phi(a), so no tiny number is ever formed.

    Direction: exact, to a relative error in delta of about 1e-15 max(1, sigma) (1 + sigma eps).

    >>> round(math.exp(log_delta_gaussian(sigma=1.0, epsilon=1.0)), 6)
    0.126937
    >>> round(log_delta_gaussian(sigma=1.0, epsilon=60.0) / math.log(10), 3)
    -772.711
    """
    a = 0.5 / sigma - sigma * epsilon
    b = -0.5 / sigma - sigma * epsilon
    if a > 0:
        delta = 0.5 * math.erfc(-a / math.sqrt(2)) - _exp_times_upper_tail(epsilon, -b)
        return math.log(delta) if delta > 0 else -math.inf
    half = math.sqrt(math.pi / 2)
    mills = half * (float(erfcx(-a / math.sqrt(2))) - float(erfcx(-b / math.sqrt(2))))
    if mills <= 0:  # 1/sigma is below the spacing of floats at sigma eps: the difference is its derivative
        mills = 1 / (sigma * (1 + a * a))
    return -0.5 * a * a - 0.5 * math.log(2 * math.pi) + math.log(mills)


def _exp_times_upper_tail(epsilon: float, x: float) -> float:
    """e^eps (1 - Phi(x)) for x > 0, without overflow where the product is small."""
    return 0.5 * math.exp(epsilon - 0.5 * x * x) * float(erfcx(x / math.sqrt(2)))


def delta_deterministic(*, epsilon: float, sigma: float, num_epochs: float) -> float:
    """Privacy loss curve of batches taken in a fixed order.

    Theorem 3.1 with s = sigma / sqrt(E): delta = Phi(1/(2s) - s eps) - e^eps Phi(-1/(2s) - s eps).

    Direction: exact.

    Guarantees:
      - Does not increase with epsilon, nor with sigma.
      - Depends on sigma and num_epochs only through sigma / sqrt(num_epochs).

    >>> round(delta_deterministic(epsilon=1.0, sigma=1.0, num_epochs=1), 6)
    0.126937
    >>> round(delta_deterministic(epsilon=1.0, sigma=2.0, num_epochs=4), 6)
    0.126937
    """
    return math.exp(log_delta_gaussian(sigma=sigma / math.sqrt(num_epochs), epsilon=epsilon))


def deterministic_curves(
    *, num_epochs: float, adjacency: Adjacency, direction: Direction = Direction.EXACT
) -> tuple[DeltaCurve, ...]:
    """Theorem 3.1 for E epochs, as a curve.

    Zeroing-out moves one gradient by at most 1, replacement by at most 2. The same numbers bound every
    sampler that uses each example once an epoch from above (`direction=UPPER`): given where the example
    falls, the mechanism is this one, and the hockey-stick divergence is jointly convex.
    """
    sensitivity = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0

    def log_delta(sigma: float, epsilon: float) -> float:
        return log_delta_gaussian(sigma=sigma / (sensitivity * math.sqrt(num_epochs)), epsilon=epsilon)

    source = "Theorem 3.1 (Gaussian with sigma / sqrt(E))"
    if direction is Direction.UPPER:
        source = f"no amplification: {source}"
    return (DeltaCurve(log_delta=log_delta, direction=direction, source=source, tolerance=1e-11),)
