"""Part files: Arrow IPC files as pyarrow writes them, and where their bytes stand before they are known."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from truebatch.batching.shape import Shape

_ALIGNMENT = 8  # of buffers in the body of a record batch, as pyarrow writes them


def write_part(sink: Any, schema: pa.Schema, records: Iterable[pa.RecordBatch]) -> None:
    """Write record batches as an Arrow IPC file, uncompressed, to a path or file object."""
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5, compression=None)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for record in records:
            writer.write_batch(record)


def has_fixed_places(schema: pa.Schema) -> bool:
    """Whether every value has whole bytes of its own at a place known beforehand, as long as none is null."""
    return all(_has_fixed_places(field.type) for field in schema)


def _has_fixed_places(kind: pa.DataType) -> bool:
    if pat.is_fixed_size_list(kind):
        return not pat.is_fixed_size_list(kind.value_type) and _has_fixed_places(kind.value_type)
    if pat.is_boolean(kind) or pat.is_interval(kind):
        return False
    return bool(
        pat.is_primitive(kind) or pat.is_decimal(kind) or (pat.is_fixed_size_binary(kind) and kind.bit_width)
    )


@dataclass(frozen=True)
class Segment:
    """The bytes of one column of one step."""

    offset: int
    width: int  # bytes a row


@dataclass(frozen=True)
class Skeleton:
    """A part file of zeros: its size, the bytes that are not zero, and where the values of each step belong.

    Only for schemas with fixed places. `pieces` with values written where they belong are, byte for byte,
    what `write_part` writes for the same record batches, as long as no value is null.
    """

    shape: Shape
    num_steps: int
    size: int
    pieces: tuple[tuple[int, bytes], ...]
    bodies: tuple[int, ...]  # where the body of each record batch begins

    @classmethod
    def of(cls, shape: Shape, num_steps: int) -> "Skeleton":
        """The skeleton of a part file of `num_steps` steps."""
        sink = _Recorder()
        ends = []

        def records() -> Iterable[pa.RecordBatch]:
            for steps in shape.records(range(num_steps)):
                yield _zeros(shape, len(steps) * shape.rows)
                ends.append(sink.position)

        write_part(pa.PythonFile(sink, mode="w"), shape.schema, records())
        bodies = tuple(
            end - _body_bytes(shape, len(steps) * shape.rows)
            for end, steps in zip(ends, shape.records(range(num_steps)), strict=True)
        )
        return cls(shape, num_steps, sink.position, tuple(sink.pieces), bodies)

    @cached_property
    def _widths(self) -> tuple[int, ...]:
        return tuple(_value_bytes(field.type) for field in self.shape.schema)

    def segments(self, step: int) -> list[Segment]:
        """Where each column of one step is, in the order of the schema; steps count from the file's first."""
        record, place = divmod(step, self.shape.steps_per_record)
        held = min(self.shape.steps_per_record, self.num_steps - record * self.shape.steps_per_record)
        offset, found = self.bodies[record], []
        for width in self._widths:
            found.append(Segment(offset + place * self.shape.rows * width, width))
            offset += _padded(held * self.shape.rows * width)
        return found

    @cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where each column of each step begins: [steps, columns], the weight last."""
        return np.array([[s.offset for s in self.segments(step)] for step in range(self.num_steps)])

    def outside(self) -> Iterable[bytes]:
        """What is in the file beside the values, in order: heads, padding between buffers, footer."""
        k = self.shape.steps_per_record
        position = 0
        for record in range(len(self.bodies)):
            held = min(k, self.num_steps - record * k)
            for segment in self.segments(record * k):
                yield self._between(position, segment.offset)
                position = segment.offset + held * self.shape.rows * segment.width
        yield self._between(position, self.size)

    def _between(self, start: int, stop: int) -> bytes:
        result = bytearray(stop - start)
        for offset, data in self.pieces:
            low, high = max(offset, start), min(offset + len(data), stop)
            if low < high:
                result[low - start : high - start] = data[low - offset : high - offset]
        return bytes(result)


class _Recorder:
    """A sink that keeps where it was written to, and only bytes that are not all zero."""

    def __init__(self) -> None:
        self.position = 0
        self.pieces: list[tuple[int, bytes]] = []
        self.closed = False

    def write(self, data: bytes) -> int:
        if np.frombuffer(data, np.uint8).any():
            self.pieces.append((self.position, bytes(data)))
        self.position += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def writable(self) -> bool:
        return True

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def _zeros(shape: Shape, rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [_zero_array(field.type, rows) for field in shape.schema], schema=shape.schema
    )


def _zero_array(kind: pa.DataType, rows: int) -> pa.Array:
    if pat.is_fixed_size_list(kind):
        items = _zero_array(kind.value_type, rows * kind.list_size)
        return pa.Array.from_buffers(kind, rows, [None], null_count=0, children=[items])
    data = np.zeros(rows * (kind.bit_width // 8), np.uint8)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], null_count=0)


def _value_bytes(kind: pa.DataType) -> int:
    if pat.is_fixed_size_list(kind):
        return int(kind.list_size) * _value_bytes(kind.value_type)
    return int(kind.bit_width) // 8


def _body_bytes(shape: Shape, rows: int) -> int:
    return sum(_padded(rows * _value_bytes(field.type)) for field in shape.schema)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
