"""Checkpoints come back bit for bit, or not at all."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from truebatch.errors import CheckpointMismatch, DamagedCheckpoint, InvalidArgument, NoSpace, OutputRefused
from truebatch.keys import Key
from truebatch.training import checkpoint_file
from truebatch.training.checkpoint import key_check, latest, save
from truebatch.training.optimizers import adam, sgd

META = {"spec": {"sampler": "poisson", "num_steps": 9}, "key": "0123456789abcdef"}


def state(seed: int = 0, *, rows: int = 300, optimizer: optax.GradientTransformation | None = None):
    rng = np.random.default_rng(seed)
    params = {
        "table": jnp.asarray(rng.normal(size=(rows, 7)), jnp.float32),
        "half": jnp.asarray(rng.normal(size=3), jnp.bfloat16),
        "empty": jnp.zeros((0, 4), jnp.float32),
    }
    if seed:
        params["table"] = params["table"].at[0, :3].set(jnp.array([jnp.nan, -0.0, 1e-45], jnp.float32))
    return {"params": params, "optimizer": (optimizer or adam(0.1)).init(params), "seed": np.uint32(seed)}


def same(a, b) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.asarray(x).dtype == np.asarray(y).dtype
        and np.asarray(x).shape == np.asarray(y).shape
        and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in pairs
    )


def test_a_state_comes_back_bit_for_bit_with_its_step_and_meta(tmp_path):
    save(tmp_path, 7, state(1), META)
    step, found, meta = latest(tmp_path, like=state(2), expect=META)
    assert (step, meta) == (7, META)
    assert same(found, state(1))
    assert not same(found, state(2))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found["params"]))


def test_arrays_of_many_pieces_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "PIECE_BYTES", 64 * 5)
    save(tmp_path, 1, state(1), META)
    assert same(latest(tmp_path, like=state()).state, state(1))


def test_what_comes_back_can_be_updated_in_place(tmp_path):
    save(tmp_path, 1, state(1, rows=4096), META)
    held = []
    for _ in range(12):  # memory of other alignments
        held.append(latest(tmp_path, like=state(rows=4096)).state)
        table = held[-1]["params"]["table"]
        place = table.unsafe_buffer_pointer()
        assert jax.jit(lambda x: x + 1, donate_argnums=0)(table).unsafe_buffer_pointer() == place
        held.append(np.empty(4096 * 7 + 16 * len(held), np.float32))


def test_there_is_none_at_first(tmp_path):
    assert latest(tmp_path, like=state()) is None
    assert latest(tmp_path / "nowhere", like=state()) is None


def test_the_last_two_are_kept(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, state(step), META)
        assert latest(tmp_path, like=state()).step == step
    assert sorted(os.listdir(tmp_path)) == ["step-000000000030.checkpoint", "step-000000000040.checkpoint"]
    save(tmp_path, 35, state(35), META)  # what came after is being made anew
    assert sorted(os.listdir(tmp_path)) == ["step-000000000030.checkpoint", "step-000000000035.checkpoint"]


def test_the_same_state_gives_the_same_bytes_closed_to_others(tmp_path):
    a, b = (save(tmp_path / name, 3, state(1), META) for name in "ab")
    assert a.read_bytes() == b.read_bytes()
    assert a.stat().st_mode & 0o777 == 0o600


# --- damage


def damaged(path, how: str) -> None:
    data = bytearray(path.read_bytes())
    place = {"format": 3, "length": 26, "header": 120, "array": len(data) // 2, "digest": len(data) - 5}
    if how == "cut":
        data = data[:-1]
    elif how == "empty":
        data = bytearray()
    elif how == "longer":
        data += b"\0"
    else:
        data[place[how]] ^= 1
    path.write_bytes(data)


DAMAGES = ["format", "length", "header", "array", "digest", "cut", "empty", "longer"]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_one_is_passed_over_for_the_one_before(tmp_path, how):
    save(tmp_path, 1, state(1), META)
    damaged(save(tmp_path, 2, state(2), META), how)
    with pytest.warns(RuntimeWarning, match=r"passed over .*step-000000000002"):
        found = latest(tmp_path, like=state(), expect=META)
    assert found.step == 1
    assert same(found.state, state(1))


def test_every_byte_counts(tmp_path):
    path = save(tmp_path, 1, {"x": jnp.arange(5, dtype=jnp.float32)}, {"a": 1})
    whole = path.read_bytes()
    for i in range(len(whole)):
        changed = bytearray(whole)
        changed[i] ^= 1 << i % 8
        path.write_bytes(changed)
        with pytest.warns(RuntimeWarning, match="passed over"), pytest.raises(DamagedCheckpoint):
            latest(tmp_path, like={"x": jnp.zeros(5)}, expect={"a": 1})


def test_damaged_ones_only_are_an_error_with_a_way_out(tmp_path):
    damaged(save(tmp_path, 1, state(1), META), "array")
    with (
        pytest.warns(RuntimeWarning, match="passed over"),
        pytest.raises(DamagedCheckpoint, match=r"no checkpoint .* is whole.*digest differs") as raised,
    ):
        latest(tmp_path, like=state())
    assert "remove" in raised.value.hint


def test_a_file_that_was_not_finished_is_not_seen_and_is_cleared_away(tmp_path):
    save(tmp_path, 1, state(1), META)
    (tmp_path / "step-000000000002.checkpoint.unfinished").write_bytes(b"half")
    assert latest(tmp_path, like=state()).step == 1
    save(tmp_path, 3, state(3), META)
    assert not list(tmp_path.glob("*.unfinished"))


SAVING = """
import sys, numpy as np
from truebatch.training.checkpoint import save
step = 0
while True:
    step += 1
    save(sys.argv[1], step, {"x": np.full(300_000, step, np.int32)}, {"run": "a"})
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay_ms", [0, 3, 11, 29, 60])
def test_a_kill_at_any_moment_leaves_a_whole_one(tmp_path, delay_ms):
    process = subprocess.Popen(
        [sys.executable, "-c", SAVING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first = [int(process.stdout.readline()) for _ in range(3)]
        time.sleep(delay_ms / 1000)
    finally:
        process.send_signal(signal.SIGKILL)
        rest = process.communicate()[0].split()
    step, found, _ = latest(tmp_path, like={"x": np.zeros(300_000, np.int32)}, expect={"run": "a"})
    last_said = int(rest[-1]) if rest else first[-1]
    assert step in (last_said, last_said + 1)
    assert (np.asarray(found["x"]) == step).all()


# --- other runs


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"spec": {"sampler": "poisson", "num_steps": 10}}, r"spec must be .*10.*; got .*9"),
        ({"key": "ffffffffffffffff"}, "key must be 'ffffffffffffffff'; got '0123456789abcdef'"),
        ({"clip_norm": 1.0}, "clip_norm must be 1.0; got None"),
    ],
)
def test_another_run_is_refused(tmp_path, other, message):
    save(tmp_path, 1, state(1), META)
    with pytest.raises(CheckpointMismatch, match=message) as raised:
        latest(tmp_path, like=state(), expect=META | other)
    assert "another directory" in raised.value.hint


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (state(rows=301), r"table'\] must be float32\[301, 7\]; got float32\[300, 7\]"),
        (state(optimizer=sgd(0.1)), r"mean.* must be absent; got float32"),
        (state() | {"more": jnp.zeros(2)}, r"more'\] must be float32\[2\]; got nothing"),
        (state() | {"seed": np.int32(0)}, r"seed'\] must be int32\[\]; got uint32\[\]"),
    ],
)
def test_another_model_or_optimizer_is_refused(tmp_path, like, message):
    save(tmp_path, 1, state(1), META)
    with pytest.raises(CheckpointMismatch, match=message):
        latest(tmp_path, like=like, expect=META)


def test_key_checks_tell_keys_and_schedules_apart_and_hold_no_key():
    key = Key.for_tests(1)
    checks = {key_check(key, "a"), key_check(key, "b"), key_check(Key.for_tests(2), "a")}
    assert len(checks) == 3
    assert key_check(Key.for_tests(1), "a") in checks
    assert all(re.fullmatch("[0-9a-f]{16}", check) for check in checks)
    assert not any(check in key.to_bytes().hex() for check in checks)


# --- what cannot be written


def test_a_full_disk_is_reported_and_leaves_the_others(tmp_path, monkeypatch):
    save(tmp_path, 1, state(1), META)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_file.os, "pwrite", full)
    with pytest.raises(NoSpace, match=r"needs [\d,]+ bytes"):
        save(tmp_path, 2, state(2), META)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["step-000000000001.checkpoint"]


def test_a_folder_that_is_none_is_refused(tmp_path):
    (tmp_path / "step-000000000001.checkpoint.unfinished").mkdir()
    with pytest.raises(OutputRefused, match="writable"):
        save(tmp_path, 1, state(1), META)


@pytest.mark.parametrize(
    ("step", "tree", "meta", "message"),
    [
        (-1, {}, {}, "step"),
        (1.0, {}, {}, "step"),
        (1, {"a": "text"}, {}, "arrays of numbers"),
        (1, {"a": jax.random.key(0)}, {}, "arrays of numbers"),
        (1, {}, {"key": Key.for_tests(1)}, "JSON"),
        (1, {}, {"loss": float("nan")}, "JSON"),
    ],
)
def test_what_is_no_state_is_refused(tmp_path, step, tree, meta, message):
    with pytest.raises(InvalidArgument, match=message):
        save(tmp_path, step, tree, meta)
    assert os.listdir(tmp_path) == []


def test_no_pickle_is_in_the_file(tmp_path):
    path = save(tmp_path, 1, state(1), META)
    assert path.read_bytes().startswith(b"truebatch-checkpoint/1\n")
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(path.read_bytes())
