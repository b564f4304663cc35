"""A command that trains starts again with huge pages, once, and only when it is a command."""

import os
import subprocess
import sys

import pytest

from truebatch.cli import huge_pages


@pytest.fixture
def restarts(monkeypatch):
    made = []
    monkeypatch.setattr(os, "execve", lambda *call: made.append(call))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return made


def test_it_starts_again_with_the_same_words(restarts) -> None:
    huge_pages.restart_with_huge_pages()
    ((program, words, environment),) = restarts
    assert (program, words) == (sys.executable, sys.orig_argv)
    assert environment["GLIBC_TUNABLES"] == huge_pages.TUNABLES
    assert environment["PATH"] == os.environ["PATH"]


def test_tunables_that_are_set_and_other_systems_are_left_alone(restarts, monkeypatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "")
    huge_pages.restart_with_huge_pages()
    monkeypatch.delenv("GLIBC_TUNABLES")
    monkeypatch.setattr(sys, "platform", "darwin")
    huge_pages.restart_with_huge_pages()
    assert restarts == []


def test_a_command_in_a_process_of_its_own_runs_to_its_end(tmp_path) -> None:
    code = "import sys; from truebatch.cli import main; sys.exit(main())"
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    done = subprocess.run(
        [sys.executable, "-c", code, "train", "nowhere.parquet", "--out", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 2
    assert "nowhere.parquet" in done.stderr or "batch size" in done.stderr
