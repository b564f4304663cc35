"""Two in one directory at once: the second is refused in words, and the first is unharmed."""

import subprocess
import sys
import textwrap
import time

import pytest
from small_jobs import BATCHES, TRAIN, command, contents, result, write_rows

# The command, held up in the middle of its work until a file says that it may go on.
HELD = """
    import pathlib, sys, time
    place = pathlib.Path(sys.argv[1])
    def wait(*_):
        if not (place / "reached").exists():
            (place / "reached").touch()
            while not (place / "go").exists():
                time.sleep(0.01)
    from truebatch.cli import main
    if sys.argv[2] == "batches":
        from truebatch.batching.journal import Journal as owner
        name = "save"
    else:
        from truebatch.training import checkpoint as owner
        name = "save"
    whole = getattr(owner, name)
    def held(*given):
        wait()
        return whole(*given)
    setattr(owner, name, held)
    raise SystemExit(main(sys.argv[2:]))
"""


@pytest.mark.parametrize(
    ("job", "options"), [("batches", BATCHES), ("train", TRAIN)], ids=["batches", "train"]
)
def test_the_second_is_refused_and_the_first_ends_aright(job, options, tmp_path, capsys) -> None:
    rows, out = write_rows(tmp_path / "rows.parquet"), tmp_path / "out"
    line = f"{job} {rows} --out {out} {options}"
    code = f"import textwrap; exec(textwrap.dedent('''{HELD}'''))"
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), *line.split()], stdout=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 120
        while not (tmp_path / "reached").exists():
            assert first.poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        for _ in range(2):
            assert command(line) == 2
            said, err = capsys.readouterr()
            assert said == ""
            assert "takes one writer at a time" in err
            assert "Hint: wait until the other run has ended." in err
        (tmp_path / "go").touch()
        assert first.wait(120) == 0
    finally:
        first.kill()
        first.wait()
    assert command(f"{job} {rows} --out {tmp_path / 'whole'} {options}") == 0
    found = contents if job == "batches" else result
    assert found(out) == found(tmp_path / "whole")


def test_of_many_that_start_at_once_all_end_with_the_bytes_or_are_refused(tmp_path) -> None:
    rows, out = write_rows(tmp_path / "rows.parquet"), tmp_path / "out"
    code = """
        import os, sys, time
        from truebatch.cli import main
        time.sleep(max(0, float(sys.argv[1]) - time.time()))
        raise SystemExit(main(sys.argv[2:]))
    """
    start = time.time() + 4
    line = f"batches {rows} --out {out} {BATCHES}".split()
    command_line = [sys.executable, "-c", textwrap.dedent(code), str(start), *line]
    started = [
        subprocess.Popen(command_line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    ended = [(process.communicate()[1], process.returncode) for process in started]
    assert 0 in {code for _, code in ended}
    assert all(code == 0 or (code == 2 and "one writer at a time" in err) for err, code in ended), ended
    assert command(f"batches {rows} --out {tmp_path / 'whole'} {BATCHES}") == 0
    assert contents(out) == contents(tmp_path / "whole")
