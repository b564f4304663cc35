"""Arrow IPC files and streams as one source, from the memory map."""

import itertools
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.types as pat

from truebatch.data.cursors import Cursors
from truebatch.data.files import DataFile, Spans, Where, changed, digest, find_files
from truebatch.data.layout import require_unique_names
from truebatch.data.pieces import decoded_schema, pieces
from truebatch.data.source import (
    Identity,
    require_range,
    require_same_schema,
    schema_entries,
    schema_from_bytes,
    schema_to_bytes,
)
from truebatch.errors import InvalidData

SUFFIXES = (".arrow", ".feather", ".ipc", ".arrows")

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_FORGET_BYTES = 2**26
_TAIL_BYTES = 10  # length of the footer, and the magic


class ArrowSource:
    """Arrow IPC files (Feather too) and streams, one after the other, memory-mapped.

    `where` is a path, a glob, a directory, or a list of these; `data.files.find_files` states the order.

    Guarantees:
      - Rows that were written uncompressed are not copied.
      - A file is read from any record batch on; a stream from its start, where batches that are passed over
        cost next to nothing unless they are compressed. Ranges that follow each other cost one pass.
      - A file that is rewritten while the source is in use is noticed when it is opened again.
    A compressed record batch is decompressed as a whole: how large it is was its writer's choice.
    """

    def __init__(self, where: Where) -> None:
        files, counts, schemas = [], [], {}
        for path in find_files(where, SUFFIXES):
            file, rows, schemas[str(path)] = _inspected(path)
            files.append(file)
            counts.append(rows)
        state = _Batches(
            files=tuple(files),
            places=tuple((i, j) for i, rows in enumerate(counts) for j in range(len(rows))),
            spans=Spans(count for rows in counts for count in rows),
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
        return self._batches.spans.num_rows

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        return self._read(start, stop)

    def _read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for batch in self._cursors.read(start, stop):
            self._batches.require_whole(start)
            start += batch.num_rows
            yield batch

    def identity(self) -> Identity:
        """Schema, and of each file its name, size, time, rows and a digest of its footer."""
        return {
            "format": "arrow",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "files": [file.identity() for file in self._batches.files],
        }

    def __getstate__(self) -> "_Batches":
        return self._batches

    def __setstate__(self, state: "_Batches") -> None:
        self._batches = state
        self._schema = state.schema
        self._cursors = Cursors(state.stream, self.num_rows)


@dataclass(frozen=True, kw_only=True)
class _Batches:
    """The record batches of all files: (file, batch) and the rows of each, empty ones included."""

    files: tuple[DataFile, ...]
    places: tuple[tuple[int, int], ...]
    spans: Spans
    schema_bytes: bytes

    @property
    def schema(self) -> pa.Schema:
        """The schema of all files."""
        return schema_from_bytes(self.schema_bytes)

    def require_whole(self, row: int) -> None:
        """Refuse rows of a file that was cut: to touch what was in its map would end the process."""
        file = self.files[self.places[self.spans.find(row)[0]][0]]
        if Path(file.path).stat().st_size < file.size:
            raise changed(file.path)

    def stream(self, start: int) -> Iterator[pa.RecordBatch]:
        """All batches from a row on."""
        schema = self.schema
        first, skip = self.spans.find(start)
        for i, places in itertools.groupby(self.places[first:], key=lambda place: place[0]):
            path = Path(self.files[i].path)
            self.files[i].require_same(path.stat().st_size, _mark(path))
            try:
                mapped = _mapped(path)
                batches = _batches(mapped, next(places)[1])
                yield from _forgotten(mapped, _pieces(batches, skip, schema), self.files[i])
                skip = 0
            except (pa.ArrowException, OSError) as error:
                raise _damaged(path, error) from None


def _batches(mapped: mmap.mmap, first: int = 0, only: list[int] | None = None) -> Iterator[pa.RecordBatch]:
    """The record batches of a file or stream from one on, or some of their columns."""
    options = pa.ipc.IpcReadOptions(included_fields=only)
    data = pa.BufferReader(pa.py_buffer(mapped))
    if mapped[: len(_MAGIC)] == _MAGIC:
        reader = pa.ipc.open_file(data, options=options)
        batches: Iterator[pa.RecordBatch] = (
            reader.get_batch(i) for i in range(first, reader.num_record_batches)
        )
    else:
        batches = itertools.islice(pa.ipc.open_stream(data, options=options), first, None)
    for batch in batches:
        batch.validate(full=True)  # an offset that points elsewhere would be followed, and read what is there
        yield batch


def _pieces(batches: Iterator[pa.RecordBatch], skip: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from pieces(batch.slice(skip), schema)
        skip = max(0, skip - batch.num_rows)


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    return mapped


def _forgotten(
    mapped: mmap.mmap, batches: Iterator[pa.RecordBatch], file: DataFile
) -> Iterator[pa.RecordBatch]:
    """The batches; what was read stays in the page cache, and does not pile up as this process's memory.

    What is mapped is there only as long as the file is: one that was cut is told before it is touched.
    """
    given = 0
    while True:
        if mapped.size() < len(mapped):
            raise changed(file.path)
        batch = next(batches, None)
        if batch is None:
            return
        yield batch
        given += batch.nbytes
        if given > _FORGET_BYTES:
            mapped.madvise(mmap.MADV_DONTNEED)
            given = 0


def _inspected(path: Path) -> tuple[DataFile, list[int], pa.Schema]:
    """The file, the rows of its record batches, and its schema."""
    status, mark = path.stat(), _mark(path)
    try:
        mapped = _mapped(path)
        data = pa.BufferReader(pa.py_buffer(mapped))
        schema = (pa.ipc.open_file if mapped[: len(_MAGIC)] == _MAGIC else pa.ipc.open_stream)(data).schema
        rows = [batch.num_rows for batch in _batches(mapped, only=_narrowest(schema))]
    except (pa.ArrowException, OSError) as error:
        raise _damaged(path, error) from None
    try:
        require_unique_names(schema)
    except InvalidData as error:
        raise InvalidData(f"{path}: {error.message}", hint=error.hint) from None
    file = DataFile(
        path=str(path), size=status.st_size, mtime_ns=status.st_mtime_ns, rows=sum(rows), mark=mark
    )
    return file, rows, decoded_schema(schema)


def _narrowest(schema: pa.Schema) -> list[int]:
    """The column that costs least to decompress, for counting rows; none where there is none."""
    widths = [field.type.bit_width if pat.is_primitive(field.type) else 1 << 30 for field in schema]
    return [widths.index(min(widths))] if widths else []


def _mark(path: Path) -> str:
    """Digest of a file's footer, or of a stream's first bytes, which hold its schema."""
    with path.open("rb") as file:
        head = file.read(1 << 12)
        size = file.seek(0, 2)
        if size == 0:
            raise InvalidData(f"an Arrow file must not be empty; got {str(path)!r} with no bytes.")
        if head.startswith(_FEATHER_1):
            raise InvalidData(
                f"Feather files must be of version 2; got {str(path)!r} of version 1.",
                hint="read it with pyarrow.feather and write it again.",
            )
        file.seek(max(0, size - _TAIL_BYTES))
        tail = file.read()
        if not head.startswith(_MAGIC):
            if not tail.endswith(_END_OF_STREAM):
                raise _cut(path, "a stream must end with its end mark")
            return digest(head)
        length = int.from_bytes(tail[:4], "little")
        if tail[4:] != _MAGIC or length + _TAIL_BYTES + len(_MAGIC) > size:
            raise _cut(path, "an Arrow file must end with its footer")
        file.seek(size - _TAIL_BYTES - length)
        return digest(file.read(length))


def _cut(path: Path, rule: str) -> InvalidData:
    return InvalidData(
        f"{rule}; got {str(path)!r} without it.",
        hint="it is no Arrow file, was cut short, or is still being written: copy or write it again.",
    )


def _damaged(path: Path, error: Exception) -> InvalidData:
    return InvalidData(f"an Arrow file must be readable; got {str(path)!r}: {error}.")
