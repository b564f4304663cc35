"""Foreign rows: every format, damaged in every way, is refused in our words or read consistently."""

import base64
import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import amounts, damaged, drawn, ours_or, reworded
from hypothesis import given
from hypothesis import strategies as st

from truebatch.data import EncodedSource, Features, MappedSource, open_source, prepare
from truebatch.data import mapped as room
from truebatch.data.source import schema_to_bytes
from truebatch.errors import InvalidData, TruebatchError

N = 90


def table() -> pa.Table:
    rng = np.random.default_rng(0)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 9, 3 * N).astype("i4")), 3)
    return pa.table(
        {
            "label": rng.integers(0, 2, N).astype(np.int8),
            "x": rng.normal(size=N),
            "k": rng.integers(-5, 99, N),
            "s": [None if k == 0 else "é" * int(k) for k in rng.integers(0, 4, N)],
            "l": [list(range(int(k))) for k in rng.integers(0, 3, N)],
            "d": pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
            "f": lists,
        }
    )


def text(separator: str, quote: str = "") -> bytes:
    rows = table().select(["label", "x", "k", "s"]).to_pylist()
    lines = [
        separator.join("" if v in (None, "") else f"{quote}{v}{quote}" for v in row.values()) for row in rows
    ]
    return "\n".join([separator.join(rows[0]), *lines, ""]).encode()


def criteo() -> bytes:
    rng = np.random.default_rng(1)
    lines = []
    for _ in range(40):
        numbers = ["" if rng.random() < 0.2 else str(rng.integers(-2, 99)) for _ in range(13)]
        words = ["" if rng.random() < 0.1 else f"{rng.integers(0, 2**32):08x}" for _ in range(26)]
        lines.append("\t".join([str(rng.integers(0, 2)), *numbers, *words]))
    return ("\n".join(lines) + "\n").encode()


def arrow(stream: bool, compression: str | None = None) -> bytes:
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    made = (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table().schema, options=options)
    with made as writer:
        writer.write_table(table(), max_chunksize=40)
    return sink.getvalue().to_pybytes()


def parquet(**options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table().drop_columns(["f"]), sink, row_group_size=40, **options)
    return sink.getvalue().to_pybytes()


WHOLE = {
    "plain.parquet": lambda: parquet(compression="none", use_dictionary=False),
    "usual.parquet": parquet,
    "file.arrow": lambda: arrow(stream=False),
    "stream.arrow": lambda: arrow(stream=True),
    "packed.arrow": lambda: arrow(stream=False, compression="zstd"),
    "rows.csv": lambda: text(","),
    "quoted.csv": lambda: text(",", quote='"'),
    "rows.tsv": lambda: text("\t"),
    "criteo.txt": criteo,
}


def read(path, **options) -> pa.Table:
    """All rows, twice: as a whole and in halves; and, where that can be, encoded."""
    source = open_source(path, **options)
    n = source.num_rows
    whole = pa.Table.from_batches(source.read(0, n), source.schema)
    whole.validate(full=True)
    halves = [*source.read(0, n // 2), *source.read(n // 2, n)]
    parts = pa.Table.from_batches(halves, source.schema)
    assert len(whole) == n
    assert repr(parts.to_pylist()) == repr(whole.to_pylist())
    try:
        encoded = EncodedSource(source, Features.infer(source.schema))
    except TruebatchError:
        return whole
    assert sum(batch.num_rows for batch in encoded.read(0, n)) == n
    return whole


@amounts(few=40, many=3000)
@pytest.mark.parametrize("name", WHOLE)
def test_damaged_rows_are_refused_or_read_the_same_however_they_are_read(name, examples, tmp_path) -> None:
    whole, path = WHOLE[name](), tmp_path / name
    path.write_bytes(whole)
    assert len(read(path)) > 30

    @drawn(examples)
    @given(damaged(whole), st.booleans())
    def holds(data: bytes, skip: bool) -> None:
        path.unlink()
        path.write_bytes(data)
        options = {"on_bad_row": "skip"} if skip and path.suffix in (".csv", ".tsv", ".txt") else {}
        ours_or(lambda: read(path, **options))

    holds()


@amounts(few=40, many=3000)
def test_a_damaged_gzip_file_gives_its_text_to_where_it_ends_or_none(examples, tmp_path) -> None:
    rows, path = text(","), tmp_path / "rows.csv.gz"
    cut = rows.index(b"\n", len(rows) // 2) + 1
    whole = gzip.compress(rows[:cut], mtime=0) + gzip.compress(rows[cut:], mtime=0)
    path.write_bytes(whole)
    right = read(path)

    @drawn(examples)
    @given(damaged(whole))
    def holds(data: bytes) -> None:
        path.unlink()
        path.write_bytes(data)
        found = ours_or(lambda: read(path))
        assert found is None or found == right.slice(0, len(found))

    holds()


LETTERS = st.sampled_from(list('ab1,\t"\r\n\0é-.0 ')).map(str.encode) | st.binary(min_size=1, max_size=2)


@amounts(few=100, many=10_000)
def test_any_text_at_all_is_refused_or_read_the_same_however_it_is_read(examples, tmp_path) -> None:
    @drawn(examples)
    @given(
        st.lists(LETTERS, max_size=60).map(b"".join),
        st.sampled_from(["csv", "tsv", "criteo", None]),
        st.sampled_from(["error", "skip"]),
    )
    def holds(data: bytes, kind: str | None, on_bad_row: str) -> None:
        path = tmp_path / "rows.txt"
        path.write_bytes(data)
        ours_or(lambda: read(path, format=kind, on_bad_row=on_bad_row))

    holds()


@pytest.fixture
def prepared(tmp_path):
    rows = table().select(["label", "x", "k"])
    prepare(rows, tmp_path / "rows", Features.infer(rows.schema))
    return tmp_path / "rows"


def gathered(path) -> pa.Table:
    source = MappedSource.open(path)
    source.verify()
    assert source.features is None or source.features.numeric
    assert source.identity()["rows"] == source.num_rows
    return pa.Table.from_batches([source.take(np.arange(source.num_rows))])


@amounts(few=100, many=5000)
def test_prepared_rows_are_refused_or_are_the_ones_that_were_written(examples, prepared) -> None:
    whole, right = prepared.read_bytes(), gathered(prepared)
    tail = len(room.NAME) + 24
    length = int.from_bytes(whole[-tail:][:8], "little")
    fields = json.loads(whole[-tail - length : -tail])

    def with_footer(record) -> bytes:
        said = json.dumps(record).encode()
        end = len(said).to_bytes(8, "little") + room._digest(said) + room.NAME
        return whole[: -tail - length] + said + end

    @drawn(examples)
    @given(damaged(whole) | reworded(fields).map(with_footer))
    def holds(data: bytes) -> None:
        prepared.unlink()
        prepared.write_bytes(data)
        assert ours_or(lambda: gathered(prepared)) in (None, right)

    holds()


def test_a_footer_that_speaks_of_rows_of_no_width_is_refused(prepared) -> None:
    schema = base64.b64encode(schema_to_bytes(pa.schema([pa.field("s", pa.string())]))).decode()
    said = json.dumps({"rows": 10**15, "schema": schema, "digest": "", "made_from": {}}).encode()
    end = len(said).to_bytes(8, "little") + room._digest(said) + room.NAME
    prepared.write_bytes(room.NAME.ljust(room.HEAD_BYTES, b"\0") + said + end)
    with pytest.raises(InvalidData, match="must be whole"):
        MappedSource.open(prepared)


def test_a_gzip_file_whose_first_bytes_are_damaged_is_not_taken_for_text(tmp_path) -> None:
    whole = gzip.compress(text(","), mtime=0)
    for head in (b"\x1f", b"", b"label,x\n1,"):
        (tmp_path / "rows.csv.gz").write_bytes(head + whole[2:])
        with pytest.raises(InvalidData, match=r"must be gzip"):
            open_source(tmp_path / "rows.csv.gz")


def test_column_names_that_are_not_utf8_are_refused(tmp_path) -> None:
    for data in (arrow(stream=False), arrow(stream=True)):
        (tmp_path / "x.arrow").write_bytes(data.replace(b"label", b"l\xffbel"))
        with pytest.raises(InvalidData, match=r"UTF-8|readable"):
            open_source(tmp_path / "x.arrow")


def test_text_in_parquet_that_is_not_utf8_is_refused_when_it_is_read(tmp_path) -> None:
    data = parquet(compression="none", use_dictionary=False, write_statistics=False)
    (tmp_path / "x.parquet").write_bytes(data.replace("éé".encode(), b"\xff\xff\xff\xff"))
    source = open_source(tmp_path / "x.parquet")
    with pytest.raises(InvalidData, match="UTF8"):
        list(source.read(0, source.num_rows))


def test_a_row_of_text_that_is_several_to_the_parser_is_named(tmp_path) -> None:
    (tmp_path / "x.csv").write_bytes(b"label,a\n1,2\n3,4\r5,6,7\n1,2\n")
    with pytest.raises(InvalidData, match=r"line 3: a row must"):
        read(tmp_path / "x.csv")
    kept = open_source(tmp_path / "x.csv", on_bad_row="skip")
    assert (kept.num_rows, kept.num_skipped) == (2, 1)
