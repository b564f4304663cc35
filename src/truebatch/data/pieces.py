"""Record batches in the shape that every source gives them: bounded, never empty, not dictionary-encoded."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.types as pat

# Rows in a piece at most: large enough that work per piece does not show, small enough for any budget.
PIECE_ROWS = 1 << 16


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionary columns replaced by what they stand for, without metadata."""
    return pa.schema(
        [
            pa.field(f.name, f.type.value_type if pat.is_dictionary(f.type) else f.type, nullable=f.nullable)
            for f in schema
        ]
    )


def decoded(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with dictionary columns replaced by what they stand for; `schema` is `decoded_schema`'s."""
    columns = [c.dictionary_decode() if pat.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batch in slices of at most PIECE_ROWS rows, decoded; none for an empty batch."""
    for start in range(0, batch.num_rows, PIECE_ROWS):
        yield decoded(batch.slice(start, PIECE_ROWS), schema)


def windowed(batches: Iterator[pa.RecordBatch], skip: int, take: int) -> Iterator[pa.RecordBatch]:
    """Rows skip..skip+take-1 of a stream of batches; the stream is left as soon as they are out."""
    for batch in batches:
        if take <= 0:
            return
        part = batch.slice(skip, take)
        skip = max(0, skip - batch.num_rows)
        take -= part.num_rows
        if part.num_rows:
            yield part
