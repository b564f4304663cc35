"""Gather where rows can be reached in memory, scatter everywhere else, and the reason in words."""

import numpy as np
import pyarrow as pa
import pytest

from truebatch import TruncatedPoisson
from truebatch.batching import GatherEngine, Job, LocalEngine, choose_plan
from truebatch.batching import plan as room
from truebatch.data import TableSource
from truebatch.errors import InvalidArgument, InvalidData


class InOrder:
    """A source that is read from end to end."""

    def __init__(self, source):
        self.schema, self.num_rows, self.read, self.identity = (
            source.schema, source.num_rows, source.read, source.identity,
        )  # fmt: skip


SOURCE = TableSource(pa.table({"x": np.arange(100)}))
JOB = Job(
    spec=TruncatedPoisson(num_examples=100, batch_size=5, num_steps=20, max_batch_size=9),
    schema=SOURCE.schema,
)


def test_rows_in_memory_are_gathered() -> None:
    plan = choose_plan(SOURCE, JOB)
    assert (plan.name, plan.engine) == ("gather", GatherEngine())
    assert "stay in" in plan.reason


def test_rows_that_do_not_fit_are_scattered(monkeypatch) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: 1000)
    plan = choose_plan(SOURCE, JOB)
    assert (plan.name, plan.engine) == ("scatter", LocalEngine())
    assert "would not stay in" in plan.reason


def test_rows_read_in_order_are_scattered_and_refuse_to_be_gathered() -> None:
    plan = choose_plan(InOrder(SOURCE), JOB)
    assert (plan.name, plan.reason) == ("scatter", "the source is read in order, from end to end")
    with pytest.raises(InvalidData, match="got a InOrder"):
        choose_plan(InOrder(SOURCE), JOB, wanted="gather")


def test_a_plan_that_is_asked_for_is_taken() -> None:
    assert choose_plan(SOURCE, JOB, wanted="scatter").name == "scatter"
    assert choose_plan(SOURCE, JOB, wanted="gather").name == "gather"
    with pytest.raises(InvalidArgument, match="auto, gather, scatter"):
        choose_plan(SOURCE, JOB, wanted="best")


def test_available_memory_is_the_least_of_machine_and_group(tmp_path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    4096 kB\n")
    assert room.available_memory(tmp_path / "meminfo", tmp_path) == 2**22
    (tmp_path / "memory.max").write_text("max")
    (tmp_path / "memory.current").write_text("5")
    assert room.available_memory(tmp_path / "meminfo", tmp_path) == 2**22
    (tmp_path / "memory.max").write_text("1005")
    assert room.available_memory(tmp_path / "meminfo", tmp_path) == 1000
