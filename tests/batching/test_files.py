"""Written batches: what pyarrow alone sees, what is mapped and not copied, and what is refused."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.batching import Batches, GatherBatches, make_batches, open_batches
from truebatch.data import TableSource
from truebatch.errors import DamagedBatches, InvalidArgument, InvalidData, InvalidSpec

KEY = Key.for_tests(8)
N = 900
SPEC = TruncatedPoisson(num_examples=N, batch_size=3, num_steps=40, max_batch_size=5)


def table() -> pa.Table:
    rng = np.random.default_rng(2)
    kind = pa.list_(pa.field("item", pa.float32(), nullable=False), 3)
    return pa.table(
        {
            "x": pa.array(np.arange(1, N + 1, dtype=np.int64)),
            "m": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * N).astype("f4")), type=kind),
            "s": pa.array([f"row {i}" for i in range(N)]),
        }
    )


@pytest.fixture
def written(tmp_path, monkeypatch):
    monkeypatch.setattr("truebatch.batching.make.RECORD_BYTES", 900)
    monkeypatch.setattr("truebatch.batching.make.PART_BYTES", 2_800)
    make_batches(table(), SPEC, tmp_path / "out", KEY)
    return tmp_path / "out"


def test_pyarrow_alone_reads_the_batches_in_order(written) -> None:
    manifest = json.loads((written / "manifest.json").read_text())
    parts = [pa.ipc.open_file(str(written / f["name"])).read_all() for f in manifest["files"]]
    whole, B = pa.concat_tables(parts), manifest["layout"]["rows_per_batch"]
    assert len(parts) > 3
    assert len(whole) == 40 * B
    drawn = schedule(SPEC, KEY)
    sizes = []
    for t in range(40):
        batch = whole.slice(t * B, B)
        real = np.flatnonzero(batch["weight"].to_numpy())
        assert batch["x"].to_numpy()[real].tolist() == (drawn.members(t) + 1).tolist()
        assert real.tolist() == list(range(len(real)))
        padding = batch.slice(len(real)).to_pylist()
        assert padding == [{"x": 0, "m": [0.0] * 3, "s": "", "weight": 0.0}] * (B - len(real))
        sizes.append(len(real))
    assert 0 in sizes
    assert max(sizes) == B


def test_batches_from_files_and_by_gathering_are_the_same(written) -> None:
    files, gathered = open_batches(written), GatherBatches(TableSource(table()), SPEC, KEY)
    assert isinstance(files, Batches)
    assert isinstance(gathered, Batches)
    assert files.spec == gathered.spec == SPEC
    assert files.schema == gathered.schema
    for start, stop in [(0, None), (0, 0), (7, 7), (11, 29), (39, 40)]:
        pairs = list(zip(files.read(start, stop), gathered.read(start, stop), strict=True))
        assert [a.step for a, _ in pairs] == list(range(start, 40 if stop is None else stop))
        assert all(a.step == b.step and a.record.equals(b.record) for a, b in pairs)
        assert all(a.rows == 5 for a, _ in pairs)


def test_a_batch_is_a_view_of_the_file(written) -> None:
    before = pa.total_allocated_bytes()
    batch = next(open_batches(written).read(13))
    for name, shape in (("x", (5,)), ("m", (5, 3)), ("weight", (5,))):
        values = batch[name]
        assert values.shape == shape
        assert not values.flags.owndata
        assert not values.flags.writeable
    assert pa.total_allocated_bytes() == before
    assert batch["m"].tolist() == batch.record.column("m").to_pylist()


def test_asking_for_what_is_not_there_is_refused(written) -> None:
    batches = open_batches(written)
    with pytest.raises(InvalidArgument, match="start_step=3, stop_step=41"):
        batches.read(3, 41)
    batch = next(batches.read())
    with pytest.raises(InvalidData, match=r"there are: x, m, s, weight"):
        batch["y"]
    with pytest.raises(InvalidData, match="fixed width"):
        batch["s"]
    with pytest.raises(InvalidSpec, match="for 899 rows"):
        GatherBatches(TableSource(table().slice(1)), SPEC, KEY)


def test_a_directory_without_manifest_is_not_taken_for_batches(written) -> None:
    (written / "manifest.json").unlink()
    with pytest.raises(DamagedBatches, match="written last"):
        open_batches(written)


def test_a_missing_or_cut_file_is_refused_at_once(written) -> None:
    part = written / "part-00002.arrow"
    data = part.read_bytes()
    part.write_bytes(data[:-1])
    with pytest.raises(DamagedBatches, match="part-00002"):
        open_batches(written)
    part.unlink()
    with pytest.raises(DamagedBatches, match="part-00002"):
        open_batches(written)


def test_every_flipped_bit_is_seen_by_verify_and_none_ends_in_a_traceback(written) -> None:
    open_batches(written).verify()
    part = written / "part-00001.arrow"
    data, rng = part.read_bytes(), np.random.default_rng(4)
    for place in rng.integers(0, len(data), 60).tolist():
        changed = bytearray(data)
        changed[place] ^= 1 << rng.integers(0, 8)
        part.write_bytes(changed)
        with pytest.raises(DamagedBatches):
            open_batches(written).verify()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_manifest_of_other_words_opens_only_when_nothing_was_changed(written, data) -> None:
    path = written / "manifest.json"
    kept = path.with_suffix(".kept")
    if not kept.exists():
        kept.write_text(path.read_text())
    text = kept.read_text()
    tokens = [m.span() for m in re.finditer(r'"[^"]*"|\d+|[\[\]{}:,]', text)]
    start, stop = data.draw(st.sampled_from(tokens))
    other = data.draw(st.sampled_from(["", "null", "0", "-1", "7", '"x"', "[]", "{}", "1e9", "true", "\x00"]))
    path.write_text(text[:start] + other + text[stop:])
    try:
        batches = open_batches(written)
        read = [batch.record for batch in batches.read()]
    except DamagedBatches:
        return
    assert json.loads(path.read_text()) == json.loads(text)
    assert batches.spec.num_steps == len(read)
    assert {record.num_rows for record in read} == {5}
