"""A digest of rows that depends on their values alone: not on chunks, offsets, or what lies under a null."""

import hashlib
import itertools
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from truebatch.data.layout import Layout
from truebatch.data.rows import pack
from truebatch.data.source import schema_entries


def digest_of_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> str:
    """BLAKE2b over schema and rows, 32 hex digits.

    The fixed-width columns are hashed as packed rows, and each variable column beside them.

    Guarantees:
      - Cutting the same rows into other batches gives the same digest.
    """
    layout = Layout.of(schema)
    whole = _hash(repr(schema_entries(schema)).encode())
    fixed, variable = _hash(), [(_hash(), _hash()) for _ in layout.variable]
    for batch in batches:
        if layout.width:
            fixed.update(pack(batch, layout).reshape(-1).data)
        for field, (lengths, values) in zip(layout.variable, variable, strict=True):
            _update(lengths, values, batch.column(field.name))
    for state in (fixed, *itertools.chain.from_iterable(variable)):
        whole.update(state.digest())
    return whole.hexdigest()


def _hash(data: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(data, digest_size=16)


def _update(lengths: "hashlib.blake2b", values: "hashlib.blake2b", array: pa.Array) -> None:
    """Lengths (-1 for a null) and values go to a state each, so it does not show where a batch ended."""
    kind = array.type
    if pat.is_string(kind) or pat.is_binary(kind) or pat.is_large_string(kind) or pat.is_large_binary(kind):
        wide = pa.large_binary()
        lengths.update(np.asarray(pc.fill_null(pc.binary_length(array), -1)).astype("<i8").tobytes())
        values.update(_joined(pc.fill_null(array.cast(wide), pa.scalar(b"", wide))))
    else:
        # Lists, structs and the like are rare here: their Python form is one that depends on nothing else.
        for value in array.to_pylist():
            values.update(f"{value!r}\n".encode())


def _joined(array: pa.Array) -> memoryview:
    """The bytes of all values of a large binary array without nulls, one after the other."""
    _, offsets, data = array.buffers()
    if len(array) == 0 or data is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, np.int64, count=len(array) + 1, offset=array.offset * 8)
    return memoryview(data)[ends[0] : ends[-1]]
