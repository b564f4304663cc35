"""From the columns of a source to what a model takes: a label, numbers, and buckets."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from truebatch.data.encoding import Encoder, is_categorical, is_numeric
from truebatch.data.hashing import SCHEME
from truebatch.data.pieces import decoded_schema
from truebatch.errors import InvalidArgument, InvalidData

# As in the paper's click model: 1.6 million buckets, shared by 26 columns.
BUCKETS = 61_538

# Buckets that a public vocabulary needs beside its values: one for nulls, one for values it does not know.
_BESIDE = 2

Value = str | int | float | bool

_CRITEO_NUMERIC = tuple(f"I{i}" for i in range(1, 14))
_CRITEO_CATEGORICAL = tuple(f"C{i}" for i in range(1, 27))


@dataclass(frozen=True, kw_only=True)
class Features:
    """Which columns are the label, numbers and categories, and how many buckets each category has.

    Encoded rows have the columns `label`, int8; `i`, float32 for each numeric column; and `c`, int32 for each
    categorical column; `i` or `c` is left out when there are none. Nothing is null.

    - A number x becomes sign(x) log(1 + |x|), or stays x when `numbers` is "plain". A column with a range
      (low, high) in `ranges`, which must be public, becomes where x is in it, from -1 to 1; beyond, the
      nearer end. Nulls, NaN and infinities become 0.
    - A category becomes a bucket: 0 for a null, else 1 + hash of the value and the column's place
      (`data.hashing`). `buckets` is one count for all columns, or one for each.
    - With a vocabulary, which must be public, it becomes 2 + the value's place there, and 1 for a value that
      is not in it; the column's buckets are then the vocabulary's.
    - The label is a truth value or 0 or 1; or whether it is `positive`, when that is given.

    Guarantees:
      - A row is encoded by itself: nothing is learned from other rows, so encoding costs no privacy.
      - The same row gives the same bits on every machine.
    """

    label: str
    numeric: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    buckets: int | tuple[int, ...] = BUCKETS
    positive: Value | None = None
    numbers: str = "log"
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    vocabularies: Mapping[str, tuple[Value, ...]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for name in ("numeric", "categorical"):
            columns = getattr(self, name)
            if isinstance(columns, str):
                raise InvalidArgument(f"{name} must be a list of column names; got {columns!r}.")
            set_(self, name, tuple(columns))
        set_(self, "vocabularies", {name: tuple(values) for name, values in self.vocabularies.items()})
        _require_columns(self.label, self.numeric, self.categorical)
        _require_vocabularies(self.vocabularies, self.categorical)
        set_(self, "ranges", {name: tuple(ends) for name, ends in self.ranges.items()})
        _require_ranges(self.ranges, self.numeric)
        if self.numbers not in ("log", "plain"):
            raise InvalidArgument(f"numbers must be 'log' or 'plain'; got {self.numbers!r}.")
        given = (self.buckets,) * len(self.categorical) if isinstance(self.buckets, int) else self.buckets
        set_(self, "buckets", _buckets(tuple(given), self.categorical, self.vocabularies))

    @classmethod
    def infer(
        cls,
        schema: pa.Schema,
        *,
        label: str = "label",
        buckets: int | Sequence[int] = BUCKETS,
        positive: Value | None = None,
        leave_out: Sequence[str] = (),
    ) -> "Features":
        """Numbers are numeric and text is categorical; Criteo's columns are taken for what they are.

        A column of another type must be named in `leave_out`, or all columns by hand.
        """
        schema = decoded_schema(schema)
        _require_known((label, *leave_out), schema)
        names = [name for name in schema.names if name != label and name not in leave_out]
        if set(names) == {*_CRITEO_NUMERIC, *_CRITEO_CATEGORICAL}:
            numeric, categorical = _CRITEO_NUMERIC, _CRITEO_CATEGORICAL
        else:
            numeric = tuple(n for n in names if is_numeric(schema.field(n).type))
            categorical = tuple(n for n in names if _is_text(schema.field(n).type))
        for name in names:
            if name not in numeric and name not in categorical:
                raise InvalidArgument(
                    f"only numbers and text can be told to be features; got column {name!r} of type "
                    f"{schema.field(name).type}.",
                    hint=f"name the columns yourself, or leave it out: leave_out=[{name!r}].",
                )
        found = cls(
            label=label,
            numeric=numeric,
            categorical=categorical,
            buckets=buckets if isinstance(buckets, int) else tuple(buckets),
            positive=positive,
        )
        found.require(schema)
        return found

    @property
    def num_buckets(self) -> tuple[int, ...]:
        """The buckets of each categorical column: a value of `c` is below its column's."""
        assert isinstance(self.buckets, tuple)
        return self.buckets

    @property
    def schema(self) -> pa.Schema:
        """The columns of encoded rows."""
        return self._encoder().schema

    def encode(self, batch: pa.RecordBatch, *, first_row: int = 0) -> pa.RecordBatch:
        """The rows, encoded. `first_row` is the id of the first, for messages."""
        return self._encoder().encode(batch, first_row=first_row)

    def require(self, schema: pa.Schema) -> None:
        """Refuse a schema that lacks a column, or has one of a type that cannot be what it is said to be."""
        _require_known((self.label, *self.numeric, *self.categorical), schema)
        self._encoder().require(decoded_schema(schema))

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "label": self.label,
            "positive": self.positive,
            "numeric": list(self.numeric),
            "numbers": self.numbers,
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "categorical": list(self.categorical),
            "buckets": list(self.num_buckets),
            "vocabularies": {name: list(values) for name, values in self.vocabularies.items()},
            "hash": SCHEME,
        }

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> "Features":
        """The features that `as_dict` described."""
        fields = {**record}
        if (scheme := fields.pop("hash", None)) != SCHEME:
            raise InvalidData(f"features must be hashed by {SCHEME!r}; got {scheme!r}.")
        try:
            return cls(**{**fields, "buckets": tuple(fields["buckets"])})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InvalidData(f"features must be described as as_dict does; got {error}.") from None

    def _encoder(self) -> Encoder:
        return Encoder(
            label=self.label,
            positive=self.positive,
            numeric=self.numeric,
            log=self.numbers == "log",
            ranges=self.ranges,
            categorical=self.categorical,
            buckets=self.num_buckets,
            vocabularies=self.vocabularies,
        )


def _is_text(kind: pa.DataType) -> bool:
    return is_categorical(kind) and not is_numeric(kind) and not pat.is_temporal(kind)


def _require_columns(label: str, numeric: tuple[str, ...], categorical: tuple[str, ...]) -> None:
    names = (label, *numeric, *categorical)
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidArgument(f"a column's name must be a non-empty string; got {name!r}.")
        if names.count(name) > 1:
            raise InvalidArgument(
                f"a column must be label, numeric or categorical, and that once; got {name!r} twice."
            )
    if not numeric and not categorical:
        raise InvalidArgument("features must have a numeric or categorical column; got a label alone.")


def _require_vocabularies(vocabularies: Mapping[str, tuple[Value, ...]], categorical: Sequence[str]) -> None:
    for name, values in vocabularies.items():
        if name not in categorical:
            raise InvalidArgument(f"a vocabulary must be for a categorical column; got one for {name!r}.")
        if not values or len(set(values)) < len(values) or not all(isinstance(v, str | int) for v in values):
            raise InvalidArgument(
                f"a vocabulary must be one or more distinct texts or whole numbers; got another for {name!r}."
            )


def _require_ranges(ranges: Mapping[str, tuple[float, ...]], numeric: Sequence[str]) -> None:
    for name, ends in ranges.items():
        if name not in numeric:
            raise InvalidArgument(f"a range must be for a numeric column; got one for {name!r}.")
        if len(ends) != 2 or not -math.inf < ends[0] < ends[1] < math.inf:
            raise InvalidArgument(
                f"a range must be two finite numbers, the lower first; got {ends} for {name!r}."
            )


def _buckets(
    given: tuple[int, ...], categorical: tuple[str, ...], vocabularies: Mapping[str, tuple[Value, ...]]
) -> tuple[int, ...]:
    """The buckets of each column; a vocabulary says its own."""
    if len(given) != len(categorical):
        raise InvalidArgument(
            f"buckets must be one number, or one for each of {len(categorical)} categorical columns; "
            f"got {len(given)}."
        )
    for count in given:
        if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count < 2**31:
            raise InvalidArgument(f"buckets must be whole numbers from 2 to 2^31-1; got {count!r}.")
    return tuple(
        len(vocabularies[name]) + _BESIDE if name in vocabularies else count
        for name, count in zip(categorical, given, strict=True)
    )


def _require_known(names: Sequence[str], schema: pa.Schema) -> None:
    for name in names:
        if name not in schema.names:
            close = difflib.get_close_matches(name, schema.names, n=1)
            raise InvalidArgument(
                f"features must be columns of the source; got {name!r}.",
                hint=f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(schema.names)}.",
            )
