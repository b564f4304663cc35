"""What it costs that a sum and its noise are rounded to one grid before they are added."""

import math

from truebatch.errors import InvalidArgument

# Grid steps in a standard deviation of the noise: from 2^22 up to 2^23. Finer would cost less sensitivity,
# and leave less of a float64's 53 bits for the sum.
_STEPS_BITS = 22
# Noise of this scale leaves the sum, the noise and the grid well within float32.
_SCALE_RANGE = (2.0**-100, 2.0**100)


def grid_step(*, sigma: float, clip_norm: float) -> float:
    """The grid of a noised sum: the largest power of two with at least 2^22 steps in sigma * clip_norm.

    A power of two, so that scaling to it and back is exact. It depends on public numbers only.

    >>> grid_step(sigma=1.0, clip_norm=1.0) == 2.0**-22
    True
    """
    scale = noise_scale(sigma=sigma, clip_norm=clip_norm)
    return math.ldexp(1.0, math.frexp(scale)[1] - 1 - _STEPS_BITS)


def noise_scale(*, sigma: float, clip_norm: float) -> float:
    """The standard deviation of the noise, sigma * clip_norm as a float; an error where floats give out."""
    if not (math.isfinite(clip_norm) and clip_norm > 0 and math.isfinite(sigma) and sigma > 0):
        raise InvalidArgument(
            f"sigma and clip_norm must be finite and above 0; got sigma={sigma!r}, clip_norm={clip_norm!r}."
        )
    scale = float(sigma) * float(clip_norm)
    low, high = _SCALE_RANGE
    if not low <= scale <= high:
        raise InvalidArgument(
            f"sigma * clip_norm must be from {low:.3g} to {high:.3g}, so that float32 can hold the noise; "
            f"got sigma={sigma!r}, clip_norm={clip_norm!r}.",
            hint="scale the loss, and the clip norm with it.",
        )
    return scale


def effective_sigma(*, sigma: float, clip_norm: float, num_coordinates: int) -> float:
    """The noise multiplier that holds after rounding: what the accountant is to be told.

    An example moves the sum by a vector g of norm at most C. Rounding moves each coordinate of a sum by at
    most half a grid step h, so the rounded sum moves by at most |g_i| + h in coordinate i, which is at
    most C + h sqrt(d) in norm:

        effective = sigma C / (C + h sqrt(d))

    Direction: lower, rounded down. `num_coordinates` is d, the number of parameters.

    >>> round(effective_sigma(sigma=0.55, clip_norm=1.0, num_coordinates=78_000_000), 6)
    0.549422
    """
    _require_count(num_coordinates)
    scale = noise_scale(sigma=sigma, clip_norm=clip_norm)
    moved = clip_norm + grid_step(sigma=sigma, clip_norm=clip_norm) * math.sqrt(num_coordinates)
    # Five operations round by at most 2^-53 each.
    return scale / moved * (1 - 2.0**-50)


def sigma_to_add(*, effective: float, clip_norm: float, num_coordinates: int) -> float:
    """The noise multiplier to add, so that `effective_sigma` of it is at least `effective`.

    Direction: upper, rounded up.

    >>> round(sigma_to_add(effective=0.55, clip_norm=1.0, num_coordinates=78_000_000), 6)
    0.550579
    """
    _require_count(num_coordinates)
    step = grid_step(sigma=effective, clip_norm=clip_norm)
    # Raising sigma past a power of two doubles the grid, so the first grid may not be the last.
    for h in (step, 2 * step):
        sigma = effective * (1 + h / clip_norm * math.sqrt(num_coordinates)) * (1 + 2.0**-48)
        if effective_sigma(sigma=sigma, clip_norm=clip_norm, num_coordinates=num_coordinates) >= effective:
            return sigma
    raise InvalidArgument(
        "rounding must cost less than the noise is worth; "
        f"got num_coordinates={num_coordinates} at sigma={effective:g}, clip_norm={clip_norm:g}.",
        hint="noise this large on so many coordinates has no use: take a smaller sigma or model.",
    )


def _require_count(num_coordinates: int) -> None:
    if isinstance(num_coordinates, bool) or not isinstance(num_coordinates, int) or num_coordinates < 1:
        raise InvalidArgument(
            f"num_coordinates must be a whole number of at least 1; got num_coordinates={num_coordinates!r}."
        )
