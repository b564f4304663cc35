"""Batches from rows: the two pure functions that every engine calls.

`split` sends each row of a piece of the source to the parts that it joins, as blocks; `assemble` makes one
part from its blocks. Between them an engine may move blocks in any order and deliver them more than once.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from truebatch.batching.arrow_files import write_part
from truebatch.batching.shape import Shape
from truebatch.data import pack, to_batch
from truebatch.errors import IncompletePart, InvalidArgument
from truebatch.sampling import Schedule
from truebatch.specs import Sampler

POSITION, PACKED = "position", "packed"

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which batches to make: public, and what an engine ships to its workers beside the key.

    `schema` is the source's. `record_bytes` and `part_bytes` are what a record batch and a part file hold at
    most, unless one batch is larger: they are part of the layout, so that the same job gives the same files.
    """

    spec: Sampler
    schema: pa.Schema
    record_bytes: int = 2**20
    part_bytes: int = 2**27

    @cached_property
    def shape(self) -> Shape:
        """The layout of the batches."""
        return Shape.of(self.spec, self.schema, record_bytes=self.record_bytes, part_bytes=self.part_bytes)

    @cached_property
    def block_schema(self) -> pa.Schema:
        """A block: the row's position in its part, its fixed-width columns as bytes, then the others."""
        layout = self.shape.layout
        fields = [pa.field(POSITION, pa.int64(), nullable=False)]
        if layout.width:
            fields.append(pa.field(PACKED, pa.binary(layout.width), nullable=False))
        return pa.schema(
            [*fields, *(pa.field(str(i), field.type) for i, field in enumerate(layout.variable))]
        )

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        # A schema that is pickled forgets that items of fixed-size lists take no nulls; its own bytes do not.
        schema = self.schema.serialize().to_pybytes()
        return _job_of, (self.spec, schema, self.record_bytes, self.part_bytes)


def _job_of(spec: Sampler, schema: bytes, record_bytes: int, part_bytes: int) -> Job:
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    return Job(spec=spec, schema=found, record_bytes=record_bytes, part_bytes=part_bytes)


def split(
    job: Job, schedule: Schedule, piece: pa.RecordBatch, start: int, *, steps: range | Int64s | None = None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Blocks of the rows of `piece`, which begins at row `start`: (part, block), parts in increasing order.

    A row that joins no batch is in no block. Pieces that begin and end on multiples of `schedule.tile_rows`
    waste nothing.

    Guarantees:
      - A function of its arguments: retried, it gives the same blocks.
    """
    _require_same(job, schedule)
    shape, stop = job.shape, start + piece.num_rows
    packed = pack(piece, shape.layout) if shape.layout.width else None
    for block in schedule.placement_blocks(start, stop, steps=steps):
        if len(block.row) == 0:
            continue
        parts = block.step // shape.steps_per_part
        position = (block.step - parts * shape.steps_per_part) * shape.rows + block.slot
        edges = np.flatnonzero(np.diff(parts, prepend=-1, append=-1))
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            rows = block.row[low:high] - start
            yield int(parts[low]), _block(job, position[low:high], rows, packed, piece)


def _block(
    job: Job,
    position: Int64s,
    rows: Int64s,
    packed: npt.NDArray[np.uint8] | None,
    piece: pa.RecordBatch,
) -> pa.RecordBatch:
    arrays = [pa.array(position)]
    if packed is not None:
        taken = pa.py_buffer(packed[rows])
        arrays.append(pa.Array.from_buffers(pa.binary(packed.shape[1]), len(rows), [None, taken]))
    wanted = pa.array(rows)
    arrays += [piece.column(field.name).take(wanted) for field in job.shape.layout.variable]
    return pa.RecordBatch.from_arrays(arrays, schema=job.block_schema)


def assemble(
    job: Job, schedule: Schedule, part: int, blocks: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The record batches of one part from its blocks, in order.

    Guarantees:
      - Neither the order of blocks, nor how rows were cut into them, nor one that comes twice matters.
      - A row that is missing, or has no place here, raises: no batch is ever quietly short.
    """
    _require_same(job, schedule)
    shape, steps = job.shape, job.shape.part_steps(part)
    held = [_in_order(block) for block in blocks]
    limit = len(steps) * shape.rows
    if any(len(p) and not 0 <= p[0] <= p[-1] < limit for p, _ in held):
        raise _incomplete(part)
    sizes = schedule.sizes(steps.start, steps.stop)
    for record in shape.records(steps):
        low, high = record.start - steps.start, record.stop - steps.start
        real = np.arange(shape.rows) < sizes[low:high, None]
        positions, slices = _between(held, low * shape.rows, high * shape.rows)
        filled = np.zeros(real.size, np.bool_)
        for position in positions:
            filled[position] = True
        if not np.array_equal(filled, real.reshape(-1)):
            raise _incomplete(part)
        yield record_of(job, positions, slices, filled)


def _in_order(block: pa.RecordBatch) -> tuple[Int64s, pa.RecordBatch]:
    """The block by increasing position, which is how `split` makes it; engines may have joined several."""
    position = block.column(POSITION).to_numpy()
    if (np.diff(position) > 0).all():
        return position, block
    order = np.argsort(position, kind="stable")
    return position[order], block.take(pa.array(order))


def _between(
    held: list[tuple[Int64s, pa.RecordBatch]], first: int, last: int
) -> tuple[list[Int64s], list[pa.RecordBatch]]:
    """What the blocks hold for positions first..last-1, which then count from first."""
    positions, slices = [], []
    for position, block in held:
        low, high = np.searchsorted(position, (first, last)).tolist()
        if low < high:
            positions.append(position[low:high] - first)
            slices.append(block.slice(low, high - low))
    return positions, slices


def part_bytes(job: Job, schedule: Schedule, part: int, blocks: Iterable[pa.RecordBatch]) -> pa.Buffer:
    """One part file, whole, in memory."""
    sink = pa.BufferOutputStream()
    write_part(sink, job.shape.schema, assemble(job, schedule, part, blocks))
    return sink.getvalue()


def block_to_bytes(block: pa.RecordBatch) -> bytes:
    """A block as bytes that travel: an Arrow IPC message without its schema, which `Job.block_schema` is."""
    data: bytes = block.serialize().to_pybytes()
    return data


def block_from_bytes(job: Job, data: bytes | pa.Buffer) -> pa.RecordBatch:
    """The block again, without copying."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), job.block_schema)


def record_of(
    job: Job,
    positions: list[Int64s],
    slices: list[pa.RecordBatch],
    real: npt.NDArray[np.bool_],
) -> pa.RecordBatch:
    """len(real) rows: row j of slices[i] at positions[i][j], zeros elsewhere, `real` as the weight.

    Guarantees:
      - What lies under a null is zero, so that equal rows give equal bytes.
    """
    layout = job.shape.layout
    rows = np.zeros((len(real), layout.width), np.uint8)
    if layout.width:
        for position, piece in zip(positions, slices, strict=True):
            rows[position] = _packed_rows(piece, layout.width)
    variable = [
        placed(field.type, [piece.column(str(i)) for piece in slices], positions, len(real))
        for i, field in enumerate(layout.variable)
    ]
    return record_of_rows(job, rows, variable, real)


def record_of_rows(
    job: Job, rows: npt.NDArray[np.uint8], variable: list[pa.Array], real: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """A record batch from packed rows and the columns of no fixed width, padding included in both."""
    layout, shape = job.shape.layout, job.shape
    columns = dict(zip((field.name for field in layout.variable), variable, strict=True))
    if layout.width:
        fixed = to_batch(rows, layout)
        columns |= dict(zip(fixed.schema.names, fixed.columns, strict=True))
    arrays = [columns[name] for name in shape.source_schema.names]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(real.astype(np.float32))], schema=shape.schema)


def _packed_rows(block: pa.RecordBatch, width: int) -> npt.NDArray[np.uint8]:
    column = block.column(PACKED)
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)


def placed(kind: pa.DataType, parts: list[pa.Array], positions: list[Int64s], rows: int) -> pa.Array:
    """Values where they belong; an empty value elsewhere."""
    values = pa.concat_arrays([*parts, _empty_value(kind)])
    chosen = np.full(rows, len(values) - 1, np.int64)
    if positions:
        chosen[np.concatenate(positions)] = np.arange(len(values) - 1)
    taken = values.take(pa.array(chosen))
    if pat.is_string(kind) or pat.is_binary(kind) or pat.is_large_string(kind) or pat.is_large_binary(kind):
        return taken
    # What nested types keep under a null, take leaves as it was. They are rare: rebuild them from values.
    return pa.array(taken.to_pylist(), kind)


def _empty_value(kind: pa.DataType) -> pa.Array:
    """An array of one value that says nothing: empty text or list, zero, False; null only for pa.null()."""
    return pa.array([_empty(kind)], kind)


def _empty(kind: pa.DataType) -> object:
    if pat.is_struct(kind):
        return {field.name: _empty(field.type) for field in kind}
    if pat.is_fixed_size_list(kind):
        return [_empty(kind.value_type)] * kind.list_size
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_list_view(kind) or pat.is_large_list_view(kind):
        return []
    if pat.is_map(kind):
        return []
    if pat.is_string(kind) or pat.is_large_string(kind) or kind == pa.string_view():
        return ""
    if pat.is_binary(kind) or pat.is_large_binary(kind) or kind == pa.binary_view():
        return b""
    if pat.is_null(kind):
        return None
    zeros = pa.py_buffer(bytes(max(1, kind.bit_width // 8)))
    return pa.Array.from_buffers(kind, 1, [None, zeros])[0].as_py()


def _require_same(job: Job, schedule: Schedule) -> None:
    if schedule.spec != job.spec:
        raise InvalidArgument(
            f"schedule and job must have the same spec; got {schedule.spec!r} and {job.spec!r}.",
            hint="call schedule(job.spec, key).",
        )


def _incomplete(part: int) -> IncompletePart:
    # No numbers: how many rows a batch holds is a secret.
    return IncompletePart(
        f"a part must be given every row of its batches, at its place; part {part} was not.",
        hint="run it again; should that not help, the source changes while it is read.",
    )
