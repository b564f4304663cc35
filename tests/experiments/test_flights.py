"""The demo's data is the documented layout of the public tables, to the last value."""

import hashlib
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from truebatch.errors import InvalidArgument
from truebatch.experiments.flights import NUM_FLIGHTS, flights_table, write_flights

# SHA-256 of all values as text, column by column; made once from an independent layout of the same tables.
DIGEST = "b5904d142dc5b8ce7cd6416517630eacab59adafc49bb2b9c504e5364439a6b8"


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights_table()


def test_every_value_is_the_one_of_an_independent_layout(table) -> None:
    digest = hashlib.sha256()
    for name in table.column_names:
        for value in table[name].to_pylist():
            digest.update(f"{'' if value is None else value}\n".encode())
    assert digest.hexdigest() == DIGEST


def test_columns_are_those_of_criteo(table) -> None:
    assert table.column_names == ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]
    assert len(table) == NUM_FLIGHTS
    assert sum(table["label"].to_pylist()) / NUM_FLIGHTS == pytest.approx(0.237, abs=5e-4)


def test_categoricals_are_checksums_of_public_values(table) -> None:
    first = table.slice(1, 1).to_pylist()[0]
    for name, value in {
        "C1": "UA",
        "C2": "UA1714",
        "C6": "LGA-IAH",
        "C12": "LGA|5",
        "C26": "LGA|529",
    }.items():
        assert first[name] == f"{zlib.crc32(f'{name}={value}'.encode()):08x}"


def test_the_file_is_written_whole_and_once(tmp_path, table) -> None:
    path = write_flights(tmp_path / "new" / "flights13.parquet")
    assert pq.read_table(path).equals(table)
    before = path.stat()
    assert write_flights(path).stat() == before
    assert [p.name for p in path.parent.iterdir()] == ["flights13.parquet"]


def test_a_directory_that_cannot_be_written_to_is_said(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="can be written to"):
        write_flights(tmp_path / "file" / "flights13.parquet")
