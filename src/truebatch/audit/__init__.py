"""The step that really runs, attacked: an empirical lower bound on its epsilon."""

from truebatch.audit.attacks import Attack, attack, attacks_of
from truebatch.audit.audit import audit
from truebatch.audit.buffer_shuffle import BufferSchedule, BufferShuffle
from truebatch.audit.events import Event, Judgement, clopper_pearson, epsilon_lower
from truebatch.audit.result import NOT_REFUTED, REFUTED, Audit, Finding, proven
from truebatch.audit.rows import Rows
from truebatch.audit.run import RunAudit, audit_run
from truebatch.audit.steps import OurStep, TrainStep, sums_from_parameters
from truebatch.audit.trials import Progress

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
    "RunAudit",
    "TrainStep",
    "attack",
    "attacks_of",
    "audit",
    "audit_run",
    "clopper_pearson",
    "epsilon_lower",
    "proven",
    "sums_from_parameters",
]
