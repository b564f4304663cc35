"""The wheel in an empty environment: the demo and its check run there, without repository or network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Runs in every process of the environment: who reaches for the network fails.
NO_NETWORK = """\
import socket

def refuse(self, address, *_):
    if self.family != socket.AF_UNIX:
        raise OSError(f"this environment has no network; asked for {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
"""


def run(*words: object, cwd: Path) -> str:
    """Its stdout; without what the environment of the suite says about where packages are."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean.pop("VIRTUAL_ENV", None)
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """The bin directory of an environment with nothing but the wheel and its `train` extra."""
    place = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place, ROOT, cwd=place)
    (wheel,) = place.glob("truebatch-*.whl")
    run(sys.executable, "-m", "venv", place / "env", cwd=place)
    python = place / "env" / "bin" / "python"
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(python, *install, "--constraint", ROOT / "constraints.txt", f"{wheel}[train]", cwd=place)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place).strip()
    (Path(packages) / "sitecustomize.py").write_text(NO_NETWORK)
    return place / "env" / "bin"


@pytest.mark.slow
def test_the_demo_runs_and_verifies_from_the_wheel_alone(environment, tmp_path) -> None:
    where = run(environment / "python", "-c", "import truebatch; print(truebatch.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment.parent)
    record = json.loads(run(environment / "truebatch", "demo", "--out", "demo", "--json", cwd=tmp_path))
    assert record["test_auc"] >= 0.695
    assert record["claim"]["private"] is True
    assert (tmp_path / "demo" / "run" / "report.html").stat().st_size > 5000
    said = run(
        environment / "truebatch", "verify", "demo/run", "--data", "demo/flights.parquet", "--full",
        cwd=tmp_path,
    )  # fmt: skip
    assert "everything that was checked holds" in said


@pytest.mark.slow
def test_commands_that_train_nothing_run_from_the_wheel_too(environment, tmp_path) -> None:
    line = "calibrate --examples 4096 --batch-size 64 --epochs 1 --epsilon 3 --delta 1e-5 --json"
    assert json.loads(run(environment / "truebatch", *line.split(), cwd=tmp_path))["samplers"]
    (tmp_path / "run.yaml").write_text("batch_size: 64\nepochs: 1\nepsilon: 3\ndelta: 1e-5\nmodel: linear\n")
    (tmp_path / "rows.csv").write_text("label,x\n" + "0,1.5\n1,2.5\n" * 500)
    line = "train rows.csv --config run.yaml --out run --dry-run --json"
    assert json.loads(run(environment / "truebatch", *line.split(), cwd=tmp_path))["claim"]["private"] is True
    with pytest.raises(AssertionError, match="no network"):
        run(
            environment / "python",
            "-c",
            "import socket; socket.create_connection(('localhost', 9))",
            cwd=tmp_path,
        )
