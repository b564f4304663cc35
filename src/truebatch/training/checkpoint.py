"""Checkpoints: one file each, whole or not there, read back bit for bit or refused.

A file holds parameters and optimizer state, which depend on private rows through noised sums only: they are
as public as the model itself. Training without privacy is the exception, so files are made with mode 0600.
Keys, memberships and batch sizes are not in them.
"""

import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from truebatch.errors import CheckpointMismatch, DamagedCheckpoint, InvalidArgument
from truebatch.keys import Key
from truebatch.training.checkpoint_file import Arrays, describe, read_arrays, read_header, write_file

FORMAT = "truebatch-checkpoint/1"
KEPT = 2
_NAME = re.compile(r"step-(\d{12})\.checkpoint")
_UNFINISHED = ".unfinished"
_CHECK_BYTES = 8


class Checkpoint(NamedTuple):
    """The state after `step` steps, and what was said about it."""

    step: int
    state: Any
    meta: dict[str, Any]


def key_check(key: Key, fingerprint: str) -> str:
    """64 bits that tell another key apart for a schedule of this fingerprint, and say nothing else."""
    return key.derive(f"checkpoint key check {fingerprint}").to_bytes()[:_CHECK_BYTES].hex()


def save(directory: str | os.PathLike[str], step: int, state: Any, meta: Mapping[str, Any]) -> Path:
    """Write the state after `step` steps, and keep this checkpoint and the one before it.

    `state` is a pytree of arrays; `meta` is what JSON can hold, and free of secrets.

    Guarantees:
      - The file appears under its name only when all of it is on the disk; a failure leaves the others as
        they are.
      - The same state and meta give the same bytes.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**12:
        raise InvalidArgument(f"step must be a whole number from 0 to 10^12-1; got step={step!r}.")
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = _arrays(state)
    header = {"format": FORMAT, "step": step, "meta": _json(meta), "arrays": describe(arrays)}
    path = folder / f"step-{step:012d}.checkpoint"
    write_file(path, path.with_name(path.name + _UNFINISHED), header, arrays)
    _remove_others(folder, step)
    return path


def latest(
    directory: str | os.PathLike[str], *, like: Any, expect: Mapping[str, Any] | None = None
) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none.

    `like` is a state of the same structure, such as the first one; arrays are put where its arrays are. What
    `expect` says must be in the checkpoint's meta. A damaged file is passed over, with a warning, for the
    one before it.

    Guarantees:
      - Every array has the bits that were saved: a digest of the file is checked.
      - A checkpoint whose meta or arrays are of another run is an error, and so is having damaged ones only.
    """
    damages = []
    for path in reversed(_files(Path(directory))):
        try:
            header, offset = read_header(path, FORMAT)
            _require_sound(header, path)
            # Another run's file is told by its header, before it takes the time to read all of it.
            _require_same(header["meta"], expect or {}, path)
            _require_fit(header["arrays"], describe(_arrays(like)), path)
            leaves = read_arrays(path, header, offset)
        except DamagedCheckpoint as error:
            damages.append(error.message)
            warnings.warn(f"passed over a checkpoint: {error.message}", RuntimeWarning, stacklevel=2)
            continue
        return Checkpoint(header["step"], _placed(leaves, like), header["meta"])
    if damages:
        raise DamagedCheckpoint(
            f"no checkpoint in {str(directory)!r} is whole: {' '.join(damages)}",
            hint="remove them to train from the beginning: the same key gives the same run.",
        )
    return None


def _files(folder: Path) -> list[Path]:
    """Checkpoints, in the order of steps."""
    return sorted(path for path in folder.glob("step-*.checkpoint") if _NAME.fullmatch(path.name))


def _remove_others(folder: Path, step: int) -> None:
    """All but this and the one before; later ones belong to a future that is being made anew."""
    files = _files(folder)
    current = folder / f"step-{step:012d}.checkpoint"
    before = [path for path in files if path < current][-(KEPT - 1) :]
    for path in files:
        if path != current and path not in before:
            path.unlink(missing_ok=True)
    for path in folder.glob(f"step-*.checkpoint{_UNFINISHED}"):
        path.unlink(missing_ok=True)


def _arrays(state: Any) -> Arrays:
    arrays: Arrays = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = jax.tree_util.keystr(path)
        kind = getattr(leaf, "dtype", None)
        if kind is None or not hasattr(leaf, "shape") or jnp.issubdtype(kind, jax.dtypes.extended):
            raise InvalidArgument(
                f"a state must be made of arrays of numbers; got {name} of type {type(leaf).__name__}."
            )
        arrays[name] = leaf
    return arrays


def _json(meta: Mapping[str, Any]) -> dict[str, Any]:
    """What the meta is after a round trip."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(meta), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"meta must be what JSON can hold; {error}.") from None
    return found


def _require_same(found: Mapping[str, Any], expect: Mapping[str, Any], path: Path) -> None:
    for name, value in _json(expect).items():
        if found.get(name) != value:
            raise CheckpointMismatch(
                f"a checkpoint must be of this run: {name} must be {value!r}; "
                f"got {found.get(name)!r} in {path}.",
                hint="train with what that run was given, or into another directory.",
            )


def _require_sound(header: Any, path: Path) -> None:
    """Refuse a header that is whole, and was not written by `save`."""
    try:
        named = _NAME.fullmatch(path.name)
        sound = (
            type(header["step"]) is int
            and named is not None
            and header["step"] == int(named[1])
            and isinstance(header["meta"], dict)
            and all(isinstance(entry[name], str) for entry in header["arrays"] for name in ("name", "dtype"))
            and all(isinstance(entry["shape"], list) for entry in header["arrays"])
        )
    except (KeyError, TypeError):
        sound = False
    if not sound:
        raise DamagedCheckpoint(f"the header of {path} is not one of a checkpoint of this step.")


def _require_fit(found: list[dict[str, Any]], wanted: list[dict[str, Any]], path: Path) -> None:
    def kinds(entries: list[dict[str, Any]]) -> dict[str, str]:
        return {entry["name"]: f"{entry['dtype']}{entry['shape']}" for entry in entries}

    theirs, ours = kinds(found), kinds(wanted)
    for name in [*ours, *theirs]:
        if theirs.get(name) != ours.get(name):
            raise CheckpointMismatch(
                "a checkpoint must fit the model and the optimizer: "
                f"{name} must be {ours.get(name, 'absent')}; got {theirs.get(name, 'nothing')} in {path}.",
                hint="use the model and optimizer that it was written with, or another directory.",
            )
    if found != wanted:
        raise DamagedCheckpoint(f"the arrays of {path} are not in the order of the model's.")


def _placed(leaves: list[Any], like: Any) -> Any:
    """The arrays as JAX's own, where those of `like` are."""
    old, structure = jax.tree.flatten(like)
    # A copy that JAX makes: memory that numpy owns could not be updated in place, and device_put may go on
    # using it where it happens to be aligned, even when told not to.
    new = [
        jnp.copy(jax.device_put(leaf, getattr(there, "sharding", None)))
        for leaf, there in zip(leaves, old, strict=True)
    ]
    return jax.tree.unflatten(structure, new)
