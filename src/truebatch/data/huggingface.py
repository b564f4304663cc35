"""Hugging Face datasets as sources."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import pyarrow as pa

from truebatch.data.digest import digest_of_rows
from truebatch.data.layout import require_unique_names
from truebatch.data.pieces import PIECE_ROWS, decoded_schema, pieces
from truebatch.data.source import Identity, require_range, schema_entries
from truebatch.errors import InvalidData, MissingExtra


class HuggingFaceSource:
    """A `datasets.Dataset`: one split, in its order, after any select, shuffle or filter.

    Guarantees:
      - Rows come as Arrow holds them, from the dataset's own memory map; format and transforms set on the
        dataset do not apply.
      - `identity()` is a digest of the values; it is computed once, in one pass.
    """

    def __init__(self, dataset: Any) -> None:
        datasets = _datasets()
        if isinstance(dataset, datasets.DatasetDict | datasets.IterableDatasetDict):
            raise InvalidData(
                f"a source is one split of a dataset; got all of {', '.join(map(repr, dataset))}.",
                hint=f"choose one, such as dataset[{next(iter(dataset), 'train')!r}].",
            )
        if not isinstance(dataset, datasets.Dataset):
            raise InvalidData(
                f"a dataset must be a datasets.Dataset, whose rows have positions; got a "
                f"{type(dataset).__name__}.",
                hint="load it without streaming=True.",
            )
        self._dataset = dataset.with_format("arrow")
        schema = self._dataset[0:0].schema
        require_unique_names(schema)
        self._schema = decoded_schema(schema)

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""
        return self._schema

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(self._dataset)

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Rows start..stop-1, in order, in bounded pieces."""
        require_range(start, stop, self.num_rows)
        for at in range(start, stop, PIECE_ROWS):
            for batch in self._dataset[at : min(at + PIECE_ROWS, stop)].to_batches():
                yield from pieces(batch, self._schema)

    def identity(self) -> Identity:
        """Number of rows, schema and a digest of the values."""
        return {
            "format": "huggingface",
            "rows": self.num_rows,
            "schema": schema_entries(self.schema),
            "digest": self._digest,
        }

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return HuggingFaceSource, (self._dataset,)

    @cached_property
    def _digest(self) -> str:
        return digest_of_rows(self.read(0, self.num_rows), self._schema)


def _datasets() -> Any:
    try:
        import datasets  # noqa: PLC0415 - an extra, loaded where it is used
    except ImportError:
        raise MissingExtra(
            "Hugging Face datasets need the package datasets.", hint="pip install 'truebatch[huggingface]'"
        ) from None
    return datasets
