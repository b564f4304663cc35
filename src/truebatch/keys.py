"""The secret key: 32 bytes from which every coin of a run is derived."""

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import NoReturn, Self

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from truebatch.errors import InvalidArgument, InvalidKey

KEY_BYTES = 32
_SALT = b"truebatch key v1"
_PUBLIC_LABEL = b"truebatch public test key v1"
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Key:
    """A secret of 32 bytes. Whoever holds it knows every batch.

    Made by `Key.generate()`, `Key.from_bytes(...)`, `Key.load(path)` or, for tests and public data only,
    `Key.for_tests(seed)`.

    Guarantees:
      - `repr`, `str` and every error message are free of key bytes.
      - Pickling raises; `to_bytes()` is the one way out, for shipping a key to workers on purpose.
      - Equality takes the same time wherever two keys differ. Keys are not hashable.
      - `is_public` is True exactly for keys made by `for_tests` and keys derived from them.
    """

    __slots__ = ("_is_public", "_secret")

    _secret: bytes
    _is_public: bool

    def __init__(self) -> None:
        raise InvalidKey(
            "a Key is not built directly.",
            hint="use Key.generate(), Key.from_bytes(data), Key.load(path) or Key.for_tests(seed).",
        )

    @classmethod
    def _make(cls, data: bytes, *, is_public: bool) -> Self:
        key = cls.__new__(cls)
        key._secret = data
        key._is_public = is_public
        return key

    @classmethod
    def generate(cls) -> Self:
        """A fresh key from the operating system's generator."""
        return cls._make(secrets.token_bytes(KEY_BYTES), is_public=False)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """The key that is these 32 bytes."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidKey(
                f"a key is made from {KEY_BYTES} bytes; got an object of type {type(data).__name__}.",
                hint="use Key.load(path) for a file, or Key.generate() for a new key.",
            )
        raw = bytes(data)
        if len(raw) != KEY_BYTES:
            raise InvalidKey(
                f"a key must be exactly {KEY_BYTES} bytes; got {len(raw)}.",
                hint="use Key.generate() for a new key.",
            )
        return cls._make(raw, is_public=False)

    @classmethod
    def for_tests(cls, seed: int) -> Self:
        """A key that everyone can rebuild from a small number: for tests and public data, never for release.

        The bytes are SHA-256(b"truebatch public test key v1" + seed as 8 bytes, little-endian).
        """
        if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
            raise InvalidArgument(f"seed must be a whole number from 0 to 2^64-1; got seed={seed!r}.")
        return cls._make(hashlib.sha256(_PUBLIC_LABEL + seed.to_bytes(8, "little")).digest(), is_public=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a key that only its owner can read.

        Guarantees:
          - Refuses symbolic links, directories, devices, files of the wrong length, and files that group
            or others may read or write. What is checked is the file that was opened, not its name.
        """
        place = Path(path)
        try:
            descriptor = os.open(place, _READ_FLAGS)
        except OSError as error:
            reason = "it is a symbolic link" if place.is_symlink() else error.strerror
            raise InvalidKey(
                f"the key file must be a readable regular file; got path={str(place)!r}: {reason}.",
                hint="make one with Key.generate().save(path).",
            ) from None
        try:
            _require_private(place, os.fstat(descriptor))
            data = os.read(descriptor, KEY_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(data) != KEY_BYTES:
            size = f"{len(data)}" if len(data) < KEY_BYTES else f"more than {KEY_BYTES}"
            raise InvalidKey(
                f"the key file must hold exactly {KEY_BYTES} bytes; got path={str(place)!r} with {size}.",
                hint="make a new one with Key.generate().save(path).",
            )
        return cls._make(data, is_public=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner can read (mode 0600).

        Guarantees:
          - An existing file is never overwritten, not even through a symbolic link.
          - A failed write leaves no file behind.
        """
        place = Path(path)
        if self._is_public:
            raise InvalidKey(
                "a public test key is not saved, or it would be read back as a secret one.",
                hint="rebuild it with Key.for_tests(seed).",
            )
        try:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InvalidKey(
                f"a key file is never overwritten; got path={str(place)!r}, which exists.",
                hint="choose another path, or remove the file if no run needs its key.",
            ) from None
        except OSError as error:
            raise InvalidKey(
                f"the key file must be creatable; got path={str(place)!r}: {error.strerror}."
            ) from None
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(self._secret)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                place.unlink()
            raise

    def derive(self, purpose: str) -> "Key":
        """An independent key for one purpose: HKDF-SHA256 with the purpose as its info.

        Guarantees:
          - The same key and purpose give the same result; different purposes give unrelated keys.
        """
        if not isinstance(purpose, str) or not purpose:
            raise InvalidArgument(f"purpose must be a non-empty string; got purpose={purpose!r}.")
        expand = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=_SALT, info=purpose.encode())
        return Key._make(expand.derive(self._secret), is_public=self._is_public)

    def to_bytes(self) -> bytes:
        """The 32 secret bytes, for shipping to workers that need them. Keep them out of logs and results."""
        return self._secret

    @property
    def is_public(self) -> bool:
        """True when anyone can rebuild this key, so that nothing drawn from it is private."""
        return self._is_public

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Key):
            return NotImplemented
        return hmac.compare_digest(self._secret, other._secret)

    __hash__ = None  # type: ignore[assignment]  # a hash in a log would be a fingerprint of the secret

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidKey(
            "a Key is never pickled, so that it does not travel with what does not need it.",
            hint="ship key.to_bytes() on purpose and rebuild it with Key.from_bytes(data).",
        )

    def __repr__(self) -> str:
        return "Key(public test key)" if self._is_public else "Key(secret)"


def _require_private(place: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise InvalidKey(f"the key file must be a regular file; got path={str(place)!r}, which is not.")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise InvalidKey(
            f"the key file must be closed to group and others; got path={str(place)!r} with mode {mode:04o}.",
            hint=f"if nobody else has read it, run: chmod 600 {place}",
        )
