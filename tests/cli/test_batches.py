"""`truebatch batches` as an engineer uses it, and what it says to those who ask for what cannot be."""

import gzip
import json
import os
import stat

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from truebatch import Key, schedule
from truebatch.batching import open_batches
from truebatch.cli import main
from truebatch.cli.batches import byte_count

N = 1000
GOAL = "--batch-size 20 --epochs 2 --epsilon 5 --delta 1e-5"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Three Parquet files of rows, and the directory they are in as the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    table = pa.table(
        {"label": rng.integers(0, 2, N).astype(np.int8), "x": np.arange(N), "s": ["a", "b"] * 500}
    )
    (tmp_path / "data").mkdir()
    for i in range(3):
        pq.write_table(table.slice(i * 400, 400), tmp_path / "data" / f"{i}.parquet")
    return table


def run(capsys, line: str) -> tuple[int, str, str]:
    try:
        code = main(line.split())
    except SystemExit as stop:
        code = int(stop.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_parquet_becomes_batches_with_a_key_and_a_cap_of_their_own(data, tmp_path, capsys) -> None:
    code, out, err = run(capsys, f"batches data/*.parquet --out made {GOAL} --json")
    assert code == 0
    said = json.loads(out)
    assert said["spec"]["num_examples"] == N
    assert (said["batches"], said["rows_per_batch"]) == (100, said["spec"]["max_batch_size"])
    assert said["goal"]["sigma"] > 0.5
    assert "made the key made.key" in err
    assert "scatter plan, local engine" in err
    assert stat.S_IMODE(os.stat("made.key").st_mode) == 0o600
    drawn = schedule(open_batches("made").spec, Key.load("made.key"))
    for batch in open_batches("made").read():
        real = int(batch.weight.sum())
        assert batch["x"][:real].tolist() == drawn.members(batch.step).tolist()
    again = {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()}
    code, out, _ = run(capsys, f"batches data/*.parquet --out made {GOAL}")
    assert code == 0
    assert "100 batches of" in out
    assert {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir()} == again


def test_key_bytes_are_printed_nowhere(data, capsys) -> None:
    _, out, err = run(capsys, f"batches data --out made {GOAL}")
    secret = Key.load("made.key").to_bytes()
    assert secret.hex() not in out + err
    assert repr(secret) not in out + err


def test_a_dry_run_says_what_would_be_and_writes_nothing(data, tmp_path, capsys) -> None:
    before = sorted(path.name for path in tmp_path.iterdir())
    code, out, err = run(capsys, f"batches data --out made {GOAL} --dry-run")
    assert code == 0
    assert "would write 100 batches" in out
    assert "needs sigma =" in out
    assert "read in order" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_every_format_and_plan_gives_the_same_rows(data, tmp_path, capsys) -> None:
    same = "--batch-size 20 --steps 7 --max-batch-size 40 --public-test-seed 3"
    with pa.ipc.new_file(str(tmp_path / "rows.arrow"), data.schema) as writer:
        writer.write_table(data)
    text = "label,x,s\n" + "".join(f"{r['label']},{r['x']},{r['s']}\n" for r in data.to_pylist())
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "rows.tsv").write_text(text.replace(",", "\t"))
    found = []
    for i, where in enumerate(("data", "rows.arrow", "rows.csv", "rows.csv.gz", "rows.tsv")):
        assert run(capsys, f"batches {where} --out out{i} {same}")[0] == 0
        found.append([batch.record.to_pylist() for batch in open_batches(f"out{i}").read()])
    assert all(batches == found[0] for batches in found)
    assert len(found[0]) == 7


def test_criteo_rows_as_they_ship(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    lines = []
    for _ in range(300):
        integers = ["" if rng.random() < 0.2 else str(rng.integers(-2, 900)) for _ in range(13)]
        words = ["" if rng.random() < 0.2 else f"{rng.integers(0, 2**32):08x}" for _ in range(26)]
        lines.append("\t".join([str(rng.integers(0, 2)), *integers, *words]))
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    options = "--batch-size 10 --epochs 1 --max-batch-size 30 --public-test-seed 3"
    code, _, _ = run(capsys, f"batches train.txt.gz --format criteo --out out {options}")
    assert code == 0
    batches = open_batches("out")
    assert batches.schema.names[:3] == ["label", "I1", "I2"]
    assert len(batches.schema.names) == 41
    drawn = schedule(batches.spec, Key.for_tests(3))
    for batch in batches.read():
        labels = [int(lines[i].split("\t")[0]) for i in drawn.members(batch.step)]
        assert batch["label"][: len(labels)].tolist() == labels


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"batches nowhere --out made {GOAL}", "nowhere"),
        ("batches data --out made --batch-size 20 --epochs 1", "must follow from something"),
        ("batches data --out made --batch-size 20 --epochs 1 --epsilon 5", "go together"),
        ("batches data --out made --batch-size 20 --epochs 1 --epsilon 5 --delta 2", "delta must be"),
        ("batches data --out made --batch-size 2000 --steps 9 --max-batch-size 3000", "at most num_examples"),
        ("batches data --out made --batch-size 20 --steps 9 --max-batch-size 19", "at least batch_size"),
        ("batches data --out made --batch-size 30 --epochs 1 --sampler dynamic_shuffle", "pass --rows 990"),
        ("batches data --out made --batch-size 20 --epochs 1 --sampler poisson", "use TruncatedPoisson"),
        (f"batches data --out data {GOAL}", "holds other files"),
        (f"batches data --out made {GOAL} --plan gather", "at random"),
        (f"batches data --out made {GOAL} -- --flink_master=x", "local engine"),
        (f"batches data --out made {GOAL} --rows 1001", "source's 1000 rows"),
        (f"batches data --out made {GOAL} --memory lots", "800MB"),
        (f"batches data --out made {GOAL} --key data", "regular file"),
        (f"batches data --out made {GOAL} --master local", "--master is Spark's"),
        ("calibrate --examples 9 --batch-size 3 --epochs 1 --epsilon 1 --delta 1e-3 -- x", "may follow --"),
    ],
)
def test_a_bad_request_ends_with_2_and_leaves_nothing_behind(line, says, data, tmp_path, capsys) -> None:
    code, out, err = run(capsys, line)
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "made").exists()


def test_a_shuffle_takes_the_rows_that_the_batch_size_divides(data, capsys) -> None:
    options = "--batch-size 30 --epochs 2 --sampler dynamic_shuffle --rows 990 --public-test-seed 1"
    assert run(capsys, f"batches data --out made {options}")[0] == 0
    seen = np.concatenate([batch["x"] for batch in open_batches("made").read(0, 33)])
    assert sorted(seen.tolist()) == list(range(990))


def test_a_lost_key_is_asked_for(data, tmp_path, capsys) -> None:
    run(capsys, f"batches data --out made {GOAL}")
    (tmp_path / "made.key").unlink()
    code, _, err = run(capsys, f"batches data --out made {GOAL}")
    assert code == 2
    assert "made with" in err


@pytest.mark.parametrize(
    ("text", "value"),
    [("1GiB", 2**30), ("800MB", 800 * 10**6), ("4096", 4096), ("1.5ki", 1536), ("2 tb", 2 * 10**12)],
)
def test_sizes_are_read_as_people_write_them(text, value) -> None:
    assert byte_count(text) == value


def test_a_beam_runner_writes_the_same_directory(data, tmp_path, capsys) -> None:
    options = f"{GOAL} --public-test-seed 4"
    assert run(capsys, f"batches data --out here {options}")[0] == 0
    code, _, err = run(capsys, f"batches data --out there {options} --engine beam -- --direct_num_workers=1")
    assert code == 0
    assert "scatter plan, beam engine: asked for, on DirectRunner" in err
    held = [{p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("here", "there")]
    assert held[0] == held[1]
    code, _, err = run(capsys, f"batches data --out other {options} --engine beam -- --no_such_option=1")
    assert code == 2
    assert "no_such_option" in err
