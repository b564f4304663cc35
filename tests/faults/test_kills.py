"""Kill -9 at random moments of the work: the same bytes and parameters at the end, every time."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from small_jobs import BATCHES, TRAIN, contents, result, write_rows

SEED = 20_261_120
SCRIPT = Path(__file__).parents[1] / "support" / "killed_jobs.py"


def fifty(few: int) -> pytest.MarkDecorator:
    """A handful in the default suite, and fifty in the slow one."""
    return pytest.mark.parametrize("kills", [few, pytest.param(50, marks=pytest.mark.slow)])


def killed(kills: int, out: Path, line: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(kills), str(SEED), str(out), *line.split()],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"] == kills
    return found


@fifty(few=5)
@pytest.mark.parametrize("nulls", [False, True], ids=["in place", "buckets"])
def test_batches_that_are_killed_end_with_the_same_bytes(nulls, kills, tmp_path) -> None:
    rows = write_rows(tmp_path / "rows.parquet", 20_000, nulls=nulls)
    options = BATCHES.replace("--batch-size 200", "--batch-size 1000").replace("230", "1200")
    found = killed(kills, tmp_path / "out", f"batches {rows} {options}")
    whole = contents(tmp_path / "whole")
    assert len(whole) > 5
    assert found["whole"]
    assert all(contents(Path(out)) == whole for out in found["whole"])
    assert kills < 50 or "pass.json" in found["stages"], found


@fifty(few=2)
def test_a_run_that_is_killed_ends_with_the_same_parameters(kills, tmp_path) -> None:
    rows = write_rows(tmp_path / "rows.parquet")
    found = killed(kills, tmp_path / "out", f"train {rows} {TRAIN}")
    whole = result(tmp_path / "whole")
    assert found["whole"]
    assert all(result(Path(out)) == whole for out in found["whole"])
    assert kills < 50 or {"checkpoints", "curves.csv"} & set(found["stages"]), found


BEAM = """
import sys
import truebatch.batching.make as room
from truebatch.cli import main
room.RECORD_BYTES, room.PART_BYTES = 10_000, 40_000
raise SystemExit(main(sys.argv[1:]))
"""


class Job:
    """A Beam job of two worker processes, and its worker processes."""

    def __init__(self, rows: Path, out: Path) -> None:
        processes = "--direct_running_mode=multi_processing --direct_num_workers=2"
        line = f"batches {rows} --out {out} {BATCHES} --engine beam -- {processes}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEAM, *line.split()],
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def workers(self) -> list[int]:
        """The workers of this job that are alive, and of no other."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                is_worker = b"sdk_worker_main" in (place / "cmdline").read_bytes()
                if is_worker and os.getsid(int(place.name)) == self.process.pid:
                    found.append(int(place.name))
            except OSError:
                continue  # it ended just now
        return found

    def first_worker(self) -> int | None:
        """None for a job that had nothing left for workers to do, and ended."""
        until = time.monotonic() + 120
        while not (found := self.workers()):
            if self.process.poll() is not None:
                assert self.process.returncode == 0
                return None
            assert time.monotonic() < until
            time.sleep(0.05)
        return found[0]

    def end(self) -> None:
        """All processes of the job."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def test_a_beam_worker_that_is_killed_changes_no_byte_of_what_the_next_call_ends(tmp_path) -> None:
    kill_workers(2, tmp_path, patience=0.5)


@pytest.mark.slow
def test_fifty_beam_workers_that_are_killed_change_no_byte_of_what_the_next_call_ends(tmp_path) -> None:
    kill_workers(50, tmp_path, patience=0.5)


@pytest.mark.slow
def test_where_the_runner_lives_on_after_a_worker_was_killed_the_bytes_are_the_same(tmp_path) -> None:
    """Beam's runner waits a minute for the worker, and then does without."""
    kill_workers(1, tmp_path, patience=240)


def kill_workers(kills: int, place: Path, *, patience: float) -> None:
    """Kill a worker at a random moment of its life; a runner that does not end in time is killed too."""
    rng, rows = np.random.default_rng(SEED), write_rows(place / "rows.parquet")
    whole, job = place / "whole", Job(rows, place / "whole")
    assert job.first_worker() is not None
    began = time.monotonic()
    assert job.process.wait(300) == 0
    length, done = time.monotonic() - began, 0
    out = place / "out"
    while done < kills:
        if (out / "manifest.json").exists():  # it was faster: that one is whole, and another begins
            assert contents(out) == contents(whole)
            shutil.rmtree(out)
        job = Job(rows, out)
        try:
            worker = job.first_worker()
            if worker is None:
                continue
            time.sleep(float(rng.uniform(0, length)))
            if worker in job.workers():
                os.kill(worker, signal.SIGKILL)
                done += 1
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.process.wait(patience)
        finally:
            job.end()
    job = Job(rows, out)
    assert job.process.wait(300) == 0
    assert contents(out) == contents(whole)
