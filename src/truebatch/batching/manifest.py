"""manifest.json: what a directory of batches is, without a word about who is in them."""

import json
from pathlib import Path
from typing import Any

from truebatch.batching.assemble import Job
from truebatch.batching.digest import NAME as DIGEST_NAME
from truebatch.batching.shape import part_name
from truebatch.data import Identity
from truebatch.errors import DamagedBatches
from truebatch.keys import Key
from truebatch.sampling import SCHEME, schedule
from truebatch.specs import SAMPLERS, Sampler, as_dict

FORMAT = "truebatch-batches/1"
MANIFEST = "manifest.json"
_CHECK_BYTES = 8

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
    return {**manifest, "files": entries}


def to_text(manifest: Manifest) -> str:
    """The bytes of manifest.json: the same for the same batches, whoever made them."""
    return json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"


def load(directory: Path) -> Manifest:
    """The manifest of a directory of batches."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text())
    except FileNotFoundError:
        raise DamagedBatches(
            f"a directory of batches has a {MANIFEST}, written last; got {str(directory)!r} without one.",
            hint="run 'truebatch batches' again with the same arguments to finish it.",
        ) from None
    except (OSError, ValueError) as error:
        raise DamagedBatches(f"{path} cannot be read: {error}.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else type(manifest).__name__
        raise DamagedBatches(
            f"a manifest must be of format {FORMAT!r}; got {found!r} in {path}.",
            hint="read it with the version of truebatch that wrote it.",
        )
    return manifest


def spec_of(manifest: Manifest) -> Sampler:
    """The sampler that a manifest names."""
    fields = dict(manifest["spec"])
    return SAMPLERS[fields.pop("sampler")](**fields)
