import csv
import math

import pytest

from truebatch.experiments import buffer_figures
from truebatch.experiments.buffer_figures import BUFFERS, audit_buffers, spec_of, table, write_buffers


@pytest.fixture(scope="module")
def found():
    return audit_buffers(trials=4)


def test_every_buffer_is_between_the_full_shuffle_and_the_fixed_order(found) -> None:
    fixed, shuffle = found.beside["deterministic"], found.beside["dynamic_shuffle"]
    lower = [one.proven_lower for one in found.audits]
    assert [one.buffer_size for one in found.audits] == list(BUFFERS)
    assert lower == sorted(lower, reverse=True)
    assert lower[0] == pytest.approx(fixed[0])
    assert lower[-1] == pytest.approx(shuffle[0])
    assert all(one.proven_upper == pytest.approx(fixed[1]) for one in found.audits)
    assert found.beside["poisson"][1] < shuffle[0]
    assert (spec_of(1).buffer_size, spec_of(BUFFERS[-1]).num_examples) == (1, BUFFERS[-1])


def test_the_table_and_the_pictures_are_written(found, tmp_path) -> None:
    paths = write_buffers(found, tmp_path)
    assert [path.suffix for path in paths] == [".csv", ".png", ".svg"]
    rows = list(csv.DictReader(table(found).splitlines()))
    assert len(rows) == len(BUFFERS) + 3
    assert float(rows[0]["proven_upper"]) == pytest.approx(found.audits[0].proven_upper)
    assert all(math.isfinite(float(row["proven_lower"])) for row in rows)
    again = tmp_path / "again"
    write_buffers(found, again)
    for path in paths:
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_audits_of_all_sizes_count_as_one_work(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(buffer_figures, "BUFFERS", (1, 8))
    audit_buffers(trials=2, watch=lambda *progress: seen.append(progress))
    assert [done for done, _, _ in seen] == list(range(1, 9))
    assert {total for _, total, _ in seen} == {8}
    assert [name for *_, name in seen] == ["buffer of 1"] * 4 + ["buffer of 8"] * 4
