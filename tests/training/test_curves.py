import csv
import math
from pathlib import Path

from small_runs import SPEC

from truebatch.training.claim import Claim
from truebatch.training.curves import Curves
from truebatch.training.privacy import NoPrivacy

CLAIM = Claim.of(NoPrivacy(), SPEC, num_parameters=1)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()[1:]))


def test_rows_keep_every_digit_and_columns_that_come_later_are_empty_before(tmp_path: Path) -> None:
    curves = Curves(tmp_path / "c.csv", CLAIM, start=0)
    curves.add(step=1, seconds=0.5, epsilon=None, metrics={"loss": 1 / 3})
    curves.add(step=2, seconds=1.0, epsilon=1.5, metrics={"loss": math.pi, "auc": 0.75})
    first, second = read(tmp_path / "c.csv")
    assert float(first["loss"]) == 1 / 3
    assert first["auc"] == ""
    assert first["epsilon"] == ""
    assert (second["step"], second["epsilon"], float(second["loss"])) == ("2", "1.5", math.pi)


def test_rows_after_the_step_that_a_run_goes_on_from_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "c.csv"
    curves = Curves(path, CLAIM, start=0)
    for step in (5, 10, 15):
        curves.add(step=step, seconds=1.0, epsilon=None, metrics={"loss": float(step)})
    Curves(path, CLAIM, start=10).add(step=15, seconds=2.0, epsilon=None, metrics={"loss": 0.25})
    assert [(row["step"], row["loss"]) for row in read(path)] == [
        ("5", "5.0"),
        ("10", "10.0"),
        ("15", "0.25"),
    ]
    Curves(path, CLAIM, start=0).add(step=5, seconds=2.0, epsilon=None, metrics={})
    assert [row["step"] for row in read(path)] == ["5"]


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    curves = Curves(tmp_path / "c.csv", CLAIM, start=0)
    curves.add(step=1, seconds=0.5, epsilon=None, metrics={})
    assert [path.name for path in tmp_path.iterdir()] == ["c.csv"]
    assert (tmp_path / "c.csv").read_text().startswith("# not private: ")
