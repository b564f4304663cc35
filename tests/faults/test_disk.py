"""A full or read-only disk: two lines, exit code 2, nothing lost; and the same command ends it aright."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from broken_disk import BrokenDisk
from small_jobs import BATCHES, batches, contents, result, train, write_rows


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 10_000)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 40_000)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Rows, what a run on them that nothing disturbed ends with, and how often it changed the disk."""
    place = tmp_path_factory.mktemp("trained")
    write_rows(place / "rows.parquet")
    with pytest.MonkeyPatch.context() as patch:
        disk = BrokenDisk(patch, errno.ENOSPC)
        assert train(place / "rows.parquet", place / "whole") == 0
    return place, disk.calls


def refused(code: int, capsys, error: int) -> None:
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if line.startswith(("truebatch ", "Hint: "))]
    assert len(said) == 2
    full = error in (errno.ENOSPC, errno.EDQUOT)
    assert ("room" in err or "No space" in err) if full else ("writ" in err or "Read-only" in err), err


@pytest.mark.parametrize("most", [8, pytest.param(1000, marks=pytest.mark.slow)], ids=["some", "every"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
@pytest.mark.parametrize("nulls", [False, True], ids=["in place", "buckets"])
def test_batches_survive_a_disk_that_fails_at_any_call(
    nulls, error, most, tmp_path, monkeypatch, capsys
) -> None:
    rows = write_rows(tmp_path / "rows.parquet", nulls=nulls)
    with monkeypatch.context() as patch:
        disk = BrokenDisk(patch, error)
        assert batches(rows, tmp_path / "whole") == 0
    whole, failed = contents(tmp_path / "whole"), 0
    assert disk.calls > 60
    for k in sorted({disk.calls * i // most for i in range(most)} | {1, disk.calls - 1}):
        out = tmp_path / f"out-{k}"
        capsys.readouterr()
        with monkeypatch.context() as patch:
            BrokenDisk(patch, error, k)
            code = batches(rows, out)
        if code != 0:  # the last calls clear up what is done with, and may fail
            refused(code, capsys, error)
            failed += 1
        assert batches(rows, out) == 0
        assert contents(out) == whole
        assert [path.name for path in out.iterdir() if path.is_dir()] == []
        shutil.rmtree(out)
    assert failed > min(most, disk.calls) // 2


SHARES = {errno.ENOSPC: (0.02, 0.4), errno.EROFS: (0.0, 0.6)}


@pytest.mark.parametrize("error", SHARES, ids=["full", "read-only"])
def test_a_run_survives_a_disk_that_fails_at_any_stage(error, trained, tmp_path, monkeypatch, capsys) -> None:
    place, calls = trained
    rows, out = place / "rows.parquet", tmp_path / "run"
    assert calls > 100
    for share in SHARES[error]:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            BrokenDisk(patch, error, int(share * calls))
            refused(train(rows, out), capsys, error)
        assert not (out / "run.json").exists()
    assert train(rows, out) == 0
    assert result(out) == result(place / "whole")


LIMITED = """
    import resource, sys
    from truebatch.cli import main
    import truebatch.batching.make as room
    room.RECORD_BYTES, room.PART_BYTES = 10_000, 40_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
    raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize("nulls", [False, True], ids=["in place", "buckets"])
def test_files_that_the_system_does_not_let_grow_are_told_and_the_rest_stays(nulls, tmp_path) -> None:
    rows, out = write_rows(tmp_path / "rows.parquet", nulls=nulls), tmp_path / "out"
    assert batches(rows, tmp_path / "whole") == 0
    line = [*f"batches {rows} --out {out} {BATCHES}".split()]
    code = "import textwrap; exec(textwrap.dedent('''" + LIMITED + "'''))"
    done = subprocess.run(
        [sys.executable, "-c", code, "20000", *line], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr
    assert "Hint: make room" in done.stderr
    assert batches(rows, out) == 0
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("place", ["/proc/out", "/sys/out", "{tmp}/file/out", "{tmp}/file", "/dev/null"])
@pytest.mark.parametrize("make", [batches, train])
def test_a_place_where_not_even_root_may_write_is_refused_in_words(make, place, tmp_path, capsys) -> None:
    (tmp_path / "file").write_text("kept")
    rows = write_rows(tmp_path / "rows.parquet")
    code = make(rows, Path(place.format(tmp=tmp_path)))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "the output must be a directory that can be written" in err
    assert (tmp_path / "file").read_text() == "kept"


def test_a_checkpoint_without_room_leaves_the_one_before(trained, tmp_path, monkeypatch, capsys) -> None:
    (place, _), out, replace = trained, tmp_path / "run", os.replace
    rows, saved = place / "rows.parquet", []

    def full(source, target):
        if str(target).endswith(".checkpoint"):
            saved.append(target)
            if len(saved) == 4:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert train(rows, out) == 2
    assert "a checkpoint needs" in capsys.readouterr().err
    kept = sorted(path.name for path in (out / "checkpoints").iterdir())
    assert kept == [Path(path).name for path in saved[1:3]]
    assert train(rows, out) == 0
    assert result(out) == result(place / "whole")
