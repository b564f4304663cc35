"""Which plan draws which sampler, and the largest specs that block numbers have room for."""

import math
from fractions import Fraction

from truebatch.errors import InvalidArgument, InvalidSpec
from truebatch.sampling.bins import BinSizes
from truebatch.sampling.blocks import KeyStream
from truebatch.sampling.permutation import MAX_TILE_ROWS
from truebatch.sampling.poisson import RATE_BITS, PoissonPlan
from truebatch.sampling.shuffle import InOrderPlan, WalkPlan
from truebatch.sampling.splits import Bounds
from truebatch.sampling.tiling import tiling_for
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    Sampler,
    TruncatedPoisson,
)

# Fixed-size batches are cut from Poisson batches with this many standard deviations of rows to spare.
# Fewer would mean more steps drawn twice, more means more rows drawn and dropped.
SPARE_DEVIATIONS = 3

_MOST_STEPS = 2**40
_MOST_BATCH = 2**32
_MOST_WALKED_ROWS = 2**44
_MOST_WALKED_TILES = 2**24
_MOST_BINS = 2**27


def plan_for(spec: Sampler, stream: KeyStream) -> tuple[PoissonPlan | InOrderPlan | WalkPlan, Fraction]:
    """The plan of a spec, and the probability with which it takes one row into one step."""
    _require_most(spec, "num_steps", spec.num_steps, _MOST_STEPS)
    _require_most(spec, "batch_size", spec.batch_size, _MOST_BATCH)
    if isinstance(spec, Deterministic):
        return InOrderPlan(num_rows=spec.num_examples, batch_size=spec.batch_size), _exact_prob(spec)
    if isinstance(spec, PersistentShuffle | DynamicShuffle | BallsAndBins):
        return _walk(spec, stream), _exact_prob(spec)
    if isinstance(spec, Poisson):
        plan = _poisson(spec, stream, spec.batch_size)
        return plan, Fraction(plan.rate, 2**RATE_BITS)
    if isinstance(spec, TruncatedPoisson):
        plan = _poisson(spec, stream, spec.batch_size, cap=spec.max_batch_size)
        return plan, Fraction(plan.rate, 2**RATE_BITS)
    if isinstance(spec, FixedSizeSampling):
        return _fixed_size(spec, stream), _exact_prob(spec)
    raise InvalidArgument(
        f"spec must be one of truebatch's samplers; got an object of type {type(spec).__name__}."
    )


def _exact_prob(spec: Sampler) -> Fraction:
    return Fraction(spec.batch_size, spec.num_examples)


def _poisson(
    spec: Sampler, stream: KeyStream, mean: int, *, cap: int | None = None, floor: int = 0
) -> PoissonPlan:
    """Coins of probability floor(2^64 mean / n) / 2^64: rounded down, so never above mean/n."""
    return PoissonPlan(
        stream,
        tiling=tiling_for(num_rows=spec.num_examples, batch_size=spec.batch_size),
        num_steps=spec.num_steps,
        rate=(mean << RATE_BITS) // spec.num_examples,
        cap=cap,
        floor=floor,
    )


def _fixed_size(spec: FixedSizeSampling, stream: KeyStream) -> PoissonPlan:
    """A Poisson batch of a little more than b rows, cut to b of them; drawn again should it fall short.

    Neither the cut nor the condition looks at which rows are there, so every set of b rows is equally likely.
    """
    b = spec.batch_size
    mean = min(b + SPARE_DEVIATIONS * (math.isqrt(b) + 1), spec.num_examples)
    return _poisson(spec, stream, mean, cap=b, floor=b)


def _walk(spec: PersistentShuffle | DynamicShuffle | BallsAndBins, stream: KeyStream) -> WalkPlan:
    _require_most(spec, "num_examples", spec.num_examples, _MOST_WALKED_ROWS)
    n, b, S, E = spec.num_examples, spec.batch_size, spec.steps_per_epoch, spec.whole_epochs
    tiling = tiling_for(num_rows=n, batch_size=b, max_tile_rows=MAX_TILE_ROWS)
    _require_most(spec, "the number of tiles", tiling.num_tiles, _MOST_WALKED_TILES - 1)
    bounds: Bounds = lambda _, steps: steps * b  # noqa: E731
    extra = Fraction(0)
    if isinstance(spec, BallsAndBins):
        _require_most(spec, "num_examples/batch_size", S, _MOST_BINS)
        bins = BinSizes(stream, num_rows=n, num_steps=S)
        bounds, extra = bins.bounds, E * bins.distance_per_epoch
    return WalkPlan(
        stream,
        tiling=tiling,
        steps_per_epoch=S,
        num_epochs=E,
        bounds=bounds,
        bounds_distance=extra,
        persistent=isinstance(spec, PersistentShuffle),
    )


def _require_most(spec: Sampler, name: str, value: int, most: int) -> None:
    if value > most:
        raise InvalidSpec(
            f"{name} must be at most 2^{most.bit_length() - 1} in a schedule of {type(spec).__name__}; "
            f"got {name}={value}."
        )
