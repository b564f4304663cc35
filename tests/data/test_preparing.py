"""Prepared rows: the same rows from the map, and what happens when writing does not go well."""

import errno
import multiprocessing
import os
import pickle
import signal
import stat
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import tables

from truebatch.data import (
    Features,
    Layout,
    MappedSource,
    ParquetSource,
    Source,
    mapped,
    pack,
    prepare,
    preparing,
)
from truebatch.errors import InvalidArgument, InvalidData, NoSpace, OutputRefused, SourceChanged


def read(source, start=0, stop=None):
    batches = list(source.read(start, source.num_rows if stop is None else stop))
    assert all(b.num_rows and b.schema == source.schema for b in batches)
    return pa.Table.from_batches(batches, source.schema)


def numbers(k=1000, shift=0):
    return {"x": np.arange(k) + shift, "label": np.arange(k, dtype=np.int8) % 2}


@settings(deadline=None, max_examples=80)
@given(tables(least=1, variable=False), st.data())
def test_any_range_and_any_rows_of_the_map_are_those_of_the_table(table, data):
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        for place in (preparing, mapped):
            patch.setattr(place, "DIGEST_ROWS", data.draw(st.shared(st.integers(1, 60), key="rows")))
        source = prepare(table, Path(directory, "rows"))
        assert isinstance(source, Source)
        assert read(source).equals(table.replace_schema_metadata(None))
        for held in (source, MappedSource.open(Path(directory, "rows")), pickle.loads(pickle.dumps(source))):
            held.verify()
            assert held.identity() == source.identity()
            start = data.draw(st.integers(0, len(table)))
            stop = data.draw(st.integers(start, len(table)))
            assert read(held, start, stop).equals(table.slice(start, stop - start))
            ids = data.draw(st.lists(st.integers(0, len(table) - 1), max_size=9)) if len(table) else []
            taken = pa.Table.from_batches([held.take(np.array(ids, np.int64))])
            assert taken.equals(table.take(pa.array(ids, pa.int64())))


def test_gather_is_rows_taken_from_the_packed_table(tmp_path):
    table = pa.table(numbers(5000))
    source = prepare(table, tmp_path / "rows")
    layout = Layout.of(table.schema)
    packed = pack(table.combine_chunks().to_batches()[0], layout)
    assert np.array_equal(source.rows, packed)
    assert not source.rows.flags.writeable
    ids = np.random.default_rng(1).integers(0, 5000, 3000)
    assert np.array_equal(source.gather(ids), packed[ids])
    out = np.full((3000, layout.width), 7, np.uint8)
    assert source.gather(ids, out) is out
    assert np.array_equal(out, packed[ids])
    for bad in ([-1], [5000], [0, 2**40]):
        with pytest.raises(InvalidArgument, match="from 0 to 4999"):
            source.gather(np.array(bad))
    with pytest.raises(InvalidArgument, match="C-contiguous"):
        source.gather(ids, out[:, ::-1])
    with pytest.raises(InvalidArgument, match="0 <= start <= stop <= 5000"):
        list(source.read(0, 5001))


def test_features_are_encoded_and_kept_with_the_rows(tmp_path):
    table = pa.table({"label": [0, 1], "s": ["a", None], "n": [1.5, 2.5]})
    features = Features.infer(table.schema, buckets=100)
    source = prepare(table, tmp_path / "rows", features)
    assert read(source).to_batches()[0].equals(features.encode(table.to_batches()[0]))
    assert MappedSource.open(tmp_path / "rows").features == features
    assert prepare(numbers(), tmp_path / "plain").features is None
    # Not a layout of nullable items, which would take room for null bits.
    assert source.layout.width == 1 + 4 + 4


def test_strings_need_features(tmp_path):
    with pytest.raises(InvalidData, match=r"got s \(string\)(.|\n)*features="):
        prepare({"s": ["a"], "x": [1]}, tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def test_the_same_source_and_features_are_not_written_again(tmp_path, monkeypatch):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(numbers()), path)
    written = []
    original = preparing._write
    monkeypatch.setattr(preparing, "_write", lambda *a: written.append(1) or original(*a))
    features = Features(label="label", numeric=("x",))
    for source, how, count in [
        (ParquetSource(path), None, 1),
        (ParquetSource(path), None, 1),
        (ParquetSource(path), features, 2),
        (ParquetSource(path), features, 2),
        (numbers(shift=1), features, 3),
        (numbers(shift=1), features, 3),
    ]:
        prepare(source, tmp_path / "rows", how)
        assert len(written) == count
    pq.write_table(pa.table(numbers(shift=2)), path)
    assert read(prepare(ParquetSource(path), tmp_path / "rows"))["x"][0].as_py() == 2
    assert len(written) == 4


def test_a_map_that_was_replaced_stays_what_it_was_and_is_not_unpickled_as_another(tmp_path):
    first = prepare(numbers(), tmp_path / "rows")
    sent = pickle.dumps(first)
    prepare(numbers(shift=5), tmp_path / "rows")
    assert read(first)["x"][0].as_py() == 0
    with pytest.raises(SourceChanged, match="rows"):
        pickle.loads(sent)


def test_the_file_is_for_its_owner_alone_and_progress_is_told(tmp_path, monkeypatch):
    for place in (preparing, mapped):
        monkeypatch.setattr(place, "DIGEST_ROWS", 300)
    seen = []
    prepare(numbers(), tmp_path / "rows", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(300, 1000), (600, 1000), (900, 1000), (1000, 1000)]
    assert stat.S_IMODE((tmp_path / "rows").stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["rows"]


def test_a_file_that_is_not_whole_is_refused_and_prepared_again(tmp_path):
    path = tmp_path / "rows"
    whole = prepare(numbers(), path)
    data = path.read_bytes()
    changes = [data[:k] for k in (16, 4096, 5000, len(data) - 1)]
    changes += [data[:4096] + data[4105:], data[:-30] + b"x" + data[-29:], data + b"x"]
    for change in changes:
        path.write_bytes(change)
        with pytest.raises(InvalidData, match="must be whole"):
            MappedSource.open(path)
        assert prepare(numbers(), path).identity() == whole.identity()


def test_a_changed_row_is_found_by_verify(tmp_path):
    path = tmp_path / "rows"
    prepare(numbers(), path)
    data = bytearray(path.read_bytes())
    data[6000] ^= 1
    path.write_bytes(data)
    source = MappedSource.open(path)
    with pytest.raises(InvalidData, match="as they were written"):
        source.verify()


def test_other_files_are_refused_and_left_alone(tmp_path):
    for name, data in (("text", b"my thesis, chapter one"), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(OutputRefused, match="something else"):
            prepare(numbers(), path)
        assert path.read_bytes() == data
        with pytest.raises(InvalidData, match="must begin with their name"):
            MappedSource.open(path)
    with pytest.raises(OutputRefused, match="something else"):
        prepare(numbers(), tmp_path)
    with pytest.raises(OutputRefused, match="directory that can be written"):
        prepare(numbers(), tmp_path / "no" / "rows")
    with pytest.raises(InvalidData, match="must be a file"):
        MappedSource.open(tmp_path / "no")


class Interrupted(Exception):
    pass


def test_an_error_on_the_way_leaves_nothing_behind_and_the_old_file_as_it_was(tmp_path, monkeypatch):
    for place in (preparing, mapped):
        monkeypatch.setattr(place, "DIGEST_ROWS", 300)
    path = tmp_path / "rows"
    old = prepare(numbers(), path)

    def stop(done, total):
        if done > 500:
            raise Interrupted

    with pytest.raises(Interrupted):
        prepare(numbers(shift=1), path, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == ["rows"]
    assert MappedSource.open(path).identity() == old.identity()
    MappedSource.open(path).verify()


def test_a_full_disk_says_how_much_is_needed(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpace, match=f"1000 rows need {4096 + 1000 * 9} bytes"):
        prepare(pa.table(numbers(), schema=not_null()), tmp_path / "rows")
    assert list(tmp_path.iterdir()) == []


def not_null():
    return pa.schema(
        [pa.field("x", pa.int64(), nullable=False), pa.field("label", pa.int8(), nullable=False)]
    )


def _slow(path):
    prepare(numbers(), path, progress=lambda done, total: time.sleep(60))


def test_killed_at_any_moment_the_path_is_untouched_and_the_next_run_finishes(tmp_path):
    path = tmp_path / "rows"
    worker = multiprocessing.get_context("spawn").Process(target=_slow, args=(path,))
    worker.start()
    aside = tmp_path / ".rows.partial"
    while not (aside.exists() and aside.stat().st_size):
        time.sleep(0.01)
    with pytest.raises(OutputRefused, match="one writer at a time"):
        prepare(numbers(), path)
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    assert not path.exists()
    assert aside.exists()
    source = prepare(numbers(), path)
    source.verify()
    assert [p.name for p in tmp_path.iterdir()] == ["rows"]


def test_a_source_without_rows_is_prepared_too(tmp_path):
    empty = pa.table({"x": pa.array([], pa.int8())})
    source = prepare(empty, tmp_path / "rows")
    assert source.num_rows == 0
    assert list(source.read(0, 0)) == []
    assert source.gather(np.zeros(0, np.int64)).shape == (0, 2)
    source.verify()
