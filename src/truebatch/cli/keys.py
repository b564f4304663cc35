"""The key of a directory that a command makes or checks."""

import argparse
import sys
from pathlib import Path

from truebatch.errors import InvalidArgument
from truebatch.keys import Key


def key_path(arguments: argparse.Namespace, out: Path) -> Path:
    """Where the key is: as --key says, or beside the directory."""
    return Path(arguments.key) if arguments.key else out.with_name(out.name + ".key")


def key_for(arguments: argparse.Namespace, out: Path, *, finished: Path) -> Key:
    """The key that was named, or one made for this directory; nothing of it is printed.

    `finished` is the file that stands in a directory that has a key already: for it none is made.
    """
    if arguments.public_test_seed is not None:
        print("warning: a public test seed; nothing drawn from it is private", file=sys.stderr)
        return Key.for_tests(arguments.public_test_seed)
    path = key_path(arguments, out)
    if path.exists() or path.is_symlink():
        return Key.load(path)
    if finished.exists():
        raise InvalidArgument(
            f"what stands in {str(out)!r} already has a key; got none at {str(path)!r}.",
            hint="pass --key with the file that it was made with.",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    key = Key.generate()
    key.save(path)
    print(f"made the key {path}: whoever holds it knows who is in which batch", file=sys.stderr)
    return key
