"""A directory of batches is begun, resumed, found done or refused; never half taken for whole."""

import errno
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections import namedtuple

import numpy as np
import pyarrow as pa
import pytest

from truebatch import Key, TruncatedPoisson
from truebatch.batching import GatherEngine, Job, LocalEngine, in_place, make_batches, open_batches
from truebatch.batching.engine import WORK
from truebatch.batching.journal import Journal
from truebatch.batching.manifest import MANIFEST
from truebatch.data import TableSource
from truebatch.errors import InvalidSpec, NoSpace, OutputRefused, SourceChanged

KEY = Key.for_tests(5)
N = 4000
MEMORY = 72_000  # four pieces of the source, in runs that are worth a write in place
SPEC = TruncatedPoisson(num_examples=N, batch_size=200, num_steps=60, max_batch_size=230)


def fixed(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    fields = [pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.float64(), nullable=False)]
    return pa.table(
        [pa.array(rng.integers(0, 9, N).astype(np.int32)), pa.array(rng.normal(size=N))],
        schema=pa.schema(fields),
    )


def text(seed: int = 0) -> pa.Table:
    return fixed(seed).append_column("s", pa.array([f"r{i}" for i in range(N)]))


ROADS = {"in place": fixed, "buckets": text}


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 10_000)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 40_000)


@pytest.mark.parametrize("road", ROADS)
def test_the_roads_are_what_they_are_called(road) -> None:
    job = Job(spec=SPEC, schema=ROADS[road]().schema, record_bytes=10_000, part_bytes=40_000)
    assert in_place.suits(job, MEMORY) is (road == "in place")
    assert in_place.piece_rows(job, MEMORY) < N / 3


def contents(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def make(table, directory, **more):
    return make_batches(table, SPEC, directory, KEY, memory=MEMORY, workers=2, **more)


@pytest.mark.parametrize("road", ROADS)
def test_a_finished_directory_holds_batches_and_manifest_alone_and_is_found_done(road, tmp_path) -> None:
    table, out = ROADS[road](), tmp_path / "new" / "batches"
    manifest = make(table, out)
    held = contents(out)
    assert len(manifest["files"]) > 4
    assert set(held) == {MANIFEST, *(entry["name"] for entry in manifest["files"])}
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert make(table, out) == manifest
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == times


def test_engines_and_means_give_the_same_directory(tmp_path) -> None:
    table = fixed()
    make(table, tmp_path / "a")
    make_batches(table, SPEC, tmp_path / "b", KEY, engine=LocalEngine(), memory=1 << 30, workers=1)
    make_batches(table, SPEC, tmp_path / "c", KEY, engine=GatherEngine(), workers=3)
    assert contents(tmp_path / "a") == contents(tmp_path / "b") == contents(tmp_path / "c")


class Crash(BaseException):
    """The process ends here."""


CALLS = [
    (os, "pwrite"), (os, "write"), (os, "fsync"), (os, "fdatasync"), (os, "posix_fallocate"),
    (os, "truncate"), (pathlib.Path, "rename"), (pathlib.Path, "unlink"), (shutil, "rmtree"),
]  # fmt: skip


class CrashAfter:
    """From the k-th call that changes the disk on, none is carried out any more."""

    def __init__(self, monkeypatch, k: int) -> None:
        self.left = k
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, self._wrap(getattr(owner, name)))

    def _wrap(self, call):
        def wrapped(*args, **kwargs):
            self.left -= 1
            if self.left < 0:
                raise Crash
            return call(*args, **kwargs)

        return wrapped


@pytest.mark.parametrize("road", ROADS)
def test_stopped_before_any_write_the_next_run_ends_with_the_same_bytes(road, tmp_path, monkeypatch) -> None:
    table, out = ROADS[road](), tmp_path / "out"
    make(table, tmp_path / "whole", engine=LocalEngine())
    whole, k, crashes = contents(tmp_path / "whole"), 0, 0
    while True:
        with monkeypatch.context() as patch:
            CrashAfter(patch, k)
            try:
                make(table, out, engine=LocalEngine())
            except Crash:
                crashes += 1
                if (out / MANIFEST).exists():
                    open_batches(out).verify()
            else:
                break
        if crashes % 3 == 2:  # now and then, go on from there instead of anew
            make(table, out, engine=LocalEngine())
        if (out / MANIFEST).exists():
            assert contents_of_files(out) == whole
            shutil.rmtree(out)
        k += 1 + k // 7
    assert crashes > 20
    assert contents(out) == whole


def contents_of_files(directory) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


SCRIPT = """
    import sys, pyarrow as pa
    from truebatch import Key, TruncatedPoisson
    from truebatch.batching import LocalEngine, make_batches
    import truebatch.batching.make as room
    room.RECORD_BYTES, room.PART_BYTES = 10_000, 40_000
    with pa.memory_map(sys.argv[1]) as file:
        table = pa.ipc.open_file(file).read_all()
    spec = TruncatedPoisson(num_examples=len(table), batch_size=200, num_steps=60, max_batch_size=230)
    print("begun", flush=True)
    make_batches(table, spec, sys.argv[2], Key.for_tests(5), engine=LocalEngine(), memory=72_000, workers=2)
"""


@pytest.mark.parametrize("road", ROADS)
def test_killed_at_random_moments_it_ends_with_the_same_bytes(road, tmp_path) -> None:
    table, out, rng = ROADS[road](), tmp_path / "out", np.random.default_rng(7)
    make(table, tmp_path / "whole", engine=LocalEngine())
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), table.schema) as writer:
        writer.write_table(table)
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path / "rows.arrow"), str(out)]
    killed = 0
    while killed < 5:
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(rng.uniform(0, 0.15))
        process.send_signal(signal.SIGKILL)
        killed += process.wait() == -signal.SIGKILL
        process.stdout.close()
        if (out / MANIFEST).exists():
            assert contents_of_files(out) == contents(tmp_path / "whole")
            shutil.rmtree(out)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert contents(out) == contents(tmp_path / "whole")


def test_a_damaged_part_is_made_again_on_resuming(tmp_path, monkeypatch) -> None:
    table, out = fixed(), tmp_path / "out"
    make(table, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("truebatch.batching.output.finish", lambda *_: (_ for _ in ()).throw(Crash))
        with pytest.raises(Crash):
            make(table, out)
    part = out / "part-00001.arrow"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    make(table, out)
    assert contents(out) == contents(tmp_path / "whole")


def begun(out) -> None:
    """A directory whose run was stopped before its end."""
    make(fixed(), out)
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["files"]
    (out / WORK).mkdir()
    (out / WORK / "job.json").write_text(json.dumps(manifest))
    (out / MANIFEST).unlink()


@pytest.mark.parametrize("state", ["finished", "begun"])
def test_other_rows_another_key_or_spec_are_refused_and_nothing_is_touched(state, tmp_path) -> None:
    out = tmp_path / "out"
    make(fixed(), out) if state == "finished" else begun(out)
    held = contents_of_files(out)
    with pytest.raises(SourceChanged, match="differs in digest"):
        make(fixed(1), out)
    with pytest.raises(OutputRefused, match="another key"):
        make_batches(fixed(), SPEC, out, Key.for_tests(6))
    other = TruncatedPoisson(num_examples=N, batch_size=200, num_steps=61, max_batch_size=230)
    with pytest.raises(OutputRefused, match=r"num_steps \(60 there, 61 here\)"):
        make_batches(fixed(), other, out, KEY)
    assert contents_of_files(out) == held
    make(fixed(), out)


def test_a_directory_of_other_files_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(OutputRefused, match="holds other files"):
        make(fixed(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_place_that_cannot_be_written_is_refused(tmp_path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputRefused, match="can be written"):
        make(fixed(), tmp_path / "file" / "out")


def test_two_runs_in_one_directory_the_second_refuses(tmp_path) -> None:
    from truebatch.batching import output

    with output.claimed(tmp_path / "out"), pytest.raises(OutputRefused, match="in use"):
        make(fixed(), tmp_path / "out")
    make(fixed(), tmp_path / "out")


class Growing(TableSource):
    """A source that is written to while it is read."""

    reads = 0

    def read(self, start, stop):
        self.reads += 1
        return super().read(start, stop)

    def identity(self):
        return {"reads": self.reads > 1}


def test_a_source_that_changes_on_the_way_is_noticed(tmp_path) -> None:
    with pytest.raises(SourceChanged, match="this one changed"):
        make(Growing(fixed()), tmp_path / "out", engine=LocalEngine())
    assert not (tmp_path / "out" / MANIFEST).exists()


def test_a_source_of_another_number_of_rows_is_refused(tmp_path) -> None:
    with pytest.raises(InvalidSpec, match="num_examples=3999"):
        make(fixed().slice(1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize("road", ROADS)
def test_a_full_disk_is_told_before_and_on_the_way_and_can_be_resumed(road, tmp_path, monkeypatch) -> None:
    table, out = ROADS[road](), tmp_path / "out"
    make(table, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: Usage(1, 1, 1000))
        with pytest.raises(NoSpace, match="needs about"):
            make(table, out, engine=LocalEngine())
    calls = 0

    def full(*_):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        name = "posix_fallocate" if road == "in place" else "fdatasync"
        patch.setattr(os, name, full)
        with pytest.raises(NoSpace, match="goes on where it stopped"):
            make(table, out, engine=LocalEngine())
    make(table, out, engine=LocalEngine())
    assert contents(out) == contents(tmp_path / "whole")


def test_neither_key_nor_sizes_stand_in_the_manifest(tmp_path) -> None:
    from truebatch import schedule

    key = Key.generate()
    make_batches(fixed(), SPEC, tmp_path / "out", key)
    said = (tmp_path / "out" / MANIFEST).read_text()
    assert key.to_bytes().hex() not in said
    drawn = schedule(SPEC, key)
    numbers = {int(word) for word in said.replace(",", " ").split() if word.isdigit()}
    assert not numbers & (set(drawn.sizes().tolist()) - {200, 230})


class Counting(TableSource):
    """A source that counts the rows it gives."""

    given = 0

    def read(self, start, stop):
        self.given += stop - start
        return super().read(start, stop)


@pytest.mark.parametrize("road", ROADS)
def test_a_stopped_run_goes_on_with_the_rows_that_are_missing(road, tmp_path, monkeypatch) -> None:
    source, saves = Counting(ROADS[road]()), 0
    save = Journal.save

    def stop_after_three(self, work):
        nonlocal saves
        saves += 1
        if saves > 3:
            raise Crash
        save(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", stop_after_three)
        with pytest.raises(Crash):
            make(source, tmp_path / "out", engine=LocalEngine())
    source.given = 0
    make(source, tmp_path / "out", engine=LocalEngine())
    assert source.given <= N / 2
    make(ROADS[road](), tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
