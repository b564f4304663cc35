"""The directory that batches are written to: one writer at a time, resumed or untouched, never mixed up."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truebatch.batching.engine import WORK, PartFile, digest_of_file
from truebatch.batching.journal import sync_directory, write_aside
from truebatch.batching.manifest import MANIFEST, Manifest, load, to_text
from truebatch.batching.shape import part_name
from truebatch.errors import DamagedBatches, NoSpace, OutputRefused, SourceChanged

_LOCK, _JOB, _PARTS = "lock", "job.json", "parts.jsonl"


@contextlib.contextmanager
def claimed(directory: Path, *, made: str = MANIFEST) -> Iterator[None]:
    """Make the directory where it is missing, and keep others out of it meanwhile.

    `made` is the file that a finished directory holds: one with other files alone is not ours.
    """
    work = directory / WORK
    descriptor = None
    try:
        while descriptor is None:
            try:
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                _require_ours(directory, made)
                work.mkdir(mode=0o700, exist_ok=True)
                descriptor = _locked(work / _LOCK, directory)
            except OSError as error:
                raise OutputRefused(
                    f"the output must be a directory that can be written; got {str(directory)!r}: "
                    f"{error.strerror}.",
                    hint="choose another directory.",
                ) from None
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _require_ours(directory: Path, made: str) -> None:
    names = {entry.name for entry in directory.iterdir()}
    if names and not names & {made, WORK}:
        raise OutputRefused(
            f"the output directory must be new, empty, or one that this command began; "
            f"got {str(directory)!r}, which holds other files.",
            hint="choose another directory.",
        )


def _locked(path: Path, directory: Path) -> int | None:
    """The lock's descriptor; None when the file was removed by one who finished just now."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _same(path, descriptor):
            return descriptor
    except BlockingIOError:
        os.close(descriptor)
        raise OutputRefused(
            f"an output directory takes one writer at a time; {str(directory)!r} is in use.",
            hint="wait until the other run has ended.",
        ) from None
    os.close(descriptor)
    return None


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def finished(directory: Path, wanted: Manifest) -> Manifest | None:
    """The manifest that stands there, when it is of these very batches; None when there is none yet."""
    if not (directory / MANIFEST).exists():
        return None
    manifest = load(directory)
    require_same(directory, manifest, wanted)
    for entry in manifest["files"]:
        path = directory / entry["name"]
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            raise DamagedBatches(
                f"a finished directory must hold the files of its manifest; {path} is not as it was written.",
                hint="make the batches anew in another directory, with the same key.",
            )
    return manifest


def begin(directory: Path, wanted: Manifest) -> None:
    """Note which batches are being made, or refuse where others were begun."""
    path = directory / WORK / _JOB
    if path.exists():
        require_same(directory, begun_as(path), wanted)
    else:
        write_aside(path, json.dumps(wanted))


def begun_as(path: Path) -> dict[str, Any]:
    """What an earlier run noted that it makes."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OutputRefused(
            f"the note of what was begun must be readable; got {str(path)!r}, which is not.",
            hint="choose another directory, or remove this one, and begin again with the same key.",
        )
    return found


def require_same(directory: Path, found: Manifest, wanted: Manifest) -> None:
    """Refuse a directory of other batches, and say in what they differ."""
    if found.get("source") != wanted["source"]:
        raise SourceChanged(
            f"the source must be the one that {str(directory)!r} was begun with; "
            f"it differs in {difference(found.get('source'), wanted['source'])}.",
            hint="give the original source, or choose another directory for batches of this one.",
        )
    for name in ("spec", "schedule", "columns", "layout", "key", "format"):
        if found.get(name) != wanted[name]:
            raise OutputRefused(
                f"a directory holds one set of batches; {str(directory)!r} has another {name}: "
                f"{difference(found.get(name), wanted[name])}.",
                hint="give the same arguments and key, or choose another directory.",
            )


def difference(found: object, wanted: object, where: str = "") -> str:
    """Where two plain values part first, and what stands there."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            if found.get(name) != wanted.get(name):
                return difference(found.get(name), wanted.get(name), f"{where}.{name}" if where else name)
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
            if a != b:
                return difference(a, b, f"{where}[{i}]")
    return f"{where or 'what it is'} ({_short(found)} there, {_short(wanted)} here)"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def parts_done(directory: Path) -> dict[int, PartFile]:
    """The parts that stand there whole.

    One that was noted must still be as it was; one that was not noted was renamed into its place just before
    the run was stopped, and only whole files are.
    """
    noted = {found.part: found for found in _noted(directory / WORK / _PARTS)}
    done = {}
    for path in sorted(directory.glob("part-*.arrow")):
        part = int(path.stem.removeprefix("part-"))
        try:
            found = PartFile(part=part, num_bytes=path.stat().st_size, digest=digest_of_file(path))
        except DamagedBatches:
            continue
        if noted.get(part, found) == found and path.name == part_name(part):
            done[part] = found
    return done


def _noted(path: Path) -> Iterator[PartFile]:
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError, TypeError, KeyError):  # the last line may be half written
                fields = json.loads(line)
                yield PartFile(part=fields["part"], num_bytes=fields["bytes"], digest=fields["digest"])


def note_part(directory: Path, found: PartFile) -> None:
    """Remember the digest of a part that has come to its place."""
    descriptor = os.open(directory / WORK / _PARTS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "w") as file:
        fields = {"part": found.part, "bytes": found.num_bytes, "digest": found.digest}
        file.write(json.dumps(fields) + "\n")
        file.flush()
        os.fsync(file.fileno())


def finish(directory: Path, manifest: Manifest, mode: int) -> None:
    """Write the manifest, which says that all is there, and clear away what was needed on the way."""
    write_aside(directory / MANIFEST, to_text(manifest), mode)
    clear(directory)


def clear(directory: Path) -> None:
    """Remove what only an unfinished run needs."""
    shutil.rmtree(directory / WORK, ignore_errors=True)
    sync_directory(directory)


@contextlib.contextmanager
def room_for(directory: Path, num_bytes: int) -> Iterator[None]:
    """Refuse to begin without room for so many bytes, and say so when it runs out on the way."""
    free = shutil.disk_usage(directory).free
    if free < num_bytes:
        raise _no_space(directory, num_bytes, free)
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_space(directory, num_bytes, shutil.disk_usage(directory).free) from None


def _no_space(directory: Path, needed: int, free: int) -> NoSpace:
    return NoSpace(
        f"the batches must fit on the disk; {str(directory)!r} still needs about {needed / 1e9:.3g} GB "
        f"and has {free / 1e9:.3g} GB free.",
        hint="make room and run the same command again: it goes on where it stopped.",
    )
