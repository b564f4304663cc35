"""The quick faults, in this process; and the runner, on faults that it must not take for caught."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trust import page
from trust.__main__ import main
from trust.suite import FAMILIES, Member, Outcome, Verdict, forgotten, members, side

ROOT = Path(__file__).parents[2]
MEMBERS = members()
# Checks that train a run or audit a step take longer: `make trust` has them all.
SLOW = ("verify: ", "a run leaves", "output of a run", "audit of our step")


def one_of_each_check() -> Iterator[Member]:
    """But for those of training, which have tests of their own."""
    tried = set()
    for member in MEMBERS:
        name = member.fault.check.name
        if name not in tried and "training" not in member.module and not any(part in name for part in SLOW):
            tried.add(name)
            yield member


QUICK = list(one_of_each_check())


@pytest.mark.parametrize("member", QUICK, ids=[member.fault.check.name for member in QUICK])
def test_a_check_holds_of_true_code_and_raises_on_broken_code(member: Member) -> None:
    with forgotten():
        intact = side(member.fault, broken=False)
        assert intact.outcome is Outcome.HELD, intact.said
    with forgotten():
        broken = side(member.fault, broken=True)
        assert broken.outcome is Outcome.RAISED, broken.said


def test_every_family_has_a_member_and_states_its_chances() -> None:
    assert {member.fault.number for member in MEMBERS} == set(FAMILIES)
    for member in MEMBERS:
        check = member.fault.check
        assert 0 <= check.false_alarm <= 1e-6
        assert 0.99 <= check.power <= 1


def test_the_page_has_the_faults_that_there_are() -> None:
    table = page.PAGE.read_text().partition(page.BEGIN)[2].partition(page.END)[0]
    assert table.strip() == page.as_markdown((m.fault, Verdict.CAUGHT) for m in MEMBERS).strip()


SORTS = """
from functools import partial
from trust.fault import Check, Fault, replaced
from truebatch import Key

def key_has_32_bytes():
    import truebatch.keys
    assert truebatch.keys.KEY_BYTES == 32, "a key has another length"

def always():
    raise AssertionError("always")

def fault(number, name, inject, run):
    check = Check(name="of a test", run=run)
    return Fault(number=number, name=name, how="a test", inject=inject, check=check)

shorter = partial(replaced, {"truebatch.keys:KEY_BYTES": 16})
wrong_type = partial(replaced, {"truebatch.keys:KEY_BYTES": None, "truebatch.keys:Key.for_tests": None})
FAULTS = (
    fault(1, "good", shorter, key_has_32_bytes),
    fault(2, "a check that cannot fail", shorter, lambda: None),
    fault(3, "a check that always fails", shorter, always),
    fault(4, "no such place", partial(replaced, {"truebatch.keys:NOWHERE": 1}), key_has_32_bytes),
    fault(5, "no such module", partial(replaced, {"truebatch.nowhere:KEY": 1}), key_has_32_bytes),
    fault(6, "breaks the check itself", wrong_type, lambda: Key.for_tests(1)),
    fault(7, "the injection raises", always, key_has_32_bytes),
    fault(8, "never reached", partial(replaced, {"truebatch.keys:_SALT": b""}), key_has_32_bytes),
    fault(9, "dies", shorter, lambda: __import__("os")._exit(3)),
)
"""


@pytest.fixture(scope="module")
def sorted_out(tmp_path_factory) -> dict[str, dict[str, object]]:
    """What the runner, in a process of its own, makes of faults of every sort."""
    place = tmp_path_factory.mktemp("sorts")
    (place / "sorts.py").write_text(SORTS)
    done = subprocess.run(
        [sys.executable, "-m", "trust", "--faults", "sorts", "--json"],
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{place}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["holds"] is False
    assert found["missing_families"] == list(range(10, 21))
    assert "9 of 9" in done.stderr
    return {fault["fault"]: fault for fault in found["faults"]}


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("good", "caught"),
        ("a check that cannot fail", "NOT CAUGHT"),
        ("never reached", "NOT CAUGHT"),
        ("a check that always fails", "FALSE ALARM"),
        ("no such place", "ERROR"),
        ("no such module", "ERROR"),
        ("breaks the check itself", "ERROR"),
        ("the injection raises", "ERROR"),
        ("dies", "ERROR"),
    ],
)
def test_only_a_check_that_tells_the_two_apart_counts(name: str, result: str, sorted_out) -> None:
    assert sorted_out[name]["result"] == result


def test_what_went_wrong_is_said(sorted_out) -> None:
    assert "a key has another length" in sorted_out["good"]["said"]
    assert "NOWHERE" in sorted_out["no such place"]["said"]
    assert "code 3" in sorted_out["dies"]["said"]


@pytest.mark.parametrize(("only", "code"), [("1", 0), ("2", 1), ("10", 1)])
def test_the_exit_code_is_0_only_when_all_that_was_asked_for_is_caught(
    only: str, code: int, tmp_path, monkeypatch, capsys
) -> None:
    (tmp_path / "sorts_again.py").write_text(SORTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'tests'}:{tmp_path}")
    assert main(["--faults", "sorts_again", "--only", only]) == code
    out = capsys.readouterr().out
    assert ("NOT CAUGHT" in out) is (only == "2")
    assert ("has no member" in out) is (only == "10")


def test_a_part_of_the_table_is_not_written(capsys) -> None:
    before = page.PAGE.read_text()
    assert main(["--write", "--only", "1"]) == 2
    assert page.PAGE.read_text() == before
    assert "--only" in capsys.readouterr().err
