"""Foreign requests: options in files and numbers on the command line end in a plan or in two lines."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import amounts, damaged, drawn, ours_or, reworded
from hypothesis import given
from hypothesis import strategies as st

from truebatch import Poisson, accounting
from truebatch.cli import main
from truebatch.cli.train import CONFIG
from truebatch.records import RunConfig
from truebatch.records.config_file import OPTIONS, read_config

STATED = {
    "label": "clicked", "numeric": ["age", "price"], "categorical": ["site"], "epsilon": 5.0, "delta": 1e-6,
    "batch_size": 64, "epochs": 2, "hidden": [8, 4], "seed": 3, "private": True, "valid_share": 0.1,
}  # fmt: skip
TOML = "\n".join(f"{name} = {json.dumps(value)}" for name, value in STATED.items()).encode()
YAML = "\n".join(f"{name}: {json.dumps(value)}" for name, value in STATED.items()).encode()


def planned(path) -> RunConfig | None:
    """The config of a file, and its sampler for some numbers of rows."""
    values = read_config(path)
    assert values.keys() <= OPTIONS.keys()
    config = RunConfig.from_dict({name: value for name, value in values.items() if name in CONFIG})
    for num_rows in (100, 10_000):
        ours_or(lambda: config.spec(num_rows))  # noqa: B023  # called at once
    return config


@amounts(few=120, many=6000)
@pytest.mark.parametrize(("name", "whole"), [("run.toml", TOML), ("run.yaml", YAML)])
def test_a_damaged_config_is_refused_or_is_a_config(name, whole, examples, tmp_path) -> None:
    path = tmp_path / name
    path.write_bytes(whole)
    assert planned(path) is not None
    odd = reworded(STATED).map(lambda v: "\n".join(_line(name, *item) for item in v.items()))

    @drawn(examples)
    @given(damaged(whole) | odd.map(lambda text: text.encode(errors="surrogatepass")))
    def holds(data: bytes) -> None:
        path.write_bytes(data)
        ours_or(lambda: planned(path))

    holds()


def _line(file: str, name: str, value: object) -> str:
    said = json.dumps(value, ensure_ascii=False)
    return f"{name}: {said}" if file.endswith("yaml") else f"{name} = {said}"


# Numbers as people and programs write them: wrong, of other scripts, too large, too small, or none.
NUMBERS = (
    "", " ", "-", "--", "0", "-1", "-0.0", "1", "2", "100", "1000", "1e3", "1e6", "0.5", "1.5", "1e-5",
    "1e-300", "5e-324", "1e308", "1e309", "nan", "inf", "-inf", "0x10", "１２", "٣", "1_000", "_1", "  5 ",
    "9" * 400, "9" * 5000, "4611686018427387904", "9223372036854775808", "1e18", "1e1000000000", "1/2", "5%",
    "\0", "é", "\ud800", "0.9999999999999999", "None", "True", "1,000", "1 000", "1e", "e1", ".", "1.",
    ".5", "+1",
)  # fmt: skip

COMMANDS = {
    "calibrate": {
        "--examples": "1000", "--batch-size": "10", "--epochs": "1", "--epsilon": "1", "--delta": "1e-5",
    },
    "account": {
        "--examples": "1000", "--batch-size": "10", "--steps": "100", "--sigma": "1", "--delta": "1e-5",
    },
    "batches": {
        "--batch-size": "10", "--steps": "10", "--max-batch-size": "40", "--memory": "1GiB", "--workers": "1",
        "--rows": "500", "--public-test-seed": "1",
    },
}  # fmt: skip


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = {"label": rng.integers(0, 2, 1000).astype(np.int8), "x": rng.normal(size=1000)}
    pq.write_table(pa.table(table), "rows.parquet")


@amounts(few=150, many=4000)
@pytest.mark.parametrize("command", COMMANDS)
def test_numbers_of_every_kind_are_answered_or_refused_in_two_lines(command, examples, rows, capsys) -> None:
    usual = COMMANDS[command]
    more = {"batches": ["rows.parquet", "--out", "out", "--dry-run"]}.get(
        command, ["--sampler", "deterministic"]
    )

    @drawn(examples)
    @given(st.dictionaries(st.sampled_from(sorted(usual)), st.sampled_from(NUMBERS), min_size=1, max_size=2))
    def holds(odd: dict[str, str]) -> None:
        words = [f"{name}={value}" for name, value in {**usual, **odd}.items()]
        capsys.readouterr()
        code = ours_or(lambda: _code([command, *more, *words]))
        out, err = capsys.readouterr()
        assert code in (0, 2)
        assert "Traceback" not in err
        if code == 2:
            assert out == ""
            assert len(err.strip().splitlines()) <= 3
        else:
            assert "nan" not in out.lower()

    holds()


def _code(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def test_a_goal_that_one_step_nearly_meets_without_noise_is_answered() -> None:
    spec = Poisson(num_examples=1000, batch_size=100, num_steps=1)
    found = accounting.sigma(spec, epsilon=0.1, delta=0.1)
    assert found.lower.value is not None
    assert found.upper.value is not None
    assert found.lower.value <= found.upper.value < 0.1
    assert accounting.delta(spec, sigma=0.01, epsilon=0.1).upper.value == pytest.approx(0.1, rel=1e-6)


def test_a_name_that_is_no_text_is_printed_all_the_same(tmp_path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "rows.parquet")
    line = f"batches {tmp_path}/rows.parquet --batch-size 2 --steps 5 --sampler deterministic --dry-run --out"
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from truebatch.cli import main; raise SystemExit(main())"),
            *(*line.split(), os.fsdecode(os.fsencode(tmp_path) + b"/r\xff")),
        ],
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    assert b"r\\udcff" in done.stdout
