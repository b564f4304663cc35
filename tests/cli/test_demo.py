"""The demo, as it ships: real flights, a guarantee, and an AUC within what others get on them."""

import json

from truebatch.cli import main


def test_the_demo_learns_with_a_guarantee_that_verifies(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["test_auc"] >= 0.695
    assert record["claim"]["private"] is True
    assert record["claim"]["epsilon"] <= 5
    assert (tmp_path / "demo" / "run" / "report.html").stat().st_size > 5000
    assert main(["verify", "demo/run", "--data", "demo/flights.parquet", "--full"]) == 0
    assert main(["demo"]) == 0  # found done
