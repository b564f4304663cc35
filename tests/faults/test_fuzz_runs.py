"""What a run leaves, edited or damaged: records, checkpoints, notes, curves and keys."""

import json
import os
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import SECONDS, amounts, damaged, drawn, ours_or, reworded, same_json
from hypothesis import given
from hypothesis import strategies as st
from small_runs import KEY as RUN_KEY
from small_runs import SPEC as RUN_SPEC

from truebatch import Key, TruncatedPoisson
from truebatch.batching import LocalEngine, make_batches
from truebatch.batching.journal import Journal
from truebatch.data import Features, open_source
from truebatch.errors import DamagedCheckpoint, DamagedRun, InvalidData, OutputRefused
from truebatch.records import Record, RunConfig, RunPlan, Split, run, verify
from truebatch.records.verify import FAILED
from truebatch.training import checkpoint
from truebatch.training import checkpoint_file as room
from truebatch.training.claim import Claim
from truebatch.training.curves import Curves
from truebatch.training.privacy import NoPrivacy

KEY = Key.for_tests(5)
CONFIG = RunConfig(batch_size=100, steps=80, epsilon=5.0, delta=1e-5, model="linear")


def plan_of(path) -> RunPlan:
    source = open_source(path)
    return RunPlan.of(source, Features.infer(source.schema), CONFIG, Split())


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    label = (x + rng.normal(size=1000) > 0).astype(np.int8)
    pq.write_table(pa.table({"label": label, "x": x}), place / "rows.parquet")
    run(plan_of(place / "rows.parquet"), place / "run", KEY)
    return place


@pytest.fixture
def done(original, tmp_path):
    shutil.copytree(original / "run", tmp_path / "run")
    return tmp_path / "run"


@amounts(few=25, many=600)
def test_a_record_with_another_word_is_never_verified_nor_taken_for_a_finished_run(
    examples, done, original
) -> None:
    path, whole = done / "run.json", (done / "run.json").read_bytes()
    fields, plan = json.loads(whole), plan_of(original / "rows.parquet")
    source = open_source(original / "rows.parquet")
    texts = damaged(whole) | reworded(fields).map(lambda v: json.dumps(v).encode())

    def found(full: bool) -> bool:
        return all(c.outcome != FAILED for c in verify(done, KEY, data=source, full=full))

    @drawn(examples)
    @given(texts, st.booleans())
    def holds(text: bytes, full: bool) -> None:
        path.write_bytes(text)
        try:
            same = same_json(json.loads(text), fields)
        except (ValueError, RecursionError):
            same = False
        assert (ours_or(lambda: found(full)) is True) is same
        again = ours_or(lambda: run(plan, done, KEY))
        assert (again is not None) is same

    holds()


def test_numbers_of_a_record_that_was_edited_are_not_worked_with(done) -> None:
    for name, value in (("num_steps", 2**31), ("num_examples", 2**62), ("max_batch_size", 2**40)):
        fields = json.loads((done / "run.json").read_text())
        fields["claim"]["spec"][name] = value
        (done / "run.json").write_text(json.dumps(fields))
        checks = ours_or(lambda: verify(done, KEY, full=True))  # within SECONDS and BYTES
        assert checks is not None, SECONDS
        assert checks[0].outcome == FAILED


def test_a_finished_run_whose_metrics_were_edited_is_not_given_back_as_done(done, original) -> None:
    record = Record.load(done)
    record.fields["metrics"]["test_auc"] = 0.99
    record.save(done)
    with pytest.raises(DamagedRun, match="as it was sealed"):
        run(plan_of(original / "rows.parquet"), done, KEY)


def state() -> dict:
    return {"a": jnp.arange(5.0), "b": [jnp.ones((2, 3)), jnp.int32(3)]}


@amounts(few=100, many=4000)
def test_a_checkpoint_is_refused_or_has_the_bits_that_were_saved(examples, tmp_path) -> None:
    path = checkpoint.save(tmp_path, 7, state(), {"m": 1})
    whole = path.read_bytes()
    line = room._line(checkpoint.FORMAT)
    offset = len(line) + 40
    length = int.from_bytes(whole[len(line) :][:8], "little")
    header, body = json.loads(whole[offset:][:length]), whole[offset + length : -32]

    def sealed(said) -> bytes:
        """A file whose digests are right, whatever its header says."""
        text = json.dumps(said, separators=(",", ":")).encode()
        pieces = [room._sha(body[i : i + 64]) for i in range(0, len(body), 64)]
        head = line + len(text).to_bytes(8, "little") + room._sha(text) + text
        return head + body + room._combined(text, pieces)

    assert sealed(header) == whole

    def read():
        found = checkpoint.latest(tmp_path, like=state(), expect={"m": 1})
        assert found is not None
        assert found.step == 7
        return found.state

    @drawn(examples)
    @given(damaged(whole) | reworded(header).map(sealed))
    @pytest.mark.filterwarnings("ignore:passed over")
    def holds(data: bytes) -> None:
        path.write_bytes(data)
        found = ours_or(read)
        if found is not None:
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(state()), strict=True)
            assert all(np.array_equal(one, other) for one, other in pairs)

    with pytest.warns(RuntimeWarning, match="passed over"):
        holds()


def test_a_checkpoint_that_names_another_step_than_its_file_is_refused(tmp_path) -> None:
    path = checkpoint.save(tmp_path, 7, state(), {})
    path.rename(tmp_path / path.name.replace("7", "8"))
    with pytest.warns(RuntimeWarning), pytest.raises(DamagedCheckpoint, match="of this step"):
        checkpoint.latest(tmp_path, like=state())


SPEC = TruncatedPoisson(num_examples=2000, batch_size=100, num_steps=30, max_batch_size=130)


def begun(out, monkeypatch) -> dict[str, bytes]:
    """Batches that were stopped in the middle of their pass, and what a whole directory holds."""
    rng = np.random.default_rng(0)
    fields = [pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.float64(), nullable=False)]
    columns = [pa.array(rng.integers(0, 9, 2000).astype(np.int32)), pa.array(rng.normal(size=2000))]
    table, saves = pa.table(columns, schema=pa.schema(fields)), 0
    save = Journal.save

    class Stopped(BaseException):
        pass

    def stop_after_two(self, work) -> None:
        nonlocal saves
        saves += 1
        if saves > 2:
            raise Stopped
        save(self, work)

    def make(directory) -> None:
        make_batches(table, SPEC, directory, KEY, engine=LocalEngine(), memory=72_000, workers=1)

    make(out.with_name("whole"))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "save", stop_after_two)
        with pytest.raises(Stopped):
            make(out)
    begun.make = make
    return {path.name: path.read_bytes() for path in out.with_name("whole").iterdir()}


@amounts(few=40, many=1000)
@pytest.mark.parametrize("note", ["pass.json", "job.json"])
def test_a_damaged_note_of_unfinished_batches_is_refused_or_ends_in_the_right_bytes(
    note, examples, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 10_000)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 40_000)
    whole = begun(tmp_path / "begun", monkeypatch)
    text = (tmp_path / "begun" / ".unfinished" / note).read_bytes()
    other = reworded(json.loads(text)).map(lambda v: json.dumps(v).encode())

    @drawn(examples)
    @given(damaged(text) | other)
    def holds(data: bytes) -> None:
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(tmp_path / "begun", out)
        (out / ".unfinished" / note).write_bytes(data)
        if ours_or(lambda: begun.make(out) or True):
            assert {path.name: path.read_bytes() for path in out.iterdir()} == whole

    holds()


def test_a_note_of_a_pass_that_skips_rows_is_not_believed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 10_000)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 40_000)
    out = tmp_path / "out"
    whole = begun(out, monkeypatch)
    note = out / ".unfinished" / "pass.json"
    fields = json.loads(note.read_text())
    assert 0 < fields["next_row"] < 1900
    note.write_text(json.dumps(fields | {"next_row": fields["next_row"] + 64}))
    begun.make(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == whole


def test_a_note_that_is_no_json_is_refused(tmp_path, monkeypatch) -> None:
    out = tmp_path / "out"
    begun(out, monkeypatch)
    for text in ("", "[" * 10**6, "[]", "\ufffd"):
        (out / ".unfinished" / "job.json").write_text(text)
        with pytest.raises(OutputRefused, match="must be readable"):
            begun.make(out)


@amounts(few=100, many=4000)
def test_damaged_curves_are_refused_or_go_on(examples, tmp_path) -> None:
    claim = Claim.of(NoPrivacy(), RUN_SPEC, num_parameters=10)
    path = tmp_path / "curves.csv"
    curves = Curves(path, claim, start=0)
    for step in (4, 8, 12):
        curves.add(step=step, seconds=1.5 * step, epsilon=None, metrics={"auc": 0.5 + step / 100})
    whole = path.read_bytes()

    @drawn(examples)
    @given(damaged(whole))
    def holds(data: bytes) -> None:
        path.write_bytes(data)
        again = ours_or(lambda: Curves(path, claim, start=8))
        if again is not None:
            again.add(step=16, seconds=1.0, epsilon=None, metrics={"auc": 0.9})
            assert path.read_text().splitlines()[-1].startswith("16,1.000,")

    holds()


def test_curves_that_are_no_table_are_refused(tmp_path) -> None:
    claim = Claim.of(NoPrivacy(), RUN_SPEC, num_parameters=10)
    for text in (
        b"# x\nstep,auc\nfour,0.5\n",
        b"# x\nauc\n0.5\n",
        b"# x\nstep,auc\n4,0.5,7\n",
        b"\xff\n\xff",
    ):
        (tmp_path / "curves.csv").write_bytes(text)
        with pytest.raises(InvalidData, match="move the file away"):
            Curves(tmp_path / "curves.csv", claim, start=8)


@amounts(few=100, many=5000)
def test_a_key_file_is_refused_or_is_a_key_of_32_bytes(examples, tmp_path) -> None:
    path = tmp_path / "run.key"
    whole = bytes(range(32))

    @drawn(examples)
    @given(damaged(whole), st.sampled_from((0o600, 0o400, 0o640, 0o604, 0o700, 0o000)))
    def holds(data: bytes, mode: int) -> None:
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        os.chmod(path, mode)
        found = ours_or(lambda: Key.load(path))
        may = len(data) == 32 and not mode & 0o077
        assert (found is not None) <= may
        assert found is None or found.to_bytes() == data

    assert RUN_KEY.is_public
    holds()
