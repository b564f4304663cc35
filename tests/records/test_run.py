"""The main job on small data: what it leaves, what it refuses, and which edits verify catches."""

import json
import shutil
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from truebatch import Key, schedule
from truebatch.batching import open_batches
from truebatch.cli import main
from truebatch.data import Features, MappedSource, open_source
from truebatch.errors import DamagedRun, InvalidArgument, InvalidData, OutputRefused, SourceChanged
from truebatch.records import Record, RunConfig, RunPlan, Split, Watch, run, verify, write_report
from truebatch.records.record import schedule_key, under_key
from truebatch.records.run import noise_key
from truebatch.records.verify import FAILED, LEFT_OUT, PASSED

KEY = Key.for_tests(21)
N = 3000
CONFIG = RunConfig(batch_size=100, steps=240, epsilon=5.0, delta=1e-5, model="linear", learning_rate=0.05)


def rows(seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    x, c = rng.normal(size=N), rng.integers(0, 5, N)
    label = (x + (c == 2) + rng.normal(size=N) > 0).astype(np.int8)
    return pa.table({"label": label, "x": x, "c": [f"v{i}" for i in c]})


def plan_of(path, config=CONFIG) -> RunPlan:
    source = open_source(path)
    features = Features.infer(source.schema, label="label", buckets=16)
    return RunPlan.of(source, features, config, Split())


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished run with written batches, and one with gathered ones, over the same file."""
    place = tmp_path_factory.mktemp("runs")
    pq.write_table(rows(), place / "rows.parquet")
    plan = plan_of(place / "rows.parquet")
    run(plan, place / "gather", KEY)
    object.__setattr__(plan, "gathers", False)
    run(plan, place / "scatter", KEY)
    return place


@pytest.fixture(params=["gather", "scatter"])
def done(request, original, tmp_path):
    """A copy to edit: (run, data)."""
    shutil.copytree(original / request.param, tmp_path / "run")
    shutil.copy2(original / "rows.parquet", tmp_path / "rows.parquet")
    return tmp_path / "run", tmp_path / "rows.parquet"


def outcomes(directory, key=KEY, **more) -> dict[str, str]:
    return {check.name: check.outcome for check in verify(directory, key, **more)}


def test_an_honest_run_passes_every_check_that_can_be_made(done) -> None:
    directory, data = done
    found = outcomes(directory, data=open_source(data), full=True)
    assert FAILED not in found.values()
    assert list(found.values()).count(PASSED) == len(found) - 1
    without = outcomes(directory)
    assert without["the data are the run's"] == LEFT_OUT


def test_plans_do_not_show_in_the_model(original) -> None:
    gathered, scattered = (Record.load(original / name).fields for name in ("gather", "scatter"))
    assert gathered["metrics"] == scattered["metrics"]
    assert gathered["metrics"]["test_auc"] > 0.7


def edit(directory, change) -> None:
    path = directory / "run.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


EDITS = {
    "sigma": lambda r: r["claim"].update(sigma=0.9 * r["claim"]["sigma"]),
    "epsilon": lambda r: r["claim"].update(epsilon=1.0),
    "delta": lambda r: r["claim"].update(delta=1e-9),
    "clip norm": lambda r: r["claim"].update(clip_norm=2.0),
    "steps": lambda r: r["claim"]["spec"].update(num_steps=120),
    "sampler": lambda r: r["claim"].update(
        spec={"sampler": "poisson", "num_examples": 2400, "batch_size": 100, "num_steps": 240}
    ),
    "batch size": lambda r: r["claim"]["spec"].update(batch_size=50),
    "a metric": lambda r: r["metrics"].update(test_auc=0.99),
    "a bound": lambda r: r["bounds"][0].update(upper=0.1),
    "the mistake hidden": lambda r: r["claim"].update(accounted_as=None, private=True, epsilon=0.5),
    "the seal": lambda r: r.update(seal="0" * 64),
    "no seal": lambda r: r.pop("seal"),
}


@pytest.mark.parametrize("what", EDITS)
def test_a_record_edited_after_the_run_is_caught(what, original, tmp_path) -> None:
    shutil.copytree(original / "gather", tmp_path / "run")
    edit(tmp_path / "run", EDITS[what])
    assert outcomes(tmp_path / "run")["the record is as the key's holder wrote it"] == FAILED


@pytest.mark.parametrize("what", ["sigma", "epsilon", "delta", "steps"])
def test_a_claim_that_does_not_hold_is_caught_even_when_sealed_again(what, original, tmp_path) -> None:
    shutil.copytree(original / "gather", tmp_path / "run")
    edit(tmp_path / "run", EDITS[what])
    Record.load(tmp_path / "run").sealed(KEY).save(tmp_path / "run")
    found = outcomes(tmp_path / "run")
    assert found["the record is as the key's holder wrote it"] == PASSED
    assert FAILED in found.values()


def test_another_key_is_caught(done) -> None:
    found = outcomes(done[0], Key.for_tests(22))
    assert found["the key is the run's"] == FAILED
    assert found["the record is as the key's holder wrote it"] == FAILED


def test_edited_rows_or_batches_are_caught(done) -> None:
    directory, _ = done
    (file,) = [*directory.glob("rows/train.rows"), *directory.glob("batches/part-*.arrow")]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert FAILED in outcomes(directory, full=True).values()


def test_an_edited_model_is_caught(done) -> None:
    (file,) = sorted(done[0].glob("checkpoints/*"))[-1:]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert outcomes(done[0])["the model is the run's"] == FAILED


def test_edited_data_are_caught(done) -> None:
    directory, data = done
    pq.write_table(rows(1), data)
    assert outcomes(directory, data=open_source(data))["the data are the run's"] == FAILED


def test_a_directory_that_holds_no_record_is_refused(tmp_path) -> None:
    with pytest.raises(DamagedRun, match="without one"):
        verify(tmp_path, KEY)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(DamagedRun, match="readable JSON"):
        verify(tmp_path, KEY)


def test_run_again_it_is_found_done_and_another_is_refused(done) -> None:
    directory, data = done
    before = (directory / "run.json").read_text()
    plan = plan_of(data)
    assert run(plan, directory, KEY).fields == json.loads(before)
    with pytest.raises(OutputRefused, match="another config"):
        run(plan_of(data, RunConfig.from_dict({**CONFIG.as_dict(), "learning_rate": 0.1})), directory, KEY)
    with pytest.raises(OutputRefused, match="another key"):
        run(plan, directory, Key.for_tests(1))
    pq.write_table(rows(1), data)
    with pytest.raises(SourceChanged):
        run(plan_of(data), directory, KEY)
    assert (directory / "run.json").read_text() == before


def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(original, tmp_path) -> None:
    plan, seen = plan_of(original / "rows.parquet"), []

    def stop(now) -> None:
        seen.append(now.step)
        if now.step == 131:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(plan, tmp_path / "run", KEY, watch=Watch(steps=stop))
    assert not (tmp_path / "run" / "run.json").exists()
    seen.clear()
    again = run(plan, tmp_path / "run", KEY, watch=Watch(steps=lambda now: seen.append(now.step))).fields
    assert 1 < seen[0] <= 131  # it went on from a checkpoint, and did not begin anew
    whole = Record.load(original / "gather").fields
    assert again["checkpoint"] == whole["checkpoint"]
    assert again["metrics"] == whole["metrics"]


def test_the_record_holds_no_secret(original) -> None:
    key = Key.generate()
    said = (original / "gather" / "run.json").read_text()
    assert KEY.to_bytes().hex() not in said
    assert key.to_bytes().hex() not in said
    for private in (original / "gather" / "rows").iterdir():
        assert stat.S_IMODE(private.stat().st_mode) == 0o600


def leaves(value) -> set:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return set().union(*map(leaves, inner))
    return {value}


def test_what_would_confirm_a_guess_of_one_row_stands_in_the_record_under_the_key_alone(original) -> None:
    plan = plan_of(original / "rows.parquet")
    (file,) = plan.train.identity()["source"]["files"]
    prepared = MappedSource.open(original / "gather" / "rows" / "train.rows").identity()
    written = open_batches(original / "scatter" / "batches").manifest["files"]
    telling = {file["size"], file["mtime_ns"], file["mark"], prepared["digest"]}
    telling |= {entry["sha256-buffers"] for entry in written}
    for name in ("gather", "scatter"):
        assert not telling & leaves(Record.load(original / name).fields)
    assert telling & leaves(plan.as_dict()) == {file["size"], file["mtime_ns"], file["mark"]}
    assert under_key(prepared, KEY) != under_key(prepared, Key.for_tests(22))
    other = prepared | {"digest": "0" * 64}
    assert under_key(prepared, KEY)["digest"] != under_key(other, KEY)["digest"]


def test_the_common_mistake_says_so_everywhere(original, tmp_path) -> None:
    config = RunConfig.from_dict(
        {**CONFIG.as_dict(), "sampler": "dynamic_shuffle", "accounted_as": "poisson", "steps": 240}
    )
    plan = plan_of(original / "rows.parquet", config)
    record = run(plan, tmp_path / "run", KEY).fields
    assert record["claim"]["private"] is False
    assert record["claim"]["epsilon_direction"] is None
    assert "NOT GUARANTEED" in record["training"]["claim"]
    found = {check.name: check.detail for check in verify(tmp_path / "run", KEY)}
    assert "NO GUARANTEE" in found["the claim is what the accountant says"]
    page = write_report(Record.load(tmp_path / "run"), tmp_path / "run").read_text()
    assert "is not proven for it" in page
    assert "on dynamic shuffle batches epsilon is at least" in page


def test_a_shuffle_says_both_ends_in_its_record_and_its_report(original, tmp_path) -> None:
    config = RunConfig.from_dict({**CONFIG.as_dict(), "sampler": "persistent_shuffle"})
    run(plan_of(original / "rows.parquet", config), tmp_path / "run", KEY)
    record = Record.load(tmp_path / "run")
    lower, upper = record.public()["claim"]["epsilon_lower"], record.public()["claim"]["epsilon"]
    assert 4 < lower < 0.999 * upper
    assert upper == 5.0
    own = next(row for row in record.fields["bounds"] if row["sampler"] == "persistent_shuffle")
    assert (own["lower"], own["upper"]) == (lower, upper)
    page = write_report(record, tmp_path / "run").read_text()
    assert f"epsilon is at least {lower - 0.0005:.3f} and at most 5, both proven: 5 may be claimed" in page
    assert "Proven against these batches" in page
    assert FAILED not in outcomes(tmp_path / "run").values()
    edit(tmp_path / "run", lambda r: r["claim"].update(epsilon_lower=5.1))
    Record.load(tmp_path / "run").sealed(KEY).save(tmp_path / "run")
    assert outcomes(tmp_path / "run")["the claim is what the accountant says"] == FAILED


def test_runs_that_share_a_goal_share_a_key_and_no_batches_and_verify(original, tmp_path) -> None:
    fields = []
    for rate in (0.05, 0.1):
        config = RunConfig.from_dict({**CONFIG.as_dict(), "learning_rate": rate, "tuning_runs": 4})
        plan, place = plan_of(original / "rows.parquet", config), tmp_path / str(rate)
        assert plan.spec.num_steps == 240
        run(plan, place, KEY)
        assert run(plan, place, KEY).fields == Record.load(place).fields
        assert FAILED not in outcomes(place, data=open_source(original / "rows.parquet"), full=True).values()
        fields.append(Record.load(place).fields)
    alone = Record.load(original / "gather").fields
    keys = [schedule_key(KEY, record) for record in (*fields, alone)]
    assert keys[2] == KEY
    batches = [schedule(plan.spec, key).members(0).tolist() for key in keys]
    assert batches[0] != batches[1] != batches[2] != batches[0]
    assert [record["claim"]["num_runs"] for record in fields] == [4, 4]
    assert fields[0]["claim"]["sigma"] > 1.3 * alone["claim"]["sigma"]
    assert fields[0]["claim"]["epsilon"] == 5.0
    page = write_report(Record.load(place), place).read_text()
    assert "The 4 models, and the choice of this one, are (5, 1e-05)-differentially private" in page
    assert "More runs than 4 on the same data" in page
    assert "Choosing the best of several runs" not in page
    edit(place, lambda r: (r["claim"].update(num_runs=1), r["config"].update(tuning_runs=1)))
    Record.load(place).sealed(KEY).save(place)
    assert FAILED in outcomes(place).values()


@pytest.mark.parametrize(
    "change",
    [
        {"tuning_runs": 0},
        {"tuning_runs": 2.5},
        {"tuning_runs": 2, "accounted_as": "poisson"},
        {"tuning_runs": 2, "private": False, "epsilon": None},
    ],
)
def test_runs_without_a_guarantee_share_none(change) -> None:
    with pytest.raises(InvalidArgument, match="tuning_runs"):
        RunConfig.from_dict({**CONFIG.as_dict(), **change})


def test_the_report_of_an_exact_bound_says_one_number(original) -> None:
    page = write_report(Record.load(original / "gather"), original / "gather").read_text()
    assert "epsilon is at least" not in page
    assert "The model is (5, 1e-05)-differentially private" in page
    assert "Choosing the best of several runs" in page


def test_two_runs_with_one_key_share_no_noise_unless_all_that_was_asked_is_the_same(original) -> None:
    plan = plan_of(original / "rows.parquet")
    asked = json.loads(json.dumps(plan.as_dict()))
    other = json.loads(json.dumps(asked))
    other["data"]["train"]["rows"][1] -= 1
    faster = {**asked, "config": {**asked["config"], "learning_rate": 0.1}}
    keys = [noise_key(KEY, fields) for fields in (asked, other, faster)]
    assert keys[0] == noise_key(KEY, asked)
    assert keys[0] != keys[1] != keys[2] != keys[0]
    assert all(key.is_public for key in keys)


def test_a_split_without_training_rows_is_refused(tmp_path) -> None:
    pq.write_table(rows().slice(0, 1), tmp_path / "rows.parquet")
    with pytest.raises(InvalidData, match=r"1 rows and train=0\.8"):
        plan_of(tmp_path / "rows.parquet")


def cli(capsys, line: str) -> tuple[int, str, str]:
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


SMALL = "--epsilon 5 --delta 1e-5 --batch-size 100 --steps 240 --model linear --buckets 16"


def test_the_commands_train_report_and_verify(original, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    data = original / "rows.parquet"
    code, out, err = cli(capsys, f"train {data} {SMALL} --out run --json")
    assert code == 0
    assert 0.5 < json.loads(out)["test_auc"] <= 1
    assert "categorical: c" in err
    assert "made the key run.key" in err
    page = (tmp_path / "run" / "report.html").read_text()
    assert "differentially private under zeroing-out" in page
    assert "http" not in page.replace("http-equiv", "")
    code, out, _ = cli(capsys, f"verify run --data {data} --full --json")
    assert code == 0
    assert json.loads(out)["holds"] is True
    edit(tmp_path / "run", EDITS["sigma"])
    code, out, _ = cli(capsys, "verify run")
    assert code == 1
    assert "does NOT hold" in out


def test_a_config_file_has_the_options_and_options_win(original, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(
        'epsilon = 2.0\ndelta = 1e-5\nbatch_size = 100\nepochs = 1\nmodel = "linear"\nbuckets = 16\n'
    )
    code, out, _ = cli(
        capsys, f"train {original / 'rows.parquet'} --config run.toml --steps 96 --out r --dry-run --json"
    )
    assert code == 0
    planned = json.loads(out)
    assert planned["config"]["epsilon"] == 2.0
    assert planned["claim"]["spec"]["num_steps"] == 96
    assert not (tmp_path / "r").exists()


def test_a_column_of_no_known_kind_is_left_out_by_an_option(original, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(rows().append_column("day", pa.array([0] * N, pa.date32())), "rows.parquet")
    code, _, err = cli(capsys, f"train rows.parquet {SMALL} --out run --dry-run")
    assert code == 2
    assert "got column 'day' of type date32[day]" in err
    assert "--leave-out that one" in err
    assert cli(capsys, f"train rows.parquet {SMALL} --leave-out day --out run --dry-run")[0] == 0


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{SMALL} --label labl", "did you mean 'label'"),
        (f"{SMALL} --label c", "label"),
        (f"{SMALL} --categorical x", "x"),
        (f"{SMALL} --batch-size 5000", "batch_size=5000 for 2400 rows"),
        (f"{SMALL} --train-share 0.9 --valid-share 0.2", "at most 1"),
        (f"{SMALL} --split-by C", "there are: label, x, c"),
        (f"{SMALL} --split-by c", "one of train, valid, test"),
        (f"{SMALL} --split-by x --valid-from soon", "got 'soon'"),
        (f"{SMALL} --valid-from 3", "need the column"),
        (f"{SMALL} --split-by c --train-share 0.5", "by shares or by a column"),
        ("--batch-size 100 --steps 9", "noise is stated by"),
        ("--batch-size 100 --steps 9 --epsilon 5", "delta must be"),
        (f"{SMALL} --no-privacy", "without privacy has no goal"),
        ("--steps 9 --epsilon 5 --delta 1e-5", "needs a batch size"),
        (f"{SMALL} --config nowhere.toml", "readable file"),
        (f"{SMALL} --key .", "regular file"),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_written(
    line, says, original, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(capsys, f"train {original / 'rows.parquet'} {line} --out run")
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "run" / "run.json").exists()
