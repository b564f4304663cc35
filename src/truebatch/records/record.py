"""run.json: what ran, what may be claimed, and enough digests to check it. Public, and sealed by the key."""

import hashlib
import hmac
import json
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from truebatch.batching.journal import write_aside
from truebatch.errors import DamagedRun
from truebatch.keys import Key

FORMAT = "truebatch-run/2"
# What a run's directory holds beside its record: all of it as private as the data, but for the curves.
RECORD, CHECKPOINTS, CURVES, BATCHES, ROWS = "run.json", "checkpoints", "curves.csv", "batches", "rows"
_SEAL = "seal"
_PACKAGES = ("truebatch", "jax", "jaxlib", "optax", "numpy", "scipy", "pyarrow", "cryptography")
_CHECK_BYTES, _TAG_BYTES = 8, 16
# Of the identity of rows, what says nothing about a single one of them.
_OPEN = frozenset({"format", "rows", "name", "schema", "dialect", "features"})

Fields = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """The public record of a run.

    It holds no key, no membership and no realised batch size, and what it says of the rows, their number and
    columns aside, is under the key (`under_key`). The seal is HMAC-SHA256 over everything else under a key
    derived for it: who does not hold the key can change nothing in the record unnoticed.
    """

    fields: Fields

    def save(self, directory: Path) -> None:
        """Put the record in its place, all or nothing."""
        write_aside(directory / RECORD, json.dumps(self.fields, indent=1) + "\n", 0o644)

    @staticmethod
    def load(directory: Path) -> "Record":
        """The record of a run's directory."""
        path = directory / RECORD
        try:
            fields = json.loads(path.read_text())
        except FileNotFoundError:
            raise DamagedRun(
                f"a finished run has a {RECORD}, written last; got {str(directory)!r} without one.",
                hint="run 'truebatch train' again with the same arguments to finish it.",
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise DamagedRun(f"a record must be readable JSON; got {str(path)!r}: {error}.") from None
        if not isinstance(fields, dict) or fields.get("format") != FORMAT:
            raise DamagedRun(
                f"a record must be of format {FORMAT!r}; got {str(path)!r}, which is not.",
                hint="read it with the version of truebatch that wrote it.",
            )
        return Record(fields)

    def sealed(self, key: Key) -> "Record":
        """The same record with its seal."""
        return Record({**self._body(), _SEAL: seal_of(self._body(), key)})

    def is_sealed_by(self, key: Key) -> bool:
        """Whether every word of the record is as the holder of the key wrote it."""
        seal = self.fields.get(_SEAL)
        if not (isinstance(seal, str) and seal.isascii()):
            return False
        try:
            return hmac.compare_digest(seal, seal_of(self._body(), key))
        except ValueError:  # a number that JSON does not have
            return False

    def public(self) -> Fields:
        """The record with its main metrics at the top, as scripts read them."""
        return {**self.fields.get("metrics", {}), **self.fields}

    def _body(self) -> Fields:
        return {name: value for name, value in self.fields.items() if name != _SEAL}


def seal_of(body: Fields, key: Key) -> str:
    """HMAC-SHA256 of the body's canonical JSON, in hexadecimal."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.digest(key.derive("run record seal").to_bytes(), text.encode(), "sha256").hex()


def key_check(key: Key, fingerprint: str) -> str:
    """64 bits that tell this key from another for a spec, and say nothing else about it."""
    return key.derive(f"run key check {fingerprint}").to_bytes()[:_CHECK_BYTES].hex()


def schedule_key(key: Key, fields: Fields) -> Key:
    """The key that draws a run's batches: the run's own; for one of several runs, one derived for it.

    Several runs under one key would otherwise draw the same batches, and their accounting would not hold.
    `fields` are those of the record.
    """
    if fields["claim"]["num_runs"] == 1:
        return key
    said = {name: fields[name] for name in ("config", "features", "split", "claim", "data")}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return key.derive(f"batches of one of several runs {hashlib.sha256(text.encode()).hexdigest()}")


def under_key(identity: Any, key: Key, name: str = "") -> Any:
    """The identity of rows with its digests, sizes and times replaced by HMAC-SHA256 under the key.

    A bare digest of all rows would tell whoever knows all but one whether a guess of the last is right, and
    the size of a file would often do. Under the key they tell nothing, and change when the rows do.
    """
    if name in _OPEN or identity is None:
        return identity
    if isinstance(identity, dict):
        return {inner: under_key(value, key, inner) for inner, value in identity.items()}
    if isinstance(identity, list):
        return [under_key(value, key, name) for value in identity]
    secret, said = key.derive("run record digests").to_bytes(), json.dumps([name, identity])
    return hmac.digest(secret, said.encode(), "sha256")[:_TAG_BYTES].hex()


def versions() -> dict[str, str]:
    """What the run was made with."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
