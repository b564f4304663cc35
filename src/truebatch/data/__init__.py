"""Sources of rows in one stable order, and the rows of one width that they become."""

from truebatch.data.arrow import ArrowSource
from truebatch.data.layout import Column, Layout
from truebatch.data.memory import TableSource
from truebatch.data.opening import open_source
from truebatch.data.parquet import ParquetSource
from truebatch.data.rows import item_nulls, nulls, pack, to_batch, unpack
from truebatch.data.source import Identity, Source

__all__ = [
    "ArrowSource",
    "Column",
    "Identity",
    "Layout",
    "ParquetSource",
    "Source",
    "TableSource",
    "item_nulls",
    "nulls",
    "open_source",
    "pack",
    "to_batch",
    "unpack",
]
