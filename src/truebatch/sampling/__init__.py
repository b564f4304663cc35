"""spec + key -> schedule: members(t), placements(start, stop)."""

from truebatch.sampling.schedule import SCHEME, Schedule, schedule
from truebatch.sampling.tiling import Placements

__all__ = ["SCHEME", "Placements", "Schedule", "schedule"]
