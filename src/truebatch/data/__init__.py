"""Sources of rows in one stable order, and the rows of one width that they become."""

from truebatch.data.arrow import ArrowSource
from truebatch.data.encoded import EncodedSource
from truebatch.data.features import Features
from truebatch.data.huggingface import HuggingFaceSource
from truebatch.data.layout import Column, Layout
from truebatch.data.mapped import MappedSource
from truebatch.data.memory import TableSource
from truebatch.data.opening import open_source
from truebatch.data.parquet import ParquetSource
from truebatch.data.preparing import prepare
from truebatch.data.row_range import RowRange
from truebatch.data.rows import item_nulls, nulls, pack, to_batch, unpack
from truebatch.data.source import Identity, Source
from truebatch.data.text import TextSource

__all__ = [
    "ArrowSource",
    "Column",
    "EncodedSource",
    "Features",
    "HuggingFaceSource",
    "Identity",
    "Layout",
    "MappedSource",
    "ParquetSource",
    "RowRange",
    "Source",
    "TableSource",
    "TextSource",
    "item_nulls",
    "nulls",
    "open_source",
    "pack",
    "prepare",
    "to_batch",
    "unpack",
]
