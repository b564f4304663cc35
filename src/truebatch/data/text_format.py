"""What a row of text is made of, and blocks of rows to record batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.types as pat

from truebatch.data.layout import require_unique_names
from truebatch.errors import InvalidArgument, InvalidData

Types = Mapping[str, pa.DataType | str]

# Two hex digits to their value, by the two bytes as one little-endian number; 256 for anything else.
_HEX_DIGITS = "0123456789abcdefABCDEF"
_HEX = np.full(1 << 16, 256, np.uint16)
for _a in _HEX_DIGITS:
    for _b in _HEX_DIGITS:
        _HEX[ord(_a) | ord(_b) << 8] = int(_a + _b, 16)
_HEX[0] = 0  # what lies under a null; a block with NUL bytes of its own is refused
_HEX_WIDTH = 8


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How fields are told apart, and which of them are missing values."""

    delimiter: str = ","
    quote: str | None = '"'
    null_values: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        for name, value in (("delimiter", self.delimiter), ("quote", self.quote)):
            if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
                raise InvalidArgument(f"{name} must be one ASCII character; got {value!r}.")
        if self.delimiter == self.quote:
            raise InvalidArgument(f"delimiter and quote must differ; got {self.quote!r} for both.")

    @property
    def quote_byte(self) -> bytes | None:
        """The quote as it stands in a file."""
        return None if self.quote is None else self.quote.encode()

    def names(self, row: bytes) -> list[str]:
        """The fields of a header."""
        try:
            return list(_read(_ended(row), self, csv.ReadOptions(), csv.ConvertOptions()).schema.names)
        except UnicodeDecodeError:
            raise pa.ArrowInvalid("bytes that are not UTF-8") from None

    def count_columns(self, row: bytes) -> int:
        """How many fields a row has; 0 for an empty line."""
        if not row.strip(b"\r\n"):
            return 0
        read = csv.ReadOptions(autogenerate_column_names=True)
        return int(_read(_ended(row), self, read, csv.ConvertOptions()).num_columns)


@dataclass(frozen=True, kw_only=True)
class RowFormat:
    """The columns of a row of text and how each is read; nothing is left to be guessed.

    `hexadecimal` names columns of 8 hex digits, which are read as uint32; `required` names columns that
    take no missing value. Every other column takes them and is nullable.
    """

    dialect: Dialect
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    hexadecimal: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow types."""
        pairs = zip(self.names, self.types, strict=True)
        return pa.schema([pa.field(n, t, nullable=n not in self.required) for n, t in pairs])

    def parse(self, data: bytes, names: Sequence[str] | None = None) -> pa.RecordBatch:
        """The rows in `data`, or those columns of it; pyarrow's errors are passed on.

        An empty line is no row, unless there is but one column: it shows in the number of rows.
        """
        if self.hexadecimal and b"\0" in data:
            raise pa.ArrowInvalid("a NUL byte")
        kinds = {n: pa.binary(_HEX_WIDTH) if n in self.hexadecimal else t for n, t in self._pairs()}
        options = csv.ConvertOptions(
            column_types=kinds,
            null_values=list(self.dialect.null_values),
            strings_can_be_null=True,
            include_columns=[] if names is None else list(names),
        )
        read = csv.ReadOptions(column_names=list(self.names))
        table = _read(data, self.dialect, read, options)
        schema = self.schema if names is None else pa.schema([self.schema.field(n) for n in names])
        arrays = [self._array(name, column) for name, column in zip(schema.names, table.columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _pairs(self) -> list[tuple[str, pa.DataType]]:
        return list(zip(self.names, self.types, strict=True))

    def _array(self, name: str, column: pa.ChunkedArray) -> pa.Array:
        array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
        if name in self.required and array.null_count:
            raise pa.ArrowInvalid("a missing value")
        return _from_hex(array) if name in self.hexadecimal else array


def infer_format(
    data: bytes, dialect: Dialect, names: Sequence[str], types: Types | None = None
) -> RowFormat:
    """The format of rows like those in `data`: types that are not given are those pyarrow infers.

    A column without a value in `data` is read as text.
    """
    given = {name: as_type(name, kind, names) for name, kind in (types or {}).items()}
    inferred = tuple(name for name in names if name not in given)
    kinds = dict.fromkeys(inferred, pa.string())
    if inferred and data:
        options = csv.ConvertOptions(null_values=list(dialect.null_values), strings_can_be_null=True)
        found = _read(data, dialect, csv.ReadOptions(column_names=list(names)), options).schema
        kinds = {field.name: pa.string() if pat.is_null(field.type) else field.type for field in found}
    kinds |= given
    return RowFormat(
        dialect=dialect, names=tuple(names), types=tuple(kinds[name] for name in names), inferred=inferred
    )


def text_format(dialect: Dialect, names: Sequence[str]) -> RowFormat:
    """The format that takes any row of so many columns: all of them text."""
    return RowFormat(dialect=dialect, names=tuple(names), types=(pa.binary(),) * len(names))


def as_type(name: str, kind: pa.DataType | str, names: Sequence[str]) -> pa.DataType:
    """The Arrow type that a user gave for a column, or an error."""
    if name not in names:
        raise InvalidArgument(
            f"types must be given for columns that there are; got {name!r}.",
            hint=f"there are: {', '.join(names)}.",
        )
    try:
        found = pa.type_for_alias(kind) if isinstance(kind, str) else kind
    except ValueError:
        found = None
    if not isinstance(found, pa.DataType) or pat.is_nested(found) or pat.is_dictionary(found):
        raise InvalidArgument(
            f"the type of {name!r} must be a plain Arrow type or its name; got {kind!r}.",
            hint="such as 'int32', 'float64', 'string', 'date32' or 'timestamp[s]'.",
        )
    return found


def criteo_format() -> RowFormat:
    """A line of Criteo's click logs: label, 13 integers, 26 categoricals of 8 hex digits, tabs between.

    Categoricals become the uint32 that their digits spell, which loses nothing but the digits' case.
    """
    integers = tuple(f"I{i}" for i in range(1, 14))
    categoricals = tuple(f"C{i}" for i in range(1, 27))
    return RowFormat(
        dialect=Dialect(delimiter="\t", quote=None),
        names=("label", *integers, *categoricals),
        types=(pa.int8(), *(pa.int32(),) * len(integers), *(pa.uint32(),) * len(categoricals)),
        hexadecimal=categoricals,
        required=("label",),
    )


def require_names(names: Sequence[str], path: str, *, is_header: bool) -> None:
    """Refuse names that cannot be a header, such as a row of data read as one."""
    numbers = [name for name in names if _is_number(name)]
    tabs = [name for name in names if "\t" in name]
    if is_header and (numbers or tabs or "" in names):
        what = "a number" if numbers else "a tab within a name" if tabs else "an empty name"
        raise InvalidData(
            f"the first line of a text file must name its columns; got {what} in that of {path!r}.",
            hint="for a file without a header, give the names: columns=[...]; where fields are apart by "
            "something else, the delimiter.",
        )
    try:
        require_unique_names(pa.schema([pa.field(name, pa.null()) for name in names]))
    except InvalidData as error:
        raise InvalidData(f"{path}: {error.message}", hint=error.hint) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ended(row: bytes) -> bytes:
    return row if row.endswith(b"\n") else row + b"\n"


def _read(data: bytes, dialect: Dialect, read: csv.ReadOptions, convert: csv.ConvertOptions) -> pa.Table:
    columns = len(read.column_names)
    read.use_threads = False
    read.block_size = len(data) + 1  # all rows are one block
    parse = csv.ParseOptions(
        delimiter=dialect.delimiter,
        quote_char=dialect.quote or False,
        ignore_empty_lines=columns > 1,
        newlines_in_values=dialect.quote_byte is not None and dialect.quote_byte in data,
    )
    return csv.read_csv(pa.BufferReader(data), read, parse, convert)


def _from_hex(digits: pa.Array) -> pa.Array:
    """The numbers that arrays of 8 hex digits spell."""
    validity, data = digits.buffers()
    pairs = np.frombuffer(data, "<u2", count=len(digits) * 4, offset=digits.offset * _HEX_WIDTH)
    values = _HEX.take(pairs)
    if len(values) and values.max() > 0xFF:
        raise pa.ArrowInvalid("not hex digits")
    numbers = values.astype(np.uint8).view(">u4").astype(np.uint32)
    return pa.Array.from_buffers(
        pa.uint32(), len(digits), [validity, pa.py_buffer(numbers)], offset=0, null_count=digits.null_count
    )
