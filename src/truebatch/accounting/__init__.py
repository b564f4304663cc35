"""Spec and sigma to epsilon or delta; epsilon and delta to sigma and the cap B."""

from truebatch.accounting.bounds import Adjacency, Bound, Direction, Interval
from truebatch.accounting.calibrate import delta, epsilon, sigma
from truebatch.accounting.catalogue import has_dearer_bounds
from truebatch.accounting.truncation import max_batch_size_by_rule, smallest_max_batch_size
from truebatch.errors import UnknownAnalysis

__all__ = [
    "Adjacency",
    "Bound",
    "Direction",
    "Interval",
    "UnknownAnalysis",
    "delta",
    "epsilon",
    "has_dearer_bounds",
    "max_batch_size_by_rule",
    "sigma",
    "smallest_max_batch_size",
]
