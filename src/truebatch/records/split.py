"""Which rows train, validate and test: by position, or by a column's values. Public parameters either way."""

import dataclasses
import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from truebatch.data import Source
from truebatch.errors import InvalidArgument, InvalidData

PARTS = ("train", "valid", "test")

# Rows start..stop-1 of each part; None for a part without rows.
Rows = tuple[int, int]
Parts = tuple[Rows, Rows | None, Rows | None]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Rows by position, oldest first: the first `train` share, then `valid`, then the rest for the test."""

    train: float = 0.8
    valid: float = 0.1

    def __post_init__(self) -> None:
        for name in ("train", "valid"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidArgument(f"{name}_share must be a number; got {name}_share={value!r}.")
        if not (0 < self.train <= 1 and 0 <= self.valid and self.train + self.valid <= 1 + 1e-12):
            raise InvalidArgument(
                "a split must have 0 < train and 0 <= valid with train + valid at most 1; "
                f"got train={self.train:g}, valid={self.valid:g}."
            )

    def edges(self, num_rows: int) -> tuple[int, int]:
        """Where the validation rows begin, and the test rows.

        >>> Split().edges(327_346)
        (261876, 294611)
        """
        return int(self.train * num_rows), min(num_rows, int((self.train + self.valid) * num_rows))

    def parts(self, source: Source) -> Parts:
        """The rows of each part."""
        N = source.num_rows
        a, v = self.edges(N)
        if a == 0:
            raise InvalidData(
                f"a split must leave rows for training; got {N} rows and train={self.train:g}.",
                hint="use more rows, or a larger train share.",
            )
        return (0, a), (a, v) if a < v else None, (v, N) if v < N else None


@dataclass(frozen=True, kw_only=True)
class SplitBy:
    """Rows by the values of a column: "train", "valid" and "test"; or, where it is a time, from a value on.

    `valid_from` and `test_from` are texts that stand for values of the column's own type; the rows before the
    first of them train. A source is read in ranges, so the rows of a part must follow each other; with
    values from which parts begin, the parts must be in this order too. One pass over the rows finds them.
    """

    column: str
    valid_from: str | None = None
    test_from: str | None = None

    def __post_init__(self) -> None:
        for name in ("column", "valid_from", "test_from"):
            value = getattr(self, name)
            if not isinstance(value, str) and (name == "column" or value is not None):
                raise InvalidArgument(f"{name} of a split must be text; got {name}={value!r}.")

    def parts(self, source: Source) -> Parts:
        """The rows of each part. One that was asked for and is empty is refused, as is any other order."""
        kind = _type_of(self.column, source.schema)
        part_of = self._from_values(kind) if self._has_edges else _by_names(self.column, kind)
        runs: list[list[int]] = []  # part, start, stop
        for first, values in _values(source, self.column):
            codes = part_of(first, values)
            edges = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
            for start, stop in pairwise(edges):
                code = int(codes[start])
                if runs and runs[-1][0] == code:
                    runs[-1][2] = first + stop
                    continue
                if any(code == run[0] or (self._has_edges and code < run[0]) for run in runs):
                    raise self._out_of_order(first + start, code)
                runs.append([code, first + start, first + stop])
        return self._checked({code: (start, stop) for code, start, stop in runs}, source.num_rows)

    @property
    def _has_edges(self) -> bool:
        return self.valid_from is not None or self.test_from is not None

    def _from_values(self, kind: pa.DataType) -> "PartOf":
        """0, 1 or 2 by how a value compares with those from which parts begin."""
        edges = []
        for name, code in (("valid_from", 1), ("test_from", 2)):
            text = getattr(self, name)
            if text is not None:
                edges.append((_scalar(name, text, self.column, kind), code))
        if len(edges) == 2 and not pc.less(edges[0][0], edges[1][0]).as_py():
            raise InvalidArgument(
                "valid_from must be before test_from; "
                f"got valid_from={self.valid_from!r}, test_from={self.test_from!r}."
            )

        def part_of(first: int, values: pa.Array) -> Codes:
            _require_values(first, values, self.column)
            codes = np.zeros(len(values), np.int8)
            for edge, code in edges:
                codes[pc.greater_equal(values, edge).to_numpy(zero_copy_only=False)] = code
            return codes

        return part_of

    def _out_of_order(self, row: int, code: int) -> InvalidData:
        if self._has_edges:
            return InvalidData(
                f"rows must be in order of {self.column!r} for a split by it; row {row} is of "
                f"{PARTS[code]!r}, and comes after rows of a later part.",
                hint=f"sort the rows by {self.column!r} first.",
            )
        return InvalidData(
            f"the rows of a part must follow each other, since a source is read in ranges; row {row} goes "
            f"back to {PARTS[code]!r} in {self.column!r}.",
            hint="put the rows of each part together first, and keep their order otherwise.",
        )

    def _checked(self, found: dict[int, Rows], num_rows: int) -> Parts:
        wanted = {0} | {c for c, v in ((1, self.valid_from), (2, self.test_from)) if v is not None}
        for code in sorted(wanted - found.keys()):
            raise InvalidData(
                f"a split must leave rows for every part that it names; of {num_rows} rows none is of "
                f"{PARTS[code]!r} by {self.column!r}.",
                hint=None if self._has_edges else f"{self.column!r} must be 'train' for rows to train on.",
            )
        return found[0], found.get(1), found.get(2)


Codes = npt.NDArray[np.int8]
PartOf = Callable[[int, pa.Array], Codes]


def split_as_dict(split: Split | SplitBy) -> dict[str, Any]:
    """All of it as plain JSON values."""
    return dataclasses.asdict(split)


def split_from_dict(values: Mapping[str, Any]) -> Split | SplitBy:
    """The split that `split_as_dict` described."""
    return SplitBy(**values) if "column" in values else Split(**values)


def _type_of(column: str, schema: pa.Schema) -> pa.DataType:
    if column not in schema.names:
        close = difflib.get_close_matches(column, schema.names, n=1)
        raise InvalidArgument(
            f"a split must be by a column of the source; got {column!r}.",
            hint=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(schema.names)}.",
        )
    return schema.field(column).type


def _by_names(column: str, kind: pa.DataType) -> PartOf:
    """0, 1 or 2 by the name of the part."""
    if not (pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind)):
        raise InvalidArgument(
            f"a split by {column!r} needs the texts 'train', 'valid' and 'test' in it, or values from which "
            f"parts begin; it is of type {kind}.",
            hint="give --valid-from and --test-from.",
        )
    names = pa.array(PARTS, kind)

    def part_of(first: int, values: pa.Array) -> Codes:
        codes = pc.index_in(values, value_set=names)
        if codes.null_count:
            row = first + int(np.flatnonzero(codes.is_null().to_numpy(zero_copy_only=False))[0])
            raise InvalidData(
                f"column {column!r} must be one of {', '.join(PARTS)} for a split by it; row {row} is not.",
                hint="or give --valid-from and --test-from, if it is a time.",
            )
        return np.asarray(codes.to_numpy(zero_copy_only=False), np.int8)

    return part_of


def _scalar(name: str, text: str, column: str, kind: pa.DataType) -> pa.Scalar:
    """The value that a text stands for, in the column's type."""
    try:
        value = pa.scalar(text).cast(kind)
        if pc.equal(value, value).as_py():  # NaN is not
            return value
    except pa.ArrowException:
        pass
    zoned = ", as in 2013-10-19T18:00Z" if pat.is_timestamp(kind) and kind.tz is not None else ""
    raise InvalidArgument(
        f"{name} must be a value of column {column!r}, which is of type {kind}{zoned}; got {text!r}."
    )


def _require_values(first: int, values: pa.Array, column: str) -> None:
    missing = values.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
    if missing.any():
        raise InvalidData(
            f"column {column!r} must have a value in every row for a split by it; "
            f"row {first + int(missing.argmax())} has none."
        )


def _values(source: Source, column: str) -> Iterator[tuple[int, pa.Array]]:
    """The column in pieces, and the row at which each begins."""
    first = 0
    for batch in source.read(0, source.num_rows):
        yield first, batch.column(column)
        first += batch.num_rows
