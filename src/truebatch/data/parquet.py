"""Parquet files as one source."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from truebatch.data.cursors import Cursors
from truebatch.data.files import DataFile, Spans, Where, changed, digest, find_files
from truebatch.data.layout import require_unique_names
from truebatch.data.pieces import PIECE_ROWS, decoded, decoded_schema
from truebatch.data.source import (
    Identity,
    require_range,
    require_same_schema,
    schema_entries,
    schema_from_bytes,
    schema_to_bytes,
)
from truebatch.errors import InvalidData

SUFFIXES = (".parquet", ".pq")

_MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
_TAIL_BYTES = 8  # length of the footer, and the magic

# Read from a column chunk at a time; what a row group weighs does not matter then.
_BUFFER_BYTES = 1 << 18


class ParquetSource:
    """Parquet files, one after the other.

    `where` is a path, a glob, a directory, or a list of these; `data.files.find_files` states the order.

    Guarantees:
      - Memory does not depend on the size of files or row groups: pages are decoded as they are needed.
      - Ranges that follow each other cost one pass. A range that begins inside a row group costs decoding
        that group from its start.
      - A file that is rewritten while the source is in use is noticed when it is opened again.
    """

    def __init__(self, where: Where) -> None:
        files, groups, schemas = [], [], {}
        for path in find_files(where, SUFFIXES):
            file, rows, schema = _inspected(path)
            files.append(file)
            groups.append(rows)
            schemas[file.path] = schema
        state = _Groups(
            files=tuple(files),
            places=tuple((i, j) for i, rows in enumerate(groups) for j in range(len(rows))),
            spans=Spans(count for rows in groups for count in rows),
            schema_bytes=schema_to_bytes(require_same_schema(schemas)),
        )
        self.__setstate__(state)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return self._groups.spans.num_rows

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        return self._cursors.read(start, stop)

    def identity(self) -> Identity:
        """Schema, and of each file its name, size, time, rows and a digest of its footer."""
        return {
            "format": "parquet",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "files": [file.identity() for file in self._groups.files],
        }

    def __getstate__(self) -> "_Groups":
        return self._groups

    def __setstate__(self, state: "_Groups") -> None:
        self._groups = state
        self._schema = state.schema
        self._cursors = Cursors(state.stream, self.num_rows)


@dataclass(frozen=True, kw_only=True)
class _Groups:
    """The row groups of all files: (file, group) and the rows of each, empty ones included."""

    files: tuple[DataFile, ...]
    places: tuple[tuple[int, int], ...]
    spans: Spans
    schema_bytes: bytes

    @property
    def schema(self) -> pa.Schema:
        """The schema of all files."""
        return schema_from_bytes(self.schema_bytes)

    def stream(self, start: int) -> Iterator[pa.RecordBatch]:
        """All batches from a row on."""
        schema = self.schema
        first, skip = self.spans.find(start)
        for i, places in itertools.groupby(self.places[first:], key=lambda place: place[0]):
            for batch in _batches(self.files[i], [j for _, j in places]):
                part = batch.slice(skip)
                skip = max(0, skip - batch.num_rows)
                if part.num_rows:
                    yield decoded(part, schema)


def _batches(file: DataFile, groups: list[int]) -> Iterator[pa.RecordBatch]:
    path = Path(file.path)
    file.require_same(path.stat().st_size, digest(_footer(path)))
    try:
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as reader:
            for batch in reader.iter_batches(batch_size=PIECE_ROWS, row_groups=groups):
                batch.validate(full=True)  # text may not be UTF-8
                if path.stat().st_size != file.size:
                    raise changed(file.path)  # a file that is cut gives fewer rows, without an error
                yield batch
            if path.stat().st_size != file.size:
                raise changed(file.path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(f"a Parquet file must be readable; got {file.path!r}: {error}.") from None


def _inspected(path: Path) -> tuple[DataFile, list[int], pa.Schema]:
    """The file, the rows of its row groups, and its schema; nothing but the footer is read."""
    status = path.stat()
    mark = digest(_footer(path))
    try:
        with pq.ParquetFile(path) as reader:
            metadata = reader.metadata
            schema = reader.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise InvalidData(f"a Parquet file must be readable; got {str(path)!r}: {error}.") from None
    try:
        require_unique_names(schema)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error.message}", hint=error.hint) from None
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    file = DataFile(
        path=str(path), size=status.st_size, mtime_ns=status.st_mtime_ns, rows=metadata.num_rows, mark=mark
    )
    return file, rows, decoded_schema(schema)


def _footer(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        head = b"" if file.seek(0) else file.read(len(_MAGIC))
        if size == 0:
            raise InvalidData(f"a Parquet file must not be empty; got {str(path)!r} with no bytes.")
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        if tail[4:] == _ENCRYPTED:
            raise InvalidData(f"a Parquet file must not be encrypted; got {str(path)!r}, which is.")
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + _TAIL_BYTES + len(_MAGIC) > size:
            what = "it is no Parquet file" if head != _MAGIC else "its footer is missing"
            raise InvalidData(
                f"a Parquet file must end with its footer; got {str(path)!r}: {what}.",
                hint="it was cut short or is still being written: copy or write it again.",
            )
        file.seek(size - _TAIL_BYTES - length)
        return file.read(length)
