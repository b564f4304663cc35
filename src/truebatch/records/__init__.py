"""A run: what is asked, what ran, what may be claimed, and whether it holds."""

from truebatch.records.config import RunConfig
from truebatch.records.config_file import read_config
from truebatch.records.plan import RunPlan
from truebatch.records.record import RECORD, Record
from truebatch.records.report import write_report
from truebatch.records.run import Watch, run
from truebatch.records.split import Split, SplitBy
from truebatch.records.verify import Check, verify

__all__ = [
    "RECORD",
    "Check",
    "Record",
    "RunConfig",
    "RunPlan",
    "Split",
    "SplitBy",
    "Watch",
    "read_config",
    "run",
    "verify",
    "write_report",
]
