"""The bytes of a text file, plain or gzip, from any offset on."""

import threading
import zlib
from pathlib import Path
from typing import BinaryIO, Protocol, Self

from truebatch.errors import InvalidData

_GZIP = b"\x1f\x8b"
_OTHERS = {b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "Zstandard", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}

# Compressed bytes that are read at a time.
_INPUT_BYTES = 1 << 18

# Uncompressed bytes between places where decompression can go on; a place takes 40 to 50 kB of memory.
_PLACES_APART = 1 << 26


class TextBytes(Protocol):
    """Reading forward through the text of a file."""

    def read(self, size: int) -> bytes:
        """The next `size` bytes; fewer only where the text ends."""
        ...

    def seek(self, offset: int) -> None:
        """Go to an offset of the text."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class GzipPlaces:
    """Places of a gzip file from which decompression can go on, learned while it is read."""

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._lock = threading.Lock()

    def learn(self, place: "_Place") -> None:
        """Keep a place if it is far enough from the last."""
        with self._lock:
            last = self._places[-1].offset if self._places else 0
            if place.offset >= last + _PLACES_APART:
                self._places.append(place.copy())

    def before(self, offset: int) -> "_Place":
        """The last known place at or before an offset of the text."""
        with self._lock:
            known = [place for place in self._places if place.offset <= offset]
            return known[-1].copy() if known else _Place()


class _Place:
    """State of decompression: `at` bytes of the file have become `offset` bytes of the text."""

    def __init__(self) -> None:
        self.at = 0
        self.offset = 0
        self.inflate = zlib.decompressobj(wbits=31)

    def copy(self) -> Self:
        twin = type(self)()
        twin.at, twin.offset, twin.inflate = self.at, self.offset, self.inflate.copy()
        return twin


def open_text(path: Path, places: GzipPlaces) -> TextBytes:
    """The text of a file, gzip where its first bytes say so: and they must where its name does."""
    file = path.open("rb", buffering=0)
    head = file.read(6)
    file.seek(0)
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            file.close()
            raise InvalidData(
                f"a text file must be plain or gzip; got {str(path)!r}, which is {name}.",
                hint="decompress it first.",
            )
    if is_gzip(head):
        return _Gzip(path, file, places)
    if head and path.suffix.lower() == ".gz":
        file.close()
        raise InvalidData(
            f"a file whose name ends in .gz must be gzip; got {str(path)!r}, which does not begin so.",
            hint="copy it again; or give it another name, if it is plain text.",
        )
    return _Plain(file)


def is_gzip(head: bytes) -> bool:
    """Whether a file that begins so is gzip."""
    return head.startswith(_GZIP)


class _Plain:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        while len(data) < size and (more := self._file.read(size - len(data))):
            data += more
        return data

    def seek(self, offset: int) -> None:
        self._file.seek(offset)

    def close(self) -> None:
        self._file.close()


class _Gzip:
    """A gzip file of one or several members, one after the other."""

    def __init__(self, path: Path, file: BinaryIO, places: GzipPlaces) -> None:
        self._path, self._file, self._places = path, file, places
        self._place = _Place()
        self._input = b""

    def read(self, size: int) -> bytes:
        made = []
        while size > 0 and (data := self._next(size)):
            made.append(data)
            size -= len(data)
        return b"".join(made)

    def seek(self, offset: int) -> None:
        known = self._places.before(offset)
        if not known.offset <= self._place.offset <= offset:
            self._place, self._input = known, b""
            self._file.seek(known.at)
        while self._place.offset < offset:
            if not self.read(min(1 << 22, offset - self._place.offset)):
                raise self._broken("it ends early")

    def close(self) -> None:
        self._file.close()

    def _next(self, size: int) -> bytes:
        """At least one byte and at most `size`; none at the end."""
        place = self._place
        while True:
            if place.inflate.eof and not self._next_member():
                return b""
            if not self._input:
                self._input = self._file.read(_INPUT_BYTES)
                if not self._input:
                    raise self._broken("it ends early")
            given = len(self._input)
            try:
                data = place.inflate.decompress(self._input, size)
            except zlib.error as error:
                raise self._broken(str(error)) from None
            self._input = place.inflate.unconsumed_tail or place.inflate.unused_data
            place.at += given - len(self._input)
            place.offset += len(data)
            if data:
                self._places.learn(place)
                return data

    def _next_member(self) -> bool:
        """Go on to the member that follows; zeros after the last are padding."""
        self._input = self._input.lstrip(b"\0") or self._file.read(_INPUT_BYTES).lstrip(b"\0")
        if not self._input:
            return False
        self._place.at = self._file.tell() - len(self._input)
        self._place.inflate = zlib.decompressobj(wbits=31)
        return True

    def _broken(self, why: str) -> InvalidData:
        return InvalidData(
            f"a gzip file must be whole; got {str(self._path)!r}, which breaks after {self._place.offset} "
            f"bytes of text: {why}.",
            hint="it was cut short or damaged: copy it again.",
        )
