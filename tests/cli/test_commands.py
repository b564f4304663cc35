"""The commands as a reviewer and a script use them, and everything a hostile user may type."""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truebatch.cli import main

PAPER = "--examples 36672493 --batch-size 65536 --epochs 1 --delta 2.7e-8"
SMALL = "--examples 4096 --batch-size 64 --epochs 1 --delta 1e-5"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_calibrate_in_the_paper_setting(capsys) -> None:
    code, out, _ = run(capsys, f"calibrate {PAPER} --epsilon 5 --json")
    result = json.loads(out)
    assert code == 0
    sigma = {name: entry["sigma"] for name, entry in result["samplers"].items()}
    assert sigma["deterministic"]["upper"] == pytest.approx(1.106383, abs=1e-6)
    assert sigma["poisson"]["upper"] == pytest.approx(0.547116, abs=1e-6)
    assert sigma["persistent_shuffle"]["lower"] == pytest.approx(1.010783, abs=1e-6)
    assert result["samplers"]["truncated_poisson"]["max_batch_size"] == 67754
    assert sigma["balls_and_bins"]["upper"] < sigma["poisson"]["lower"]
    assert result["inputs"]["steps"] == 560
    assert result["verdict"] is None
    for ends in sigma.values():
        assert ends["lower"] <= ends["upper"]


def test_calibrate_says_what_follows(capsys) -> None:
    _, out, _ = run(capsys, f"calibrate {PAPER} --epsilon 5")
    assert "needs at least 1.85 times Poisson's noise" in out
    assert "Adjacency: zero-out" in out
    assert "36,700,160 = 560 x 65,536" in out


def test_a_claim_gets_a_verdict_per_sampler(capsys) -> None:
    _, out, _ = run(capsys, f"account {PAPER} --sigma 0.5472 --claimed-epsilon 5 --json")
    verdict = json.loads(out)["verdict"]
    assert verdict["poisson"] == "holds"
    assert verdict["truncated_poisson"] == "holds"
    assert (
        verdict["persistent_shuffle"] == verdict["dynamic_shuffle"] == verdict["deterministic"] == "refuted"
    )


def test_a_claim_between_the_bounds_is_unknown(capsys) -> None:
    _, out, _ = run(
        capsys,
        f"account {PAPER} --sigma 1.05 --claimed-epsilon 5 --json "
        "--sampler persistent_shuffle --round-examples",
    )
    assert json.loads(out)["verdict"] == {"persistent_shuffle": "unknown"}


def test_sigma_suffices_for_the_epsilon_it_was_made_for(capsys) -> None:
    _, out, _ = run(capsys, f"calibrate {SMALL} --epsilon 3 --json")
    for name, entry in json.loads(out)["samplers"].items():
        sigma = entry["sigma"]["upper"]
        _, answer, _ = run(
            capsys, f"account {SMALL} --sigma {sigma!r} --claimed-epsilon 3.000001 --sampler {name} --json"
        )
        assert json.loads(answer)["verdict"] == {name: "holds"}, name


def test_steps_stand_for_epochs(capsys) -> None:
    line = "calibrate --examples 4096 --batch-size 64 --delta 1e-5 --epsilon 3 --json --sampler poisson"
    by_steps = json.loads(run(capsys, f"{line} --steps 128")[1])
    by_epochs = json.loads(run(capsys, f"{line} --epochs 2")[1])
    assert by_steps["samplers"] == by_epochs["samplers"]


def test_a_cap_for_an_overhead(capsys) -> None:
    line = f"calibrate {SMALL} --epsilon 3 --json --sampler truncated_poisson"
    rule = json.loads(run(capsys, line)[1])["samplers"]["truncated_poisson"]
    small = json.loads(run(capsys, f"{line} --overhead 0.01")[1])["samplers"]["truncated_poisson"]
    assert small["max_batch_size"] < rule["max_batch_size"]
    assert small["sigma"]["upper"] <= 1.0101 * rule["sigma"]["upper"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon 5 --delta 2", "delta must be"),
        ("calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon 5 --delta 0", "delta must be"),
        ("calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon nan --delta 1e-5", "finite"),
        ("calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon -1 --delta 1e-5", "epsilon must be"),
        ("calibrate --examples 10 --batch-size 64 --epochs 1 --epsilon 1 --delta 1e-5", "batch_size must be"),
        ("calibrate --examples 1000 --batch-size 64 --epochs 0 --epsilon 1 --delta 1e-5", "epochs must be"),
        ("calibrate --examples 1e3 --batch-size 6.5 --epochs 1 --epsilon 1 --delta 1e-5", "whole number"),
        ("calibrate --examples 1000 --batch-size 64 --epsilon 1 --delta 1e-5", "--epochs --steps"),
        (
            "calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon 1 --delta 1e-5 --sampler posson",
            "sampler must be one of",
        ),
        (
            "calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon 1 --delta 1e-5 "
            "--sampler dynamic-shuffle",
            "--round-examples to account for num_examples=1024",
        ),
        (
            "account --examples 1000 --batch-size 64 --epochs 1 --sigma 0 --delta 1e-5",
            "sigma must be above 0",
        ),
        ("figure fig-9", "figure must be one of"),
        ("nonsense", "invalid choice"),
    ],
)
def test_a_bad_request_is_refused_in_a_line(capsys, line: str, said: str) -> None:
    code, out, err = run(capsys, line)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in err


def test_rounding_examples_is_offered_and_works(capsys) -> None:
    line = "calibrate --examples 1000 --batch-size 64 --epochs 1 --epsilon 1 --delta 1e-5 --json"
    code, out, _ = run(capsys, f"{line} --sampler dynamic_shuffle --round-examples")
    assert code == 0
    assert json.loads(out)["samplers"]["dynamic_shuffle"]["num_examples"] == 1024


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(-3, 10**6).map(str),
    st.sampled_from(["", "abc", "1e400", "-0", "1e-320", "0x10", "1_000", "５", "1e9"]),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["calibrate", "account"]))
def test_hostile_numbers_never_meet_a_traceback(capsys, n, b, epochs, goal, delta, command) -> None:
    last = "--epsilon" if command == "calibrate" else "--sigma"
    words = [command, f"--examples={n}", f"--batch-size={b}", f"--epochs={epochs}", f"{last}={goal}"]
    words += [
        f"--delta={delta}",
        "--sampler=poisson",
        "--sampler=deterministic",
        "--json",
        "--round-examples",
    ]
    try:
        code = main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    assert code in (0, 2)
    if code == 2:
        assert out.err
        assert out.out == ""
        return
    for entry in json.loads(out.out)["samplers"].values():
        ends = entry.get("sigma") or entry.get("epsilon")
        if ends["lower"] is not None and ends["upper"] is not None:
            assert ends["lower"] <= ends["upper"]


@pytest.mark.parametrize(
    "line", ["train rows.csv --out run", "demo", "verify run", "study", "figure auc-by-epsilon"]
)
def test_without_its_extra_a_command_that_trains_names_it(line: str, tmp_path) -> None:
    code = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] in ("jax", "jaxlib", "optax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
from truebatch.cli import main
sys.exit(main(sys.argv[1:]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, *line.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "this command needs jax" in done.stderr
    assert "truebatch[train]" in done.stderr
    assert "Traceback" not in done.stderr
