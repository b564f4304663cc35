"""How far a pass over the source has come, so that it goes on where it was stopped."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_NAME = "pass.json"


@dataclass(frozen=True, kw_only=True)
class Journal:
    """One pass: by which road, for which parts, and up to which row everything is on disk.

    `sizes` are those of the bucket files at that moment, for a road that appends to them.
    """

    road: str
    parts: tuple[int, ...]
    next_row: int = 0
    sizes: tuple[int, ...] = ()

    def save(self, work: Path) -> None:
        """Put this in place of what was there, all or nothing."""
        fields = {"road": self.road, "parts": self.parts, "next_row": self.next_row, "sizes": self.sizes}
        write_aside(work / _NAME, json.dumps({**fields, "digest": _digest_of(fields)}))

    @staticmethod
    def load(work: Path) -> "Journal | None":
        """What was saved last, or None: also where a word of it is not as it was saved."""
        try:
            fields = json.loads((work / _NAME).read_text())
            if fields.pop("digest") != _digest_of(fields):
                return None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        return Journal(
            road=fields["road"],
            parts=tuple(fields["parts"]),
            next_row=fields["next_row"],
            sizes=tuple(fields["sizes"]),
        )


def _digest_of(fields: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def passes(
    parts: Sequence[int], most: int, begun: Journal | None, road: str
) -> list[tuple[Journal | None, tuple[int, ...]]]:
    """The parts of each pass over the source, at most `most` a pass; one that was begun comes first.

    >>> passes(range(5), 2, None, "blocks")
    [(None, (0, 1)), (None, (2, 3)), (None, (4,))]
    """
    found: list[tuple[Journal | None, tuple[int, ...]]] = []
    if begun is not None and begun.road == road:
        rest = tuple(part for part in begun.parts if part in set(parts))
        if rest:
            found.append((begun, rest))
            parts = [part for part in parts if part not in set(rest)]
    most = max(1, most)
    return found + [(None, tuple(parts[i : i + most])) for i in range(0, len(parts), most)]


def write_aside(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a small file, all or nothing, and on disk when this returns."""
    aside = path.with_name(path.name + ".aside")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make renames in a directory last."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
