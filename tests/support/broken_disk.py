"""A disk that fails from some moment on: every call that changes it raises what the system would."""

import io
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

# Calls that write; opening counts where it is for writing. Files of Python's own io end in fsync.
_WRITES = [(os, name) for name in ("write", "pwrite", "fsync", "fdatasync", "posix_fallocate", "truncate")]
_CHANGES = [(os, "replace"), (os, "ftruncate"), (pathlib.Path, "rename"), (pathlib.Path, "mkdir")]
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class BrokenDisk:
    """From the k-th call that changes the disk on, each raises the error; with no k, calls are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, k: int | None = None) -> None:
        self.calls, self._k, self._error = 0, k, error
        for owner, name in _WRITES + _CHANGES:
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        open_fd, open_file = os.open, io.open

        def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            if flags & _FOR_WRITING:
                self._count()
            return open_fd(path, flags, *rest, **more)

        def opened_file(path: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if isinstance(path, str | os.PathLike) and set(mode) & set("wax+"):
                self._count()
            return open_file(path, mode, *rest, **more)

        monkeypatch.setattr(os, "open", opened)
        monkeypatch.setattr(io, "open", opened_file)
        monkeypatch.setattr("builtins.open", opened_file)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            self._count()
            return call(*args, **more)

        return counted

    def _count(self) -> None:
        self.calls += 1
        if self._k is not None and self.calls > self._k:
            raise OSError(self._error, os.strerror(self._error))
