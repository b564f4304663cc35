"""Which files a source stands on, in which order, and how it is noticed that one is not the same any more."""

import difflib
import glob
import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from truebatch.data.source import Identity
from truebatch.errors import InvalidArgument, InvalidData, SourceChanged

Where = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NOT_DATA = (".", "_")  # what other programs leave in a directory beside its data: _SUCCESS, .crc


def find_files(where: Where, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """The files that a path, glob, directory, or list of these means.

    Guarantees:
      - A list keeps its order; a glob, and a directory's files with one of `suffixes`, are sorted by path.
      - At least one file, each a regular file that is named once.
    """
    places = [where] if isinstance(where, str | os.PathLike) else list(where)
    if not places:
        raise InvalidArgument("a source must have at least one file; got an empty list.")
    found = [path for place in places for path in _expanded(place, suffixes)]
    if len(set(found)) < len(found):
        twice = next(path for i, path in enumerate(found) if path in found[:i])
        raise InvalidArgument(f"a file must be named once in a source; got {str(twice)!r} twice.")
    return tuple(found)


def _expanded(place: str | os.PathLike[str], suffixes: tuple[str, ...]) -> list[Path]:
    if not isinstance(place, str | os.PathLike):
        raise InvalidArgument(
            f"a path must be a string or Path; got an object of type {type(place).__name__}."
        )
    text = os.fspath(place)
    if not text:
        raise InvalidArgument("a path must not be empty; got one that is.")
    if "://" in text:
        raise InvalidArgument(
            f"sources are read from file systems; got {text!r}.", hint="mount the storage, or copy the files."
        )
    path = Path(text)
    if path.is_dir():
        return _files_of(path, suffixes)
    if path.exists():
        if not path.is_file():
            raise InvalidData(f"a source must be a regular file; got {text!r}, which is not.")
        return [path]
    found = (Path(name) for name in glob.glob(text, recursive=True))
    # As a shell leaves out what begins with a dot, unless it is asked for.
    matched = sorted(p for p in found if p.is_file() and p.name.startswith("_") <= path.name.startswith("_"))
    if not matched:
        raise _missing(path, is_glob=glob.has_magic(text))
    return matched


def _files_of(directory: Path, suffixes: tuple[str, ...]) -> list[Path]:
    plain = [p for p in directory.iterdir() if p.is_file() and not p.name.startswith(_NOT_DATA)]
    found = sorted(p for p in plain if p.name.lower().endswith(suffixes))
    if not found:
        raise InvalidData(
            f"a directory must hold files that end in {' or '.join(suffixes)}; got {str(directory)!r}.",
            hint=f"name the files by a glob, such as {str(directory / '**' / ('*' + suffixes[0]))!r}.",
        )
    return found


def _missing(path: Path, *, is_glob: bool) -> InvalidData:
    if is_glob:
        return InvalidData(f"a glob must match at least one file; got {str(path)!r}, which matches none.")
    there = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, there, n=1)
    hint = f"did you mean {str(path.parent / close[0])!r}?" if close else None
    if not path.parent.is_dir():
        hint = f"the directory {str(path.parent)!r} does not exist."
    return InvalidData(f"a source must exist; got {str(path)!r}, which does not.", hint=hint)


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of a source, as it was when the source was opened.

    `mark` is a digest of what the format says about its own contents: a footer, or a head.
    """

    path: str
    size: int
    mtime_ns: int
    rows: int
    mark: str

    def identity(self) -> Identity:
        """What must not change between runs; the directory may."""
        return {
            "name": Path(self.path).name,
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "rows": self.rows,
            "mark": self.mark,
        }

    def require_same(self, size: int, mark: str) -> None:
        """Refuse a file that is not the one that was opened; a copy with another time is the same."""
        if (size, mark) != (self.size, self.mark):
            raise changed(self.path)


def changed(path: str) -> SourceChanged:
    """The error for a file that was rewritten while its source was in use."""
    return SourceChanged(
        f"a source's files must stay as they are while it is read; got {path!r}, which has changed.",
        hint="open the source anew; batches that were begun with the old rows must be begun again.",
    )


def digest(data: bytes | memoryview) -> str:
    """BLAKE2b of a footer or head, 32 hex digits."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Spans:
    """Where the rows of consecutive parts begin, such as the row groups of all files.

    >>> spans = Spans([3, 0, 4])
    >>> spans.num_rows, spans.find(0), spans.find(3)
    (7, (0, 0), (2, 0))
    """

    def __init__(self, rows: Iterable[int]) -> None:
        self._ends: npt.NDArray[np.int64] = np.cumsum(np.fromiter(rows, np.int64), dtype=np.int64)

    @property
    def num_rows(self) -> int:
        """Rows of all parts."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def find(self, row: int) -> tuple[int, int]:
        """The part that holds a row, and its position there; past the end, the number of parts and 0."""
        part = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[part - 1]) if part else 0
        return part, row - first
