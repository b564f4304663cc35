"""Parquet and Arrow files as sources: the rows, the order, and what is refused."""

import concurrent.futures
import os
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_tables import FIXED, VARIABLE, tables

from truebatch.data import ArrowSource, ParquetSource, Source
from truebatch.errors import InvalidArgument, InvalidData, SourceChanged


def write_parquet(table, path, group):
    pq.write_table(table, path, row_group_size=group)


def write_file(table, path, group):
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)


def write_stream(table, path, group):
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=group)


def write_compressed(table, path, group):
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=group)


KINDS = {
    "parquet": (ParquetSource, write_parquet, ".parquet"),
    "file": (ArrowSource, write_file, ".arrow"),
    "stream": (ArrowSource, write_stream, ".arrow"),
    "compressed": (ArrowSource, write_compressed, ".arrow"),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


PLAIN = st.sampled_from(FIXED + VARIABLE)


def small(k=100):
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("s", pa.string())])
    return pa.table({"x": range(k), "s": [f"s{i}" if i % 3 else None for i in range(k)]}, schema=schema)


def rows(source, start, stop):
    batches = list(source.read(start, stop))
    assert all(b.num_rows and b.schema == source.schema for b in batches)
    return pa.Table.from_batches(batches, source.schema)


@pytest.mark.parametrize("name", KINDS)
@settings(deadline=None, max_examples=50)
@given(st.data())
def test_any_range_of_any_files_is_that_slice(name, data):
    make, write, suffix = KINDS[name]
    # Parquet itself, as pyarrow reads it, has no null among lists of a fixed size.
    table = data.draw(tables(least=1, kinds=PLAIN if name == "parquet" else None))
    group = data.draw(st.integers(1, 20))
    cut = data.draw(st.integers(0, len(table)))
    with tempfile.TemporaryDirectory() as directory:
        write(table.slice(0, cut), Path(directory, f"a{suffix}"), group)
        write(table.slice(cut), Path(directory, f"b{suffix}"), group)
        source = make(directory)
        assert isinstance(source, Source)
        assert source.num_rows == len(table)
        for held in (source, pickle.loads(pickle.dumps(source))):
            assert held.identity() == source.identity()
            for _ in range(3):
                start = data.draw(st.integers(0, len(table)))
                stop = data.draw(st.integers(start, len(table)))
                assert rows(held, start, stop).equals(table.slice(start, stop - start))


def test_consecutive_ranges_go_on_where_the_last_one_stopped(kind, tmp_path, monkeypatch):
    make, write, suffix = kind
    path = tmp_path / f"x{suffix}"
    write(small(1000), path, 1000)
    source = make(path)
    opened = []
    original = source._cursors._open_at
    monkeypatch.setattr(source._cursors, "_open_at", lambda row: opened.append(row) or original(row))
    assert pa.concat_tables([rows(source, a, a + 10) for a in range(0, 1000, 10)]).equals(small(1000))
    assert opened == [0]
    # The twin: a jump does open a new stream, so the count above can fail.
    rows(source, 5, 6)
    assert opened == [0, 5]


def test_a_range_that_is_left_early_does_not_disturb_the_next(kind, tmp_path):
    make, write, suffix = kind
    write(small(), tmp_path / f"x{suffix}", 7)
    source = make(tmp_path)
    for _ in range(3):
        stream = source.read(0, 50)
        next(stream)
        stream.close()
        assert rows(source, 50, 60).equals(small().slice(50, 10))


def test_threads_read_side_by_side(kind, tmp_path):
    make, write, suffix = kind
    write(small(5000), tmp_path / f"x{suffix}", 700)
    source = make(tmp_path)
    ranges = [(a, a + k) for a in range(0, 4900, 100) for k in (1, 50, 100)] * 3
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda r: rows(source, *r), ranges))
    assert all(g["x"].to_pylist() == list(range(*r)) for g, r in zip(got, ranges, strict=True))


def test_pieces_are_bounded_whatever_a_group_holds(kind, tmp_path):
    make, write, suffix = kind
    table = pa.table({"x": np.arange(200_000)})
    write(table, tmp_path / f"x{suffix}", 200_000)
    source = make(tmp_path)
    assert max(b.num_rows for b in source.read(0, 200_000)) <= 1 << 16
    assert rows(source, 0, 200_000).equals(table)


def test_a_list_keeps_its_order_and_globs_sort(kind, tmp_path):
    make, write, suffix = kind
    for i, name in enumerate("cab"):
        write(small(3).slice(i, 1), tmp_path / f"{name}{suffix}", 9)
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / f".hidden{suffix}").touch()
    files = [tmp_path / f"{name}{suffix}" for name in "cab"]
    assert rows(make(files), 0, 3)["x"].to_pylist() == [0, 1, 2]
    for where in (tmp_path, str(tmp_path / "*"), [tmp_path / "[ab]*", files[0]]):
        assert rows(make(where), 0, 3)["x"].to_pylist() == [1, 2, 0]
    assert make(files).identity() != make(tmp_path).identity()


def test_lists_of_a_fixed_size_are_kept(kind, tmp_path):
    make, write, suffix = kind
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(39, dtype=np.int32)), 13)
    schema = pa.schema([pa.field("i", lists.type, nullable=False)])
    table = pa.table([lists], schema=schema)
    write(table, tmp_path / f"x{suffix}", 2)
    assert rows(make(tmp_path), 1, 3).equals(table.slice(1))


def test_dictionaries_are_decoded(kind, tmp_path):
    make, write, suffix = kind
    table = pa.table({"c": pa.array(["a", "b", None, "a"]).dictionary_encode()})
    write(table, tmp_path / f"x{suffix}", 9)
    source = make(tmp_path)
    assert source.schema.field("c").type == pa.string()
    assert rows(source, 1, 4)["c"].to_pylist() == ["b", None, "a"]


def test_identity_sees_a_new_time_and_a_new_row_but_no_new_directory(kind, tmp_path):
    make, write, suffix = kind
    path = tmp_path / f"x{suffix}"
    write(small(), path, 50)
    os.utime(path, ns=(1, 1))
    first = make(path).identity()
    assert first["files"][0]["mtime_ns"] == 1
    (tmp_path / "other").mkdir()
    moved = path.rename(tmp_path / "other" / path.name)
    assert make(moved).identity() == first
    os.utime(moved, ns=(2, 2))
    assert make(moved).identity() != first
    write(small(101), moved, 50)
    os.utime(moved, ns=(1, 1))
    assert make(moved).identity() != first


def test_a_file_rewritten_in_use_is_noticed_and_a_copy_is_not(kind, tmp_path):
    make, write, suffix = kind
    path = tmp_path / f"x{suffix}"
    write(small(), path, 50)
    source = make(path)
    os.utime(path, ns=(1, 1))
    assert rows(source, 0, 100).equals(small())
    path.unlink()
    write(small(100_000), path, 50_000)
    with pytest.raises(SourceChanged, match=path.name):
        rows(source, 0, 100)


@pytest.mark.parametrize("cut", [1, 9, 200])
def test_a_file_cut_short_is_refused_by_name(kind, tmp_path, cut):
    make, write, suffix = kind
    path = tmp_path / f"x{suffix}"
    write(small(), path, 50)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(InvalidData, match=path.name):
        make(path)


def test_files_of_other_contents_are_refused_by_name(kind, tmp_path):
    make, _, suffix = kind
    path = tmp_path / f"x{suffix}"
    for data in (b"", b"1,2,3\n" * 100, b"PAR1", b"ARROW1", b"PAR1PAR1", b"PAR1" + b"\xff" * 20 + b"PAR1"):
        path.write_bytes(data)
        with pytest.raises(InvalidData, match=path.name):
            make(path)


def test_schemas_that_differ_are_refused_with_both_names(kind, tmp_path):
    make, write, suffix = kind
    for i, table in enumerate([pa.table({"x": [1]}), pa.table({"x": ["1"]}), pa.table({"x": [1], "y": [2]})]):
        write(table, tmp_path / f"{i}{suffix}", 9)
    with pytest.raises(InvalidData, match=rf"x int64 in '.*0{suffix}' and x string in '.*1{suffix}'"):
        make([tmp_path / f"{i}{suffix}" for i in (0, 1)])
    with pytest.raises(InvalidData, match=r"1 columns in .* and 2 in"):
        make([tmp_path / f"{i}{suffix}" for i in (0, 2)])


def test_places_that_hold_no_file_are_refused(kind, tmp_path):
    make, write, suffix = kind
    write(small(), tmp_path / f"flights{suffix}", 9)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidData, match=f"did you mean '.*flights{suffix}'"):
        make(tmp_path / f"flight{suffix}")
    with pytest.raises(InvalidData, match="does not exist"):
        make(tmp_path / "no" / f"x{suffix}")
    with pytest.raises(InvalidData, match="matches none"):
        make(tmp_path / "*.nothing")
    with pytest.raises(InvalidData, match="must hold files that end in"):
        make(tmp_path / "empty")
    with pytest.raises(InvalidArgument, match="twice"):
        make([tmp_path, tmp_path])
    with pytest.raises(InvalidArgument, match="empty list"):
        make([])
    with pytest.raises(InvalidArgument, match="file systems"):
        make("gs://bucket/x")


def test_a_pass_over_parquet_holds_no_more_than_a_few_pieces(tmp_path):
    path = tmp_path / "rows.parquet"
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([(f"x{i}", pa.int64()) for i in range(10)])) as writer:
        for _ in range(40):
            columns = [pa.array(rng.integers(0, 2**62, 20_000)) for _ in range(10)]
            writer.write_table(pa.table(columns, schema=writer.schema), row_group_size=20_000)
    before, most = pa.total_allocated_bytes(), 0
    for _ in ParquetSource(path).read(0, 800_000):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < path.stat().st_size / 4
