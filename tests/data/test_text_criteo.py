"""Criteo's layout: what its fields become, and that nothing is lost but the case of digits."""

import gzip

import numpy as np
import pyarrow as pa
import pytest

from truebatch.data import TextSource, text_index
from truebatch.errors import InvalidData


def table(k, seed=0):
    """Rows of the layout: numbers for digits, and nulls."""
    rng = np.random.default_rng(seed)
    columns = {"label": pa.array(rng.integers(0, 2, k), pa.int8())}
    for i in range(1, 14):
        mask = rng.random(k) < 0.3
        columns[f"I{i}"] = pa.array(rng.integers(-3, 2**31, k), pa.int32(), mask=mask)
    for i in range(1, 27):
        mask = rng.random(k) < 0.3
        columns[f"C{i}"] = pa.array(rng.integers(0, 2**32, k), pa.uint32(), mask=mask)
    schema = pa.schema([pa.field(n, c.type, nullable=n != "label") for n, c in columns.items()])
    return pa.table(columns, schema=schema)


def text(rows, case="x"):
    """The rows as Criteo writes them."""
    lines = []
    for row in rows.to_pylist():
        digits = {n: v if v is None or n[0] != "C" else format(v, f"08{case}") for n, v in row.items()}
        lines.append("\t".join("" if v is None else str(v) for v in digits.values()) + "\n")
    return "".join(lines)


def read(source):
    return pa.Table.from_batches(list(source.read(0, source.num_rows)), source.schema)


@pytest.mark.parametrize("block", [1000, 1 << 22])
@pytest.mark.parametrize("case", "xX")
def test_every_value_and_every_missing_field_is_kept(tmp_path, monkeypatch, block, case):
    monkeypatch.setattr(text_index, "BLOCK_BYTES", block)
    rows = table(300)
    (tmp_path / "day_0").write_text(text(rows.slice(0, 100), case))
    (tmp_path / "day_1.gz").write_bytes(gzip.compress(text(rows.slice(100), case).encode()))
    assert read(TextSource.criteo(tmp_path)).equals(rows)
    assert read(TextSource.criteo([tmp_path / "day_0", tmp_path / "day_1.gz"])).equals(rows)


def test_a_row_of_nothing_but_a_label_is_a_row(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("1" + "\t" * 39 + "\n")
    (row,) = read(TextSource.criteo(path)).to_pylist()
    assert row.pop("label") == 1
    assert set(row.values()) == {None}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f[:-1], "must have 40 columns; got 39 columns"),
        (lambda f: [*f, "00000000"], "must have 40 columns; got 41 columns"),
        (lambda f: ["", *f[1:]], "column 'label' must be of type int8; got something else"),
        (lambda f: [f[0], "1.5", *f[2:]], "column 'I1' must be of type int32 or empty"),
        (lambda f: [f[0], str(2**31), *f[2:]], "column 'I1' must be of type int32 or empty"),
        (lambda f: [*f[:-1], "0123456g"], "column 'C26' must be 8 hex digits or empty"),
        (lambda f: [*f[:-1], "1234567"], "column 'C26' must be 8 hex digits or empty"),
        (lambda f: [*f[:-1], "0x123456"], "column 'C26' must be 8 hex digits or empty"),
        (lambda f: [*f[:-1], "\0" * 8], "got a NUL byte"),
        (lambda f: [*f[:-1], " 1234567"], "column 'C26' must be 8 hex digits or empty"),
    ],
)
def test_rows_of_another_layout_are_named_or_skipped(tmp_path, change, says):
    rows = table(100)
    lines = text(rows).splitlines(keepends=True)
    bad = "\t".join(change(lines[41].rstrip("\n").split("\t"))) + "\n"
    path = tmp_path / "train.txt"
    path.write_text("".join([*lines[:41], bad, *lines[41:]]))
    with pytest.raises(InvalidData, match=rf"train\.txt, line 42: .*{says}"):
        read(TextSource.criteo(path))
    source = TextSource.criteo(path, on_bad_row="skip")
    assert source.num_skipped == 1
    assert read(source).equals(rows)
