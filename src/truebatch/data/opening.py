"""From what a user points at to a source."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from truebatch.data import arrow, parquet, text
from truebatch.data.arrow import ArrowSource
from truebatch.data.files import Where, find_files
from truebatch.data.huggingface import HuggingFaceSource
from truebatch.data.mapped import NAME, MappedSource
from truebatch.data.memory import TableSource, table_of_arrays
from truebatch.data.parquet import ParquetSource
from truebatch.data.source import Source
from truebatch.data.text import TextSource
from truebatch.data.text_format import Types
from truebatch.data.text_head import read_text
from truebatch.data.text_index import OnBadRow
from truebatch.errors import InvalidArgument, InvalidData

FORMATS = ("parquet", "arrow", "csv", "tsv", "criteo", "prepared")

_BY_SUFFIX = {
    **dict.fromkeys(parquet.SUFFIXES, "parquet"),
    **dict.fromkeys(arrow.SUFFIXES, "arrow"),
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
}
_BY_HEAD = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow", NAME: "prepared"}
_DELIMITERS = {"csv": ",", "tsv": "\t"}

# The first line of Criteo's layout: label, 13 integers, 26 times 8 hex digits; all but the label may lack.
_CRITEO = re.compile(rb"[01](\t-?\d*){13}(\t([0-9a-fA-F]{8})?){26}\r?")
_LINE_BYTES = 1 << 16


def open_source(
    where: object,
    format: str | None = None,  # noqa: A002  # the user's word for it
    *,
    columns: Sequence[str] | None = None,
    types: Types | None = None,
    delimiter: str | None = None,
    quote: str | None = '"',
    null_values: Sequence[str] = ("",),
    on_bad_row: OnBadRow = "error",
) -> Source:
    """The source that `where` stands for.

    `where` is a path, a glob, a directory, or a list of these; a Table or anything else that gives Arrow
    data (pandas and Polars do); a dict of arrays; a Hugging Face dataset; or a source already.
    `format` is one of FORMATS; without it, suffix and first bytes of the first file tell. The other arguments
    are those of `TextSource`, for text.

    >>> open_source({"x": [1, 2, 3]}).num_rows
    3
    """
    options = _given(
        columns=columns,
        types=types,
        delimiter=delimiter,
        quote=quote,
        null_values=null_values,
        on_bad_row=on_bad_row,
    )
    if isinstance(where, str | os.PathLike) or _is_list_of_paths(where):
        return _open_files(where, format, options)  # type: ignore[arg-type]
    if format is not None or options:
        raise InvalidArgument(
            f"format and what goes with it are for files; got {', '.join(options) or 'format'} for an "
            f"object of type {type(where).__name__}."
        )
    return _open_object(where)


def _open_object(where: object) -> Source:
    if isinstance(where, Source):
        return where
    if isinstance(where, pa.Table):
        return TableSource(where)
    if type(where).__module__.partition(".")[0] == "datasets":
        return HuggingFaceSource(where)
    if isinstance(where, Mapping):
        return TableSource(table_of_arrays(where))
    if hasattr(where, "__arrow_c_stream__"):
        return TableSource(pa.table(where))
    raise InvalidData(
        "a source must be a path, a list of paths, a Table, a dict of arrays or a dataset; "
        f"got an object of type {type(where).__name__}."
    )


def _open_files(where: Where, name: str | None, options: dict[str, Any]) -> Source:
    if name is not None and name not in FORMATS:
        raise InvalidArgument(f"format must be one of {', '.join(FORMATS)}; got {name!r}.")
    found = _format_of(where) if name is None else name
    if found in _DELIMITERS:
        return TextSource(where, **{"delimiter": _DELIMITERS[found], **options})
    if found == "criteo" and not options.keys() - {"on_bad_row"}:
        return TextSource.criteo(where, **options)
    if options:
        raise InvalidArgument(
            f"{', '.join(options)}: not for format {found!r}.", hint="format='csv' and 'tsv' take them."
        )
    if found == "prepared":
        return MappedSource.open(_only(find_files(where, ("",))))
    return ParquetSource(where) if found == "parquet" else ArrowSource(where)


def _format_of(where: Where) -> str:
    """The format of the first file; which format a directory holds is told by suffixes."""
    first = next(iter(where), "") if not isinstance(where, str | os.PathLike) else where
    if os.fspath(first) and Path(first).is_dir():
        return _format_of_directory(Path(first))
    path = find_files(first, ("",))[0]
    suffix = _suffix(path)
    if suffix in _BY_SUFFIX and _BY_SUFFIX[suffix] not in _DELIMITERS:
        return _BY_SUFFIX[suffix]
    with path.open("rb") as file:
        head = file.read(len(NAME))
    for magic, name in _BY_HEAD.items():
        if head.startswith(magic):
            return name
    return _format_of_text(path, _BY_SUFFIX.get(suffix))


def _format_of_directory(directory: Path) -> str:
    suffixes = (*parquet.SUFFIXES, *arrow.SUFFIXES, *text.SUFFIXES)
    paths = find_files(directory, suffixes)
    kinds = {_BY_SUFFIX.get(_suffix(path), "text") for path in paths}
    if len(kinds) > 1:
        raise InvalidData(
            f"a directory must hold files of one format; got {' and '.join(sorted(kinds))} "
            f"in {str(directory)!r}.",
            hint="name the format, or the files by a glob.",
        )
    return _format_of(paths[0])


def _format_of_text(path: Path, by_suffix: str | None) -> str:
    data = read_text(path, 0, _LINE_BYTES)
    line = data.partition(b"\n")[0]
    if _CRITEO.fullmatch(line):
        return "criteo"
    if by_suffix is not None:
        return by_suffix
    for name, delimiter in (("tsv", b"\t"), ("csv", b",")):
        if delimiter in line and b"\0" not in data:
            return name
    raise InvalidData(
        f"the format of a file must show in its name or first bytes; got {str(path)!r}.",
        hint=f"name it: format= one of {', '.join(FORMATS)}.",
    )


def _suffix(path: Path) -> str:
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def _is_list_of_paths(where: object) -> bool:
    return isinstance(where, Sequence) and all(isinstance(place, str | os.PathLike) for place in where)


def _only(paths: tuple[Path, ...]) -> Path:
    if len(paths) > 1:
        raise InvalidData(f"prepared rows are one file; got {len(paths)}.")
    return paths[0]


def _given(**options: Any) -> dict[str, Any]:
    """The options that differ from what they are when nobody gives them."""
    usual = {"quote": '"', "null_values": ("",), "on_bad_row": "error"}
    return {name: value for name, value in options.items() if value != usual.get(name)}
