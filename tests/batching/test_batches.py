"""Value buffers as numpy sees them, of every type of fixed width, and without pandas."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from truebatch.batching.batches import values_of
from truebatch.errors import InvalidData

NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
]
TIMES = [
    pa.date32(),
    pa.date64(),
    pa.timestamp("us", "UTC"),
    pa.time32("s"),
    pa.time64("ns"),
    pa.duration("s"),
]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_column_of_numbers_is_its_values(name: str) -> None:
    values = np.array([0, 1, 100], name)
    found = values_of(pa.array(values).slice(1))
    assert found.dtype == values.dtype
    assert found.tolist() == [1, 100]


@pytest.mark.parametrize("kind", TIMES, ids=str)
def test_a_time_is_the_whole_number_that_stands_for_it(kind: pa.DataType) -> None:
    width = kind.bit_width // 8
    stored = np.array([0, 86_400_000], f"i{width}")
    found = values_of(pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(stored)]))
    assert found.dtype == stored.dtype
    assert found.tolist() == stored.tolist()


def test_text_is_left_to_arrow() -> None:
    with pytest.raises(InvalidData, match="fixed width only; got one of type string"):
        values_of(pa.array(["a"]))


def test_no_column_needs_pandas() -> None:
    """Arrow asks pandas for its name of a type, and pandas is none of our dependencies."""
    code = """
import sys

class Absent:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

sys.meta_path.insert(0, Absent)
import pyarrow as pa
from truebatch.batching.batches import values_of
for values in ([1], [0.5], [True], pa.array([[0.5]], pa.list_(pa.float32(), 1))):
    values_of(pa.array(values))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
