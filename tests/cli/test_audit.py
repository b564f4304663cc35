"""`truebatch audit` on small runs: what it prints, what it refutes, what it refuses."""

import dataclasses
import json
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from truebatch import DynamicShuffle, Poisson, accounting
from truebatch.audit import audit_run
from truebatch.audit.run import first_steps, recorded
from truebatch.cli import main
from truebatch.errors import DamagedRun, InvalidArgument
from truebatch.specs import as_dict

SHUFFLED = DynamicShuffle(num_examples=480, batch_size=60, num_steps=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, and the records of one that is shuffled with Poisson's noise and one without noise."""
    place = tmp_path_factory.mktemp("audited")
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    pq.write_table(pa.table({"label": (x > 0).astype(np.int8), "x": x}), place / "rows.parquet")
    options = "--batch-size 60 --steps 40 --delta 1e-3 --epsilon 3 --model linear --public-test-seed 1"
    assert main(f"train {place}/rows.parquet --out {place}/poisson {options}".split()) == 0
    record = json.loads((place / "poisson" / "run.json").read_text())
    for name, changes in (
        ("shuffled", {"spec": as_dict(SHUFFLED), "accounted_as": "poisson", "sigma": 0.6, "delta": 0.05}),
        ("bare", {"sigma": None, "epsilon": None, "delta": None}),
    ):
        (place / name).mkdir()
        edited = record | {
            "claim": record["claim"] | changes,
            "config": record["config"] | {"steps": SHUFFLED.num_steps},
        }
        (place / name / "run.json").write_text(json.dumps(edited))
    return place


def audited(runs, capsys, line: str) -> tuple[int, dict, str]:
    code = main(["audit", *line.format(runs=runs).split(), "--json"])
    out = capsys.readouterr()
    return code, json.loads(out.out), out.err


def test_a_true_run_is_not_refuted(runs, capsys) -> None:
    code, found, progress = audited(runs, capsys, "{runs}/poisson --trials 3000 --attack alone")
    assert code == 0
    assert found["verdict"] == "not refuted"
    assert found["spec"]["num_steps"] == 40
    assert 0.3 < found["epsilon_lower"] < found["proven"]["upper"]
    assert found["claimed_epsilon"] == pytest.approx(3, abs=1e-3)
    assert "attack alone" in progress
    assert any("truebatch verify" in line for line in found["not_audited"])


def test_a_smaller_claim_is_refuted_with_exit_code_1(runs, capsys) -> None:
    code, found, _ = audited(
        runs, capsys, "{runs}/poisson --trials 3000 --attack alone --claimed-epsilon 0.1"
    )
    assert (code, found["verdict"]) == (1, "refuted")


def test_what_was_audited_and_what_was_not_is_said(runs, capsys) -> None:
    assert main(["audit", f"{runs}/shuffled", "--trials", "100", "--claimed-epsilon", "0.2"]) == 1
    out = capsys.readouterr().out
    assert "on batches of dynamic shuffle" in out
    assert "(the noise is that of poisson) is refuted" in out
    assert "not audited: the run's model and data" in out


def test_at_another_delta_the_claim_is_that_of_the_claimed_sampler(runs, capsys) -> None:
    """The record says Poisson's noise at delta = 0.05; at 0.2 its epsilon is a smaller one."""
    _, found, _ = audited(runs, capsys, "{runs}/shuffled --delta 0.2 --trials 10")
    claimed = Poisson(num_examples=480, batch_size=60, num_steps=8)
    expected = accounting.epsilon(claimed, sigma=0.6, delta=0.2).upper.value
    assert found["claimed_epsilon"] == pytest.approx(expected, rel=1e-4)
    assert found["delta"] == 0.2


def test_where_time_is_short_the_first_steps_stand_for_the_run(runs) -> None:
    found = audit_run(runs / "poisson", seconds=0.2)
    assert found.num_steps < 40
    assert found.num_steps % 4 == 0
    assert any(f"the first {found.num_steps} of 40" in line for line in found.not_audited())
    assert found.proven.upper.value > found.audit.proven.upper.value


def test_the_first_steps_of_a_shuffle_are_whole_epochs(runs) -> None:
    spec = DynamicShuffle(num_examples=40, batch_size=8, num_steps=50)
    short = dataclasses.replace(recorded(runs / "shuffled"), spec=spec)
    assert first_steps(short, seconds=0.0) == dataclasses.replace(spec, num_steps=5)
    assert first_steps(short, seconds=1e6) == spec


def test_interrupted_it_says_what_it_has(runs, capsys, monkeypatch) -> None:
    """The interrupt comes while trials run, as from a keyboard."""
    from truebatch.cli import auditing

    def interrupt(progress) -> None:
        if progress.done == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(auditing, "_line", interrupt)
    code, found, _ = audited(runs, capsys, "{runs}/shuffled")
    assert (code, found["verdict"]) == (0, "not refuted")
    assert found["findings"][0]["runs"] == 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_run_without_noise_has_nothing_to_audit(runs) -> None:
    with pytest.raises(InvalidArgument, match="added none"):
        recorded(runs / "bare")


@pytest.mark.parametrize(
    "edit",
    [
        {"claim": None},
        {"claim": {"spec": {"sampler": "magic"}}},
        {"training": {"road": "air"}},
        {"training": []},
    ],
)
def test_a_record_that_does_not_say_what_ran_is_refused(runs, tmp_path, edit) -> None:
    record = json.loads((runs / "poisson" / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | edit))
    with pytest.raises(DamagedRun, match="record"):
        recorded(tmp_path)


@pytest.mark.parametrize(
    "options",
    ["--minutes 0", "--claimed-epsilon -1", "--confidence 1", "--delta 1", "--trials 0", "--seed -1"],
)
def test_bad_requests_end_with_code_2(runs, options: str) -> None:
    try:
        code = main(["audit", f"{runs}/poisson", *options.split()])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
