"""Spec and sigma to epsilon or delta; epsilon and delta to sigma and the cap B."""

from truebatch.accounting.bounds import Adjacency, Bound, DeltaCurve, Direction, Interval

__all__ = ["Adjacency", "Bound", "DeltaCurve", "Direction", "Interval"]
