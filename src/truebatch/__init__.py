"""DP-SGD whose batches are what the accountant was told."""

from truebatch import accounting
from truebatch.errors import TruebatchError
from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import (
    BallsAndBins,
    Deterministic,
    DynamicShuffle,
    FixedSizeSampling,
    PersistentShuffle,
    Poisson,
    TruncatedPoisson,
)

__version__ = "0.1.0"

__all__ = [
    "BallsAndBins",
    "Deterministic",
    "DynamicShuffle",
    "FixedSizeSampling",
    "Key",
    "PersistentShuffle",
    "Poisson",
    "TruebatchError",
    "TruncatedPoisson",
    "__version__",
    "accounting",
    "schedule",
]
