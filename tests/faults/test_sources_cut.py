"""A source that is cut before or while it is read: named, nothing made of it; whole again, the job ends."""

import gzip
import os
import re
import shutil

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from small_jobs import batches, command, contents, table, train

from truebatch.batching import buckets, in_place
from truebatch.data import preparing

N, FEW = 80_000, 4000
LINE = "--batch-size 800 --steps 40 --max-batch-size 1000 --memory 400KB --public-test-seed 3"


@pytest.fixture(autouse=True)
def read_little_at_a_time(monkeypatch) -> None:
    """So that no reader holds all of a small file when the first piece is out."""
    monkeypatch.setattr("truebatch.data.text_index.BLOCK_BYTES", 10_000)
    monkeypatch.setattr("truebatch.data.text_bytes._INPUT_BYTES", 5_000)
    monkeypatch.setattr("truebatch.data.parquet._BUFFER_BYTES", 4_000)


def arrow(path, n: int, *, stream: bool) -> None:
    made = pa.ipc.new_stream if stream else pa.ipc.new_file
    with made(str(path), table(n).schema) as writer:
        writer.write_table(table(n), max_chunksize=n // 20)


def text(path, n: int) -> None:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(table(n), sink)
    path.write_bytes(gzip.compress(sink.getvalue().to_pybytes(), compresslevel=1))


FORMATS = {
    "rows.parquet": lambda path, n: pq.write_table(
        table(n), path, row_group_size=n // 20, compression="none"
    ),
    "rows.arrow": lambda path, n: arrow(path, n, stream=False),
    "stream.arrow": lambda path, n: arrow(path, n, stream=True),
    "rows.csv.gz": text,
}


def halve(path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def refused(code: int, path, capsys) -> str:
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert str(path) in err
    return err


def make(rows, out) -> int:
    return command(f"batches {rows} --out {out} {LINE}")


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_that_was_cut_before_is_refused_and_nothing_is_made(name, tmp_path, capsys) -> None:
    rows = tmp_path / name
    FORMATS[name](rows, FEW)
    halve(rows)
    for job in (batches, train):
        assert re.search("cut|bytes|readable", refused(job(rows, tmp_path / "out"), rows, capsys))
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_that_is_cut_while_batches_are_made_is_named_and_whole_again_they_end_aright(
    name, tmp_path, monkeypatch, capsys
) -> None:
    rows, out, kept = tmp_path / name, tmp_path / "out", tmp_path / "kept"
    FORMATS[name](rows, N)
    shutil.copy2(rows, kept)
    assert make(rows, tmp_path / "whole") == 0
    pieces = []

    def cut_after_two(read):
        def reading(*given):
            found = read(*given)
            pieces.append(1)
            if len(pieces) == 2:
                halve(rows)
            return found

        return reading

    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(in_place, "packed_rows", cut_after_two(in_place.packed_rows))
        patch.setattr(buckets, "record_batch", cut_after_two(buckets.record_batch))
        code = make(rows, out)
    err = refused(code, rows, capsys)
    assert 2 <= len(pieces) < 40
    assert "changed" in err or "cut" in err or "readable" in err
    assert not (out / "manifest.json").exists()
    refused(make(rows, out), rows, capsys)  # still cut
    shutil.copy2(kept, rows)
    assert make(rows, out) == 0
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", FORMATS)
def test_a_source_that_is_cut_while_a_run_prepares_it_is_named_and_leaves_no_rows(
    name, tmp_path, monkeypatch, capsys
) -> None:
    rows, out = tmp_path / name, tmp_path / "run"
    FORMATS[name](rows, FEW)
    pack, packed = preparing.pack, []

    def cut_after_the_first(*given):
        packed.append(1)
        if len(packed) == 1:
            os.truncate(rows, 1000)
        return pack(*given)

    monkeypatch.setattr(preparing, "pack", cut_after_the_first)
    monkeypatch.setattr(preparing, "DIGEST_ROWS", 100)
    monkeypatch.setattr("truebatch.data.pieces.PIECE_ROWS", 100)
    monkeypatch.setattr("truebatch.data.parquet.PIECE_ROWS", 100)
    refused(train(rows, out), rows, capsys)
    assert not list(out.glob("rows/*.rows"))
    assert not list(out.glob("rows/.*"))
