"""manifest.json: what a directory of batches is, without a word about who is in them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from truebatch.batching.assemble import Job
from truebatch.batching.digest import NAME as DIGEST_NAME
from truebatch.batching.shape import batch_rows, part_name
from truebatch.data import Identity
from truebatch.errors import DamagedBatches, TruebatchError
from truebatch.keys import Key
from truebatch.sampling import SCHEME, schedule
from truebatch.specs import SAMPLERS, Sampler, as_dict

FORMAT = "truebatch-batches/2"
MANIFEST = "manifest.json"
_CHECK_BYTES = 8
_DIGEST = "digest"

Manifest = dict[str, Any]


def describe(job: Job, key: Key, identity: Identity) -> Manifest:
    """Everything of the manifest that is known before a row is read.

    The key's check is 64 bits of a key derived for this spec: it tells another key apart, and says nothing
    else about either.
    """
    s = schedule(job.spec, key)
    shape = job.shape
    check = key.derive(f"batches key check {s.fingerprint()}").to_bytes()[:_CHECK_BYTES].hex()
    return {
        "format": FORMAT,
        "spec": as_dict(job.spec),
        "schedule": {
            "scheme": SCHEME,
            "fingerprint": s.fingerprint(),
            "sampling_prob": str(s.sampling_prob),
        },
        "key": {"public": key.is_public, "check": check},
        "source": json.loads(json.dumps(identity)),
        "columns": [[field.name, str(field.type), field.nullable] for field in shape.schema],
        "layout": {
            "rows_per_batch": shape.rows,
            "batches_per_record": shape.steps_per_record,
            "batches_per_file": shape.steps_per_part,
        },
    }


def with_files(manifest: Manifest, files: list[tuple[int, str]]) -> Manifest:
    """The finished manifest: (bytes, digest) of each part file, in order."""
    entries = [
        {"name": part_name(part), "bytes": size, DIGEST_NAME: digest}
        for part, (size, digest) in enumerate(files)
    ]
    whole = {**manifest, "files": entries}
    return {**whole, _DIGEST: _digest_of(whole)}


def _digest_of(manifest: Manifest) -> str:
    """SHA-256 of all of a manifest but its digest."""
    body = {name: value for name, value in manifest.items() if name != _DIGEST}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def to_text(manifest: Manifest) -> str:
    """The bytes of manifest.json: the same for the same batches, whoever made them."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def load(directory: Path) -> Manifest:
    """The manifest of a directory of batches.

    Guarantees:
      - A word that is not as it was written is noticed: a digest of all of them is checked.
    """
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise DamagedBatches(
            f"a directory of batches has a {MANIFEST}, written last; got {str(directory)!r} without one.",
            hint="run 'truebatch batches' again with the same arguments to finish it.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedBatches(f"{path} cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise DamagedBatches(
            f"a manifest must be of format {FORMAT!r}; got {found!r} in {path}.",
            hint="read it with the version of truebatch that wrote it.",
        )
    try:
        _require_sound(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, TruebatchError) as error:
        raise DamagedBatches(
            f"a manifest must be as it was written; {path} is not ({type(error).__name__}: {error}).",
            hint="make the batches anew in another directory, with the same key.",
        ) from None
    return manifest


def _require_sound(manifest: Manifest) -> None:
    """Everything that a reader relies on is there, and agrees with the spec."""
    if manifest[_DIGEST] != _digest_of(manifest):
        raise ValueError("its digest differs")
    spec, layout, files = spec_of(manifest), manifest["layout"], manifest["files"]
    counts = [layout[name] for name in ("rows_per_batch", "batches_per_record", "batches_per_file")]
    if not all(type(count) is int and count > 0 for count in counts) or counts[2] % counts[1]:
        raise ValueError("its layout is not one")
    if counts[0] != batch_rows(spec):
        raise ValueError("its batches are not of the size of its spec")
    if len(files) != -(-spec.num_steps // counts[2]):
        raise ValueError("it has another number of files than its layout")
    for part, entry in enumerate(files):
        if entry["name"] != part_name(part) or type(entry["bytes"]) is not int:
            raise ValueError("a file is not named as it should be")
        if not isinstance(entry[DIGEST_NAME], str):
            raise ValueError("a file has no digest")
    if not isinstance(manifest["source"], dict) or not isinstance(manifest["key"]["check"], str):
        raise ValueError("its source or key is not described")


def spec_of(manifest: Manifest) -> Sampler:
    """The sampler that a manifest names."""
    fields = dict(manifest["spec"])
    return SAMPLERS[fields.pop("sampler")](**fields)
