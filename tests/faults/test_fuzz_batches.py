"""Foreign manifests and batch files: refused in our words, or read as what they are."""

import json
import os
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pytest
from damage import amounts, damaged, drawn, ours_or, reworded, same_json
from hypothesis import given
from hypothesis import strategies as st

from truebatch import Key, TruncatedPoisson
from truebatch.batching import make_batches, open_batches
from truebatch.errors import DamagedBatches

KEY = Key.for_tests(5)
SPEC = TruncatedPoisson(num_examples=300, batch_size=20, num_steps=12, max_batch_size=30)


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 4000)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 9000)
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "x": rng.normal(size=300),
            "s": ["é" * int(k) for k in rng.integers(0, 4, 300)],
            "l": [list(range(int(k))) for k in rng.integers(0, 3, 300)],
        }
    )
    make_batches(table, SPEC, tmp_path / "out", KEY)
    return tmp_path / "out"


def rows_of(directory, *, check: bool = False) -> list[list[dict]]:
    batches = open_batches(directory)
    if check:
        batches.verify()
    return [pa.Table.from_batches([batch.record]).to_pylist() for batch in batches.read()]


def put(path, data: bytes) -> None:
    """In place of the file, not into it: one that is mapped still keeps its bytes."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)


@amounts(few=150, many=4000)
def test_a_manifest_that_is_accepted_says_what_was_written(examples, written) -> None:
    path, whole = written / "manifest.json", (written / "manifest.json").read_bytes()
    right, fields = rows_of(written), json.loads(whole)
    texts = st.one_of(damaged(whole), reworded(fields).map(lambda v: json.dumps(v).encode()))

    @drawn(examples)
    @given(texts)
    def holds(text: bytes) -> None:
        put(path, text)
        found = ours_or(lambda: rows_of(written))
        assert found in (None, right)
        assert found is None or same_json(json.loads(text), fields)

    holds()


@amounts(few=80, many=4000)
def test_a_batch_file_is_refused_or_read_within_itself_and_verify_notices_every_change(
    examples, written
) -> None:
    part = written / "part-00001.arrow"
    whole, right = part.read_bytes(), rows_of(written)

    @drawn(examples)
    @given(damaged(whole))
    def holds(data: bytes) -> None:
        put(part, data)
        found = ours_or(lambda: rows_of(written))
        assert found is None or [len(batch) for batch in found] == [30] * 12
        verified = ours_or(lambda: rows_of(written, check=True))
        assert (verified is None) is (data != whole)
        assert verified in (None, right)

    holds()


FOLLOWS = """
    import sys, pyarrow as pa
    from truebatch.batching import open_batches
    for batch in open_batches(sys.argv[1]).read():
        batch.record.column("s").to_pylist()
"""


def test_an_offset_that_points_out_of_a_damaged_file_is_not_followed(written) -> None:
    part = written / "part-00000.arrow"
    with pa.memory_map(str(part)) as file:
        offsets = pa.ipc.open_file(file).get_batch(0).column("s").buffers()[1]
        place = part.read_bytes().index(offsets.to_pybytes())
    data = bytearray(part.read_bytes())
    data[place + 43] ^= 0x40  # the high byte of an offset: a gigabyte further on
    put(part, bytes(data))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FOLLOWS), str(written)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.returncode  # and not a signal
    assert "DamagedBatches: a file of batches must be as it was written" in done.stderr


def test_columns_that_are_not_those_of_the_manifest_are_refused_without_reading_every_byte(written) -> None:
    part = written / "part-00001.arrow"
    data = part.read_bytes()
    assert data.count(b"x\0") >= 2
    for name in (b"y\0", b"\xe1\0"):
        put(part, data.replace(b"x\0", name))
        with pytest.raises(DamagedBatches, match="part-00001"):
            list(open_batches(written).read())


def test_a_file_that_is_cut_while_its_batches_are_read_is_refused(written) -> None:
    batches = open_batches(written).read()
    next(batches)
    for name in sorted(os.listdir(written))[1:4]:
        os.truncate(written / name, 1000)
    with pytest.raises(DamagedBatches, match="part-"):
        list(batches)


def test_a_manifest_nested_beyond_reason_is_refused(written) -> None:
    put(written / "manifest.json", b"[" * 10**6)
    with pytest.raises(DamagedBatches, match="cannot be read"):
        open_batches(written)
