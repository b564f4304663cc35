"""Text as a source: rows, types, positions, and what is said about rows that are bad."""

import concurrent.futures
import gzip
import io
import itertools
import multiprocessing
import pickle
import random
import tempfile
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truebatch.data import Source, TextSource, text_bytes, text_index
from truebatch.errors import InvalidArgument, InvalidData, SourceChanged

TYPES = {"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.bool_(), "u": pa.uint8()}


def read(source, start=0, stop=None):
    stop = source.num_rows if stop is None else stop
    batches = list(source.read(start, stop))
    assert all(b.num_rows and b.schema == source.schema for b in batches)
    return pa.Table.from_batches(batches, source.schema)


@st.composite
def texts(draw):
    """A table with quotes, delimiters, newlines and nulls, and its CSV by pyarrow's writer."""
    k = draw(st.integers(0, 60))
    text = st.text(st.sampled_from('ab"\n,\té\r '), min_size=1, max_size=8)
    values = {
        "i": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(allow_nan=False, allow_infinity=False),
        "s": text,
        "b": st.booleans(),
        "u": st.integers(0, 255),
    }
    names = draw(st.lists(st.sampled_from(sorted(TYPES)), min_size=1, unique=True))
    columns = [
        pa.array(draw(st.lists(st.none() | values[n], min_size=k, max_size=k)), TYPES[n]) for n in names
    ]
    table = pa.table(columns, names=names)
    header = draw(st.booleans())
    sink = io.BytesIO()
    options = pyarrow.csv.WriteOptions(include_header=header, batch_size=7)
    pyarrow.csv.write_csv(table, sink, options)
    return table, sink.getvalue(), header


@pytest.fixture(params=[64, 1 << 22])
def blocks(request, monkeypatch):
    """Blocks so small that every file has many; and the real ones."""
    monkeypatch.setattr(text_index, "BLOCK_BYTES", request.param)
    monkeypatch.setattr(text_bytes, "_PLACES_APART", 200)
    monkeypatch.setattr(text_bytes, "_INPUT_BYTES", 50 if request.param == 64 else 1 << 18)
    return request.param


@pytest.mark.parametrize("block", [16, 100, 1 << 22])
@settings(deadline=None, max_examples=60)
@given(texts(), st.booleans(), st.data())
def test_any_range_of_any_text_is_that_slice(block, made, zipped, data):
    table, text, header = made
    if not header and not text:
        return
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_index, "BLOCK_BYTES", block)
        patch.setattr(text_bytes, "_PLACES_APART", 50)
        patch.setattr(text_bytes, "_INPUT_BYTES", 20)
        for name in "ab":
            path = Path(directory, f"{name}.csv")
            path.write_bytes(gzip.compress(text) if zipped else text)
        columns = None if header else table.column_names
        types = {name: TYPES[name] for name in table.column_names}
        source = TextSource(directory, columns=columns, types=types)
        both = pa.concat_tables([table, table])
        assert isinstance(source, Source)
        assert source.num_rows == len(both)
        for held in (source, pickle.loads(pickle.dumps(source))):
            assert held.identity() == source.identity()
            for _ in range(3):
                start = data.draw(st.integers(0, len(both)))
                stop = data.draw(st.integers(start, len(both)))
                assert read(held, start, stop).equals(both.slice(start, stop - start))


def numbers(k, width=3):
    return "".join(f"{i},{'x' * (i % width)},{i / 4}\n" for i in range(k))


def test_types_are_inferred_from_the_first_rows_and_then_fixed(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,s,f\n" + numbers(1000))
    source = TextSource(path)
    assert [str(t) for t in source.schema.types] == ["int64", "string", "double"]
    assert read(source)["n"].to_pylist() == list(range(1000))
    # An integer column turns out to hold fractions, far behind what types were inferred from.
    late = "n,s,f\n" + numbers(100_000) + "1.5,,\n"
    path.write_text(late)
    with pytest.raises(InvalidData, match=r"x\.csv, line 100002: column 'n' must be of type int64 or empty"):
        TextSource(path)  # its last row is looked at when it is opened
    path.write_text(late + "1,,\n")
    with pytest.raises(InvalidData, match=r"x\.csv, line 100002: column 'n'.*\n.*types="):
        read(TextSource(path))
    source = TextSource(path, types={"n": "float64"})
    assert read(source, 100_000, 100_002)["n"].to_pylist() == [1.5, 1]


def test_a_column_without_a_value_is_text(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,\n2,\n")
    assert TextSource(path).schema.field("b").type == pa.string()
    assert read(TextSource(path))["b"].null_count == 2


def test_delimiters_quotes_and_nulls_can_be_given(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("1|5\" pipe|NA\n2|'q'|\n")
    source = TextSource(path, columns=["a", "b", "c"], delimiter="|", quote=None, null_values=["NA", ""])
    assert read(source).to_pydict() == {"a": [1, 2], "b": ['5" pipe', "'q'"], "c": [None, None]}


def test_a_byte_order_mark_and_windows_newlines_are_no_data(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,x\r\n2,y")
    assert read(TextSource(path)).to_pydict() == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize("members", [1, 5])
def test_gzip_of_several_members_is_one_text_read_from_anywhere(tmp_path, blocks, members):
    text = ("n,s,f\n" + numbers(3000)).encode()
    cuts = [len(text) * i // members for i in range(members + 1)]
    data = b"".join(gzip.compress(text[a:b]) for a, b in itertools.pairwise(cuts))
    path = tmp_path / "x.csv.gz"
    path.write_bytes(data + b"\0" * 100)
    source = TextSource(path)
    plain = tmp_path / "x.csv"
    plain.write_bytes(text)
    whole = read(TextSource(plain))
    chance = random.Random(3)
    for held in (source, pickle.loads(pickle.dumps(source))):
        for _ in range(20):
            start = chance.randrange(3000)
            assert read(held, start, min(3000, start + 50)).equals(whole.slice(start, 50))


def test_gzip_goes_on_from_the_last_known_place(tmp_path, monkeypatch):
    monkeypatch.setattr(text_index, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(text_bytes, "_PLACES_APART", 1 << 12)
    monkeypatch.setattr(text_bytes, "_INPUT_BYTES", 1 << 8)
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(("n,s,f\n" + numbers(20_000)).encode()))
    source = TextSource(path)
    made = []
    original = text_bytes._Gzip._next
    monkeypatch.setattr(text_bytes._Gzip, "_next", lambda s, k: made.append(len(d := original(s, k))) or d)
    assert read(source, 19_990, 20_000)["n"].to_pylist() == list(range(19_990, 20_000))
    assert sum(made) < 4 << 12
    # The twin: a pickled source knows no places, and starts from the first byte.
    made.clear()
    assert read(pickle.loads(pickle.dumps(source)), 19_990, 20_000)["n"].to_pylist()[0] == 19_990
    assert sum(made) > 200_000


def test_reading_in_ranges_parses_every_block_once(tmp_path, monkeypatch):
    monkeypatch.setattr(text_index, "BLOCK_BYTES", 1 << 12)
    path = tmp_path / "x.csv"
    path.write_text("n,s,f\n" + numbers(20_000))
    source = TextSource(path)
    form = type(source._blocks.form)
    parsed = []
    original = form.parse
    monkeypatch.setattr(
        form, "parse", lambda self, data, names=None: parsed.append(1) or original(self, data)
    )
    got = pa.concat_tables([read(source, a, a + 40) for a in range(0, 20_000, 40)])
    assert got["n"].to_pylist() == list(range(20_000))
    assert len(parsed) == len(source._blocks.indexes[0].rows)


def test_threads_read_side_by_side_and_leave_no_thread(tmp_path, blocks):
    for name, make in (("x.csv", bytes), ("y.csv", gzip.compress)):
        (tmp_path / name).write_bytes(make(("n,s,f\n" + numbers(2000)).encode()))
    source = TextSource(tmp_path)
    ranges = [(a, a + 90) for a in range(0, 3900, 130)]
    before = threading.active_count()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda r: read(source, *r), ranges * 3))
    for table, (a, b) in zip(got, ranges * 3, strict=True):
        assert table["n"].to_pylist() == [i % 2000 for i in range(a, b)]
    source._cursors = None
    assert threading.active_count() == before


def _read_rows(source, start, stop, result):
    result.put(read(source, start, stop)["n"].to_pylist())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("make", [bytes, gzip.compress])
def test_a_forked_process_opens_streams_of_its_own(tmp_path, monkeypatch, make):
    monkeypatch.setattr(text_index, "BLOCK_BYTES", 64)
    path = tmp_path / "x.csv"
    path.write_bytes(make(("n,s,f\n" + numbers(3000)).encode()))
    source = TextSource(path)
    read(source, 0, 1000)  # its stream waits at row 1000, with threads that a child does not have
    assert len(source._cursors._kept) == 1
    fork = multiprocessing.get_context("fork")
    result = fork.Queue()
    child = fork.Process(target=_read_rows, args=(source, 1000, 2000, result), daemon=True)
    child.start()
    assert result.get(timeout=30) == list(range(1000, 2000))
    child.join(30)
    assert child.exitcode == 0
    assert read(source, 1000, 2000)["n"].to_pylist() == list(range(1000, 2000))


BAD = {
    "1,x\n": "got 2 columns",
    "1,x,2,3\n": "got 4 columns",
    "zebra,x,2\n": "column 'n' must be of type int64 or empty",
    "1,x,walrus\n": "column 'f' must be of type double or empty",
    "\n": "must have 3 columns; got an empty line",
    "\r\n": "must have 3 columns; got an empty line",
    '1,"x"y,2\r3,4,5\n': "stray quotes or carriage returns",
    "1,\xff,2\n": "column 's' must be of type string",
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("at", [0, 700])
def test_a_bad_row_is_named_by_file_and_line_and_can_be_skipped(tmp_path, blocks, bad, at):
    make = gzip.compress if blocks == 64 else bytes
    path = tmp_path / "x.csv"
    lines = ['0,"two\nlines",0\n', *numbers(999).splitlines(keepends=True)]
    clean = "n,s,f\n" + "".join(lines)
    lines.insert(at, bad)
    path.write_bytes(make(("n,s,f\n" + "".join(lines)).encode("latin-1")))
    types = {"n": pa.int64(), "s": pa.string(), "f": pa.float64()}
    line = at + 2 + (at > 0)
    with pytest.raises(InvalidData, match=rf"x\.csv, line {line}: .*{BAD[bad]}") as caught:
        read(TextSource(path, types=types))
    assert "zebra" not in str(caught.value)
    assert "walrus" not in str(caught.value)
    assert caught.value.__context__ is None  # pyarrow's own errors quote the row
    source = TextSource(path, types=types, on_bad_row="skip")
    (tmp_path / "clean.csv").write_text(clean)
    want = TextSource(tmp_path / "clean.csv", types=types)
    for held in (source, pickle.loads(pickle.dumps(source))):
        assert (held.num_rows, held.num_skipped) == (1000, 1)
        assert read(held).equals(read(want))
        assert read(held, at, min(at + 5, 1000)).equals(read(want).slice(at, 5))


@pytest.mark.parametrize("on_bad_row", ["error", "skip"])
def test_rows_that_can_only_be_read_apart_are_refused(tmp_path, blocks, on_bad_row):
    path = tmp_path / "x.csv"
    for first in (0, 500):
        lines = numbers(1000, 2).splitlines(keepends=True)
        lines[first:first] = ['1,y"z,"w\n']
        path.write_text("n,s,f\n" + "".join(lines))
        with pytest.raises(InvalidData, match=r"x\.csv, (from )?line \d+: .*quotes") as caught:
            read(TextSource(path, types={"n": "int64", "s": "string", "f": "string"}, on_bad_row=on_bad_row))
        assert caught.value.__context__ is None


def test_identity_tells_which_rows_were_skipped(tmp_path):
    seen = set()
    for lines in ([2, 0, 3], [0, 2, 3], [2, 3]):
        path = tmp_path / "x.csv"
        path.write_text("a,b\n" + "".join(f"{k},1\n" if k else "bad\n" for k in lines))
        source = TextSource(path, on_bad_row="skip", types={"a": "int8", "b": "int8"})
        assert read(source)["a"].to_pylist() == [2, 3]
        (file,) = source.identity()["files"]
        seen.add((file["skipped"], file["skipped_lines"]))
    assert len(seen) == 3


@pytest.mark.parametrize("quoted", [False, True])
def test_many_bad_rows_are_all_found(tmp_path, blocks, quoted):
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 6, 1000)
    made = ["{0},{0}", "{0},{0}", '{0},"{0}"' if quoted else "{0},{0}", "{0}", "x,{0}", ""]
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(made[kind].format(i) + "\n" for i, kind in enumerate(kinds)))
    source = TextSource(path, on_bad_row="skip", types={"a": "int64", "b": "int64"})
    assert source.num_skipped == int((kinds > 2).sum())
    assert read(source)["a"].to_pylist() == np.flatnonzero(kinds <= 2).tolist()
    with pytest.raises(InvalidData, match=rf"line {np.flatnonzero(kinds > 2)[0] + 2}: "):
        read(TextSource(path, types={"a": "int64", "b": "int64"}))


def test_a_file_of_nothing_but_bad_rows_has_no_rows(tmp_path, blocks):
    path = tmp_path / "x.csv"
    path.write_text("1\n" * 100)
    source = TextSource(path, columns=["a", "b"], on_bad_row="skip")
    assert (source.num_rows, source.num_skipped) == (0, 100)
    assert read(source).num_rows == 0


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_broken_gzip_is_named_even_when_rows_may_be_skipped(tmp_path, cut):
    path = tmp_path / "x.csv.gz"
    data = gzip.compress(("n,s,f\n" + numbers(5000)).encode())
    for broken in (data[:-cut], data[:1000] + b"\xff\xff" + data[1002:], data + b"junk"):
        path.write_bytes(broken)
        with pytest.raises(InvalidData, match=r"must be whole; got '.*x\.csv\.gz'"):
            TextSource(path, on_bad_row="skip")


@pytest.mark.parametrize("make", [bytes, gzip.compress])
def test_a_text_cut_within_its_last_row_is_noticed_when_opened(tmp_path, make):
    path = tmp_path / "x.csv"
    path.write_bytes(make(b"a,b\n" + b"1,2\n" * 1000 + b"1"))
    with pytest.raises(InvalidData, match=r"x\.csv, line 1002: a row must have 2 columns; got 1 column\."):
        TextSource(path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "must not be empty"),
        (gzip.compress(b"", mtime=0), "must not be empty"),
        (b"\xef\xbb\xbf", "must not be empty"),
        (b"1,2\n3,4\n", r"must name its columns; got a number .*\nHint: .*columns="),
        (b"a,,b\n", "got an empty name"),
        (b"a,a\n", "'a' twice"),
        (b"\n1\n", "must name its columns|got an empty name"),
        (b"BZh91AY&SY", "which is bzip2"),
        (b'a,b\n1,"x\n' + b"1,2\n" * 600_000, "a quote may be open"),
    ],
)
def test_files_that_are_no_such_text_are_refused_by_name(tmp_path, monkeypatch, data, says):
    monkeypatch.setattr(text_index, "_ROW_BYTES", 1 << 21)
    monkeypatch.setattr(text_index, "BLOCK_BYTES", 1 << 20)
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    with pytest.raises(InvalidData, match=says) as caught:
        TextSource(path)
    assert "x.csv" in str(caught.value)


def test_files_with_other_columns_are_refused_with_both_names(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("x,z\n1,2\n")
    with pytest.raises(InvalidData, match=r"a\.csv.*b\.csv"):
        TextSource(tmp_path)


def test_a_file_of_a_header_alone_has_no_rows_and_types_come_from_the_next(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n")
    (tmp_path / "b.csv").write_text("x,y\n1,2\n")
    source = TextSource(tmp_path)
    assert read(source).to_pydict() == {"x": [1], "y": [2]}
    assert TextSource(tmp_path / "a.csv").num_rows == 0


def test_a_change_while_in_use_is_noticed(tmp_path, blocks):
    path = tmp_path / "x.csv"
    text = "n,s,f\n" + numbers(1000)
    path.write_text(text)
    source = TextSource(path)
    path.write_text(text.replace("\n700,", "\n701,"))
    with pytest.raises(SourceChanged, match=r"x\.csv"):
        read(source)
    path.write_text(text + "1,1,1\n")
    with pytest.raises(SourceChanged, match=r"x\.csv"):
        read(source)
    assert TextSource(path).identity() != source.identity()
    path.write_text(text)
    assert read(source).num_rows == 1000
    assert TextSource(path).identity() == source.identity()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_bad_row": "drop"}, "on_bad_row must be"),
        ({"delimiter": "||"}, "delimiter must be one ASCII character"),
        ({"quote": ","}, "must differ"),
        ({"types": {"zz": "int8"}}, "got 'zz'"),
        ({"types": {"a": "int9"}}, "got 'int9'"),
        ({"types": {"a": pa.list_(pa.int8())}}, "plain Arrow type"),
        ({"columns": "ab"}, "columns must be a list"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path, options, says):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InvalidArgument, match=says):
        TextSource(path, **options)
