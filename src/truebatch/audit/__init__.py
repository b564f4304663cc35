"""The step that really runs, attacked: an empirical lower bound on its epsilon."""

from truebatch.audit.attacks import Attack, attack, attacks_of
from truebatch.audit.audit import NOT_REFUTED, REFUTED, Audit, Finding, Progress, audit, proven
from truebatch.audit.buffer_shuffle import BufferSchedule, BufferShuffle
from truebatch.audit.events import Event, Judgement, clopper_pearson, epsilon_lower
from truebatch.audit.rows import Rows
from truebatch.audit.steps import OurStep, TrainStep, sums_from_parameters

__all__ = [
    "NOT_REFUTED",
    "REFUTED",
    "Attack",
    "Audit",
    "BufferSchedule",
    "BufferShuffle",
    "Event",
    "Finding",
    "Judgement",
    "OurStep",
    "Progress",
    "Rows",
    "TrainStep",
    "attack",
    "attacks_of",
    "audit",
    "clopper_pearson",
    "epsilon_lower",
    "proven",
    "sums_from_parameters",
]
