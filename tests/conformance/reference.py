"""Batches the slow way: step by step, by pyarrow alone. What every engine must equal, byte for byte."""

import decimal
from pathlib import Path

import pyarrow as pa

from truebatch.sampling import Schedule


def reference_parts(
    table: pa.Table, schedule: Schedule, *, rows: int, steps_per_record: int, steps_per_part: int
) -> list[bytes]:
    """The part files, from the definition: members(t), then padding, `rows` in all."""
    T = schedule.spec.num_steps
    schema = table.schema.append(pa.field("weight", pa.float32(), nullable=False)).remove_metadata()
    parts = []
    for first in range(0, T, steps_per_part):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, schema) as writer:
            last = min(first + steps_per_part, T)
            for start in range(first, last, steps_per_record):
                batches = [
                    _batch(table, schedule.members(t), rows, schema)
                    for t in range(start, min(start + steps_per_record, last))
                ]
                writer.write_table(pa.concat_tables(batches).combine_chunks())
        parts.append(sink.getvalue().to_pybytes())
    return parts


def _batch(table: pa.Table, members, rows: int, schema: pa.Schema) -> pa.Table:
    columns = []
    for field in table.schema:
        real = table.column(field.name).take(pa.array(members)).to_pylist()
        columns.append(_array(field.type, real + [_empty(field.type)] * (rows - len(members))))
    weight = [1.0] * len(members) + [0.0] * (rows - len(members))
    return pa.table([*columns, pa.array(weight, pa.float32())], schema=schema)


def _array(kind: pa.DataType, values: list) -> pa.Array:
    """The values as Arrow; what lies under the null of a fixed-size list is empty, and not null itself."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.array(values, kind)
    lists = [_empty(kind) if value is None else value for value in values]
    items = pa.array([item for value in lists for item in value], kind.value_type)
    gone = pa.array([value is None for value in values]) if None in values else None
    return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=gone)


def _empty(kind: pa.DataType):
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if pa.types.is_binary(kind):
        return b""
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if pa.types.is_fixed_size_list(kind):
        return [_empty(kind.value_type)] * kind.list_size
    if pa.types.is_list(kind):
        return []
    if pa.types.is_boolean(kind):
        return False
    if pa.types.is_null(kind):
        return None
    if pa.types.is_decimal(kind):
        return decimal.Decimal(0)
    if pa.types.is_temporal(kind):
        return pa.array([0], pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)[0].as_py()
    return kind.to_pandas_dtype()(0)


def part_paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("part-*.arrow"))
