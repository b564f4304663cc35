"""A range of a source's rows is a source, and says which rows it is."""

import pyarrow as pa
import pytest

from truebatch.data import RowRange, TableSource
from truebatch.errors import InvalidArgument

SOURCE = TableSource(pa.table({"x": list(range(10))}))


def test_rows_of_a_range_count_from_its_start() -> None:
    part = RowRange(SOURCE, 3, 9)
    assert part.num_rows == 6
    assert [batch.to_pydict() for batch in part.read(1, 4)] == [{"x": [4, 5, 6]}]
    assert RowRange(part, 2, 4).identity() != RowRange(SOURCE, 2, 4).identity()
    with pytest.raises(InvalidArgument, match="stop <= 6"):
        part.read(0, 7)


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (4, 4), (0, 11)])
def test_a_range_outside_of_the_source_is_refused(start, stop) -> None:
    with pytest.raises(InvalidArgument, match="the source's 10 rows"):
        RowRange(SOURCE, start, stop)
