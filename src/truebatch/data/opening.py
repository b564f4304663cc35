"""From what a user points at to a source."""

from collections.abc import Mapping

import pyarrow as pa

from truebatch.data.memory import TableSource, table_of_arrays
from truebatch.data.source import Source
from truebatch.errors import InvalidData


def open_source(where: object) -> Source:
    """The source that `where` stands for: a pyarrow Table or a dict of arrays."""
    if isinstance(where, Source):
        return where
    if isinstance(where, pa.Table):
        return TableSource(where)
    if isinstance(where, Mapping):
        return TableSource(table_of_arrays(where))
    raise InvalidData(
        f"a source must be a Table or a dict of arrays; got an object of type {type(where).__name__}."
    )
