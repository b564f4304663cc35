"""Written batches, read again: mapped, not copied."""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from truebatch.batching.batches import Batch, require_steps
from truebatch.batching.digest import NAME as DIGEST_NAME
from truebatch.batching.engine import digest_of_file
from truebatch.batching.manifest import Manifest, load, spec_of
from truebatch.data.source import schema_entries
from truebatch.errors import DamagedBatches
from truebatch.specs import Sampler

_MAPPED_PARTS = 16


class FileBatches:
    """The batches of a directory.

    Guarantees:
      - Each batch is a view of the mapped file: nothing is copied until somebody does.
      - A directory without a manifest, or with a file that is missing or of another size, is refused; a file
        that is cut or whose columns are others later on is noticed when its batches are read.
    `verify()` also reads every byte and compares digests.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self.directory, self.manifest = directory, manifest
        self._spec = spec_of(manifest)
        layout = manifest["layout"]
        self._rows: int = layout["rows_per_batch"]
        self._per_record: int = layout["batches_per_record"]
        self._per_part: int = layout["batches_per_file"]
        for entry in manifest["files"]:
            path = directory / entry["name"]
            if not path.is_file() or path.stat().st_size != entry["bytes"]:
                raise _damaged(path)
        self._readers: OrderedDict[int, pa.RecordBatchFileReader] = OrderedDict()
        self._lock = threading.Lock()
        self._schema: pa.Schema = self._reader(0).schema

    @property
    def spec(self) -> Sampler:
        """The sampler that drew the batches."""
        return self._spec

    @property
    def schema(self) -> pa.Schema:
        """The columns of a batch: the source's, then the weight."""
        return self._schema

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The batches of consecutive steps."""
        steps = require_steps(start_step, stop_step, self._spec)
        return self._read(steps)

    def _read(self, steps: range) -> Iterator[Batch]:
        part, index, reader, record = -1, -1, None, None
        for step in steps:
            if step // self._per_part != part or reader is None:
                part, index = step // self._per_part, -1
                reader = self._reader(part)
            within = step - part * self._per_part
            if within // self._per_record != index or record is None:
                index = within // self._per_record
                record = self._record(reader, part, index)
            place = (within % self._per_record) * self._rows
            yield Batch(step=step, record=record.slice(place, self._rows))

    def _reader(self, part: int) -> pa.RecordBatchFileReader:
        """A mapped part; the last few stay mapped, since the first touch of a page costs half of a copy."""
        with self._lock:
            reader = self._readers.pop(part, None)
            if reader is None:
                path = self.directory / self.manifest["files"][part]["name"]
                try:
                    with pa.memory_map(str(path)) as file:
                        reader = pa.ipc.open_file(pa.BufferReader(file.read_buffer()))
                    columns = schema_entries(reader.schema)
                except (pa.ArrowException, ValueError, OSError):  # a name may be no text any more
                    raise _damaged(path) from None
                if columns != self.manifest["columns"]:
                    raise _damaged(path)
            self._readers[part] = reader
            while len(self._readers) > _MAPPED_PARTS:
                self._readers.popitem(last=False)
            return reader

    def _record(self, reader: pa.RecordBatchFileReader, part: int, index: int) -> pa.RecordBatch:
        first = part * self._per_part + index * self._per_record
        last = min(first + self._per_record, (part + 1) * self._per_part, self._spec.num_steps)
        entry = self.manifest["files"][part]
        path = self.directory / entry["name"]
        try:
            # What is mapped is only there as long as the file is.
            record = reader.get_batch(index) if path.stat().st_size == entry["bytes"] else None
            if record is not None:
                record.validate(full=True)  # an offset that points outside of the map would be followed
        except (pa.ArrowException, ValueError, OSError):
            record = None
        if record is None or record.num_rows != (last - first) * self._rows:
            raise _damaged(path)
        return record

    def verify(self) -> None:
        """Read every file and compare its digest with the manifest's."""
        for entry in self.manifest["files"]:
            path = self.directory / entry["name"]
            if digest_of_file(path) != entry[DIGEST_NAME]:
                raise _damaged(path)


def open_batches(directory: str | os.PathLike[str]) -> FileBatches:
    """The batches that `make_batches` or `truebatch batches` wrote to a directory."""
    where = Path(directory)
    return FileBatches(where, load(where))


def _damaged(path: Path) -> DamagedBatches:
    return DamagedBatches(
        f"a file of batches must be as it was written; {path} is not.",
        hint="make the batches anew in another directory, with the same key.",
    )
