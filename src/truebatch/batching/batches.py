"""A batch, and what gives batches: the one interface between making them and training on them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from truebatch.batching.shape import WEIGHT
from truebatch.errors import InvalidArgument, InvalidData
from truebatch.specs import Sampler


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one step: real ones first, by row id, then padding of weight 0. Always the same shape.

    `record` has the columns of the source and `weight`; `batch["x"]` is column x as numpy sees it.
    """

    step: int
    record: pa.RecordBatch

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        """The values of a fixed-width column, [rows] or [rows, length], not copied; a null reads as zero."""
        try:
            array = self.record.column(name)
        except KeyError:
            raise InvalidData(
                f"a batch has the columns of its source and {WEIGHT!r}; got {name!r}.",
                hint=f"there are: {', '.join(self.record.schema.names)}.",
            ) from None
        return values_of(array)

    @property
    def weight(self) -> npt.NDArray[np.generic]:
        """1 for a real row and 0 for padding, float32. Its sum is a secret."""
        return self[WEIGHT]

    @property
    def rows(self) -> int:
        """How many rows there are, padding included: the same for every batch."""
        return int(self.record.num_rows)


@runtime_checkable
class Batches(Protocol):
    """T batches of one shape, to be read from any step on.

    Guarantees that every kind gives:
      - `read(start, stop)` yields the batches of steps start..stop-1 in order, empty ones included.
      - The same bytes in the same batch, whichever kind is read and wherever reading began.
    A batch may be overwritten once the next but one has been asked for: copy what must be kept.
    """

    @property
    def spec(self) -> Sampler:
        """The sampler that drew the batches."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns of a batch: the source's, then the weight."""
        ...

    def read(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        """The batches of consecutive steps."""
        ...


def require_steps(start_step: int, stop_step: int | None, spec: Sampler) -> range:
    """The steps that are meant, or an error that says which there are."""
    last = spec.num_steps if stop_step is None else stop_step
    if not 0 <= start_step <= last <= spec.num_steps:
        raise InvalidArgument(
            "steps must satisfy 0 <= start_step <= stop_step <= num_steps; "
            f"got start_step={start_step}, stop_step={last}, num_steps={spec.num_steps}."
        )
    return range(start_step, last)


def values_of(array: pa.Array) -> npt.NDArray[np.generic]:
    """The value buffer of a fixed-width array, [rows] or [rows, length]; nulls as what lies there."""
    if pat.is_fixed_size_list(array.type):
        length = array.type.list_size
        items = values_of(array.values.slice(array.offset * length, len(array) * length))
        return items.reshape(len(array), length)
    if pat.is_boolean(array.type):
        return np.asarray(array.fill_null(False))
    if not (pat.is_primitive(array.type) and not pat.is_interval(array.type)):
        raise InvalidData(
            f"numpy sees columns of fixed width only; got one of type {array.type}.",
            hint="read it from batch.record, as Arrow.",
        )
    kind = "f" if pat.is_floating(array.type) else "u" if pat.is_unsigned_integer(array.type) else "i"
    dtype = np.dtype(f"<{kind}{array.type.bit_width // 8}")
    data = array.buffers()[1]
    return np.frombuffer(data, dtype, count=len(array), offset=array.offset * dtype.itemsize)
