"""A clock that jumps or stands still: no result depends on it, and no duration is negative."""

import itertools
import json
import time
from importlib import import_module
from types import SimpleNamespace

import pytest
from small_jobs import batches, contents, result, train, write_rows


@pytest.fixture(params=["jumps", "stands still"])
def clock(request, monkeypatch):
    """Put in place of the system's by a call."""
    jumps = itertools.cycle((2e9, 0.0, 1.7e9, -1e6, 4e9))

    def put() -> None:
        if request.param == "jumps":
            monkeypatch.setattr(time, "time", lambda: next(jumps))
            monkeypatch.setattr(time, "time_ns", lambda: int(next(jumps) * 1e9))
        else:  # for us alone: threads of others wait by it
            still = SimpleNamespace(monotonic=lambda: 5.0, time=lambda: 1e9, perf_counter=lambda: 5.0)
            for name in ("truebatch.training.train", "truebatch.records.run"):
                monkeypatch.setattr(import_module(name), "time", still)

    return put


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Rows, batches and a run by a clock that goes as clocks do."""
    place = tmp_path_factory.mktemp("whole")
    rows = write_rows(place / "rows.parquet")
    assert batches(rows, place / "batches") == 0
    assert train(rows, place / "run") == 0
    return place


def test_no_result_depends_on_the_clock(clock, whole, tmp_path) -> None:
    clock()
    assert batches(whole / "rows.parquet", tmp_path / "batches") == 0
    assert train(whole / "rows.parquet", tmp_path / "run") == 0
    assert contents(tmp_path / "batches") == contents(whole / "batches")
    assert result(tmp_path / "run") == result(whole / "run")
    seconds = json.loads((tmp_path / "run" / "run.json").read_text())["seconds"]
    assert all(0 <= value < 1000 for value in seconds.values())
    lines = (tmp_path / "run" / "curves.csv").read_text().splitlines()[2:]
    assert len(lines) == 10
    assert all(0 <= float(line.split(",")[1]) < 1000 for line in lines)
