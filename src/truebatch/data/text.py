"""Delimited text as one source: CSV, TSV, and Criteo's click logs as they ship."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from truebatch.data.cursors import Cursors
from truebatch.data.files import Where, find_files
from truebatch.data.source import Identity, require_range, schema_entries
from truebatch.data.text_blocks import TextBlocks
from truebatch.data.text_bytes import GzipPlaces
from truebatch.data.text_format import Dialect, RowFormat, Types, criteo_format
from truebatch.data.text_head import Head, format_of
from truebatch.data.text_index import OnBadRow, index_text
from truebatch.errors import InvalidArgument

SUFFIXES = tuple(f".{kind}{end}" for kind in ("csv", "tsv", "txt", "tab", "dat") for end in ("", ".gz"))


class TextSource:
    """Text files, plain or gzip, one after the other: one row a line, fields apart by a delimiter.

    `where` is a path, a glob, a directory, or a list of these; `data.files.find_files` states the order.
    Without `columns` the first line of each file names them. Types that are not in `types` are inferred
    from the first MiB of the first file, and then hold for all. An empty field is null.

    A row's id is its position among the rows that are kept. By default all are kept, and one that is not of
    its type or has another number of columns is an error that names file and line, raised when it is read.
    With `on_bad_row="skip"` such rows are left out; how many, and a digest of their line numbers, are part
    of `identity()`, so that equal identities mean equal ids.

    Guarantees:
      - One pass over the bytes finds where rows are; it parses them only when bad ones are to be skipped.
        What was read is checked against it, so a file that changes in use is noticed.
      - Blocks of 4 MiB are parsed side by side; memory is a few blocks, whatever the size of the files.
      - A range of a plain file costs its own blocks. In a gzip file it costs decompression from the last
        known place, at most 64 MiB of text before it; a pickled source learns its places anew.
      - Messages name lines and columns, never values.
    """

    def __init__(
        self,
        where: Where,
        *,
        columns: Sequence[str] | None = None,
        types: Types | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        null_values: Sequence[str] = ("",),
        on_bad_row: OnBadRow = "error",
    ) -> None:
        dialect = Dialect(delimiter=delimiter, quote=quote, null_values=tuple(null_values))
        paths = find_files(where, SUFFIXES)
        heads = [Head.of(path, dialect, columns) for path in paths]
        self._open(heads, format_of(heads, dialect, types, on_bad_row), on_bad_row)

    @classmethod
    def criteo(cls, where: Where, *, on_bad_row: OnBadRow = "error") -> "TextSource":
        """Criteo's layout, as in `train.txt` and the day files: no header, tabs, missing fields empty.

        `label` is int8, I1..I13 are int32, and C1..C26, which are 8 hex digits, the uint32 they spell.
        """
        source = cls.__new__(cls)
        form = criteo_format()
        paths = find_files(where, (*SUFFIXES, ""))
        heads = [Head.of(path, form.dialect, form.names) for path in paths]
        source._open(heads, form, on_bad_row)
        return source

    def _open(self, heads: Sequence[Head], form: RowFormat, on_bad_row: OnBadRow) -> None:
        if on_bad_row not in ("error", "skip"):
            raise InvalidArgument(f"on_bad_row must be 'error' or 'skip'; got {on_bad_row!r}.")
        places = tuple(GzipPlaces() for _ in heads)
        indexes = tuple(
            index_text(
                head.path,
                begin=head.begin,
                lines=head.lines,
                form=form,
                places=known,
                on_bad_row=on_bad_row,
            )
            for head, known in zip(heads, places, strict=True)
        )
        self.__setstate__(TextBlocks(form=form, indexes=indexes, places=places))

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._blocks.form.schema

    @property
    def num_rows(self) -> int:
        """How many rows there are, without those that are skipped."""
        return self._num_rows

    @property
    def num_skipped(self) -> int:
        """How many bad rows were left out."""
        return sum(index.skipped_lines[0] for index in self._blocks.indexes)

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        return self._cursors.read(start, stop)

    def identity(self) -> Identity:
        """Schema, dialect, and of each file its name, size, rows, skipped rows and a digest of its text."""
        dialect = self._blocks.form.dialect
        return {
            "format": "text",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "dialect": [dialect.delimiter, dialect.quote, list(dialect.null_values)],
            "files": [
                {
                    "name": Path(index.path).name,
                    "size": index.size,
                    "rows": int(index.rows.sum()),
                    "skipped": index.skipped_lines[0],
                    "skipped_lines": index.skipped_lines[1],
                    "text": index.digest,
                }
                for index in self._blocks.indexes
            ],
        }

    def __getstate__(self) -> TextBlocks:
        return self._blocks

    def __setstate__(self, state: TextBlocks) -> None:
        self._blocks = state
        self._num_rows = state.spans().num_rows
        self._cursors = Cursors(state.stream, self.num_rows)
