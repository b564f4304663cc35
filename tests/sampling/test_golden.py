"""Golden vectors: what scheme truebatch-schedule/1 gives for one public key, for ever.

These files never change silently. A batch that differs from them is another scheme: it gets a new version in
`truebatch.sampling.SCHEME`, a new file beside the old one, and a changelog entry saying that old keys give
other batches. To write the file of a new version, run this module:

    python tests/sampling/test_golden.py
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from truebatch.keys import Key
from truebatch.sampling import SCHEME, schedule
from truebatch.specs import SAMPLERS, Sampler, as_dict

KEY_SEED = 2411_04205
FILE = Path(__file__).parent / "golden" / (SCHEME.replace("/", "-") + ".json")

# (n, b, T): tiny, one tile, several tiles, b = n, shuffled tiles above 4,096 rows, and more than 2^31 rows.
WALKED = [(1, 1, 2), (12, 3, 8), (120, 8, 30), (9000, 3000, 6), (96_000, 1500, 64), (46_006_272, 65_536, 702)]
SAMPLED = [*WALKED, (1000, 999, 3), (60_000, 256, 4), (10**11, 1000, 3), (2**40 + 7, 200_000, 2)]


def specs() -> list[Sampler]:
    result: list[Sampler] = []
    for name, kind in SAMPLERS.items():
        walks = name in ("deterministic", "persistent_shuffle", "dynamic_shuffle", "balls_and_bins")
        for n, b, T in WALKED if walks else SAMPLED:
            caps = [{"max_batch_size": b}, {"max_batch_size": b + b // 50 + 1}]
            for extra in caps if name == "truncated_poisson" else [{}]:
                result.append(kind(num_examples=n, batch_size=b, num_steps=T, **extra))
    return result


def vector(spec: Sampler) -> dict[str, object]:
    """The spec; the first rows of the first two batches; a digest of up to four batches; the fingerprint."""
    s = schedule(spec, Key.for_tests(KEY_SEED))
    T = spec.num_steps
    steps = sorted({0, 1, T // 2, T - 1})
    digest = hashlib.sha256()
    for t in steps:
        rows = s.members(t)
        digest.update(len(rows).to_bytes(8, "little") + rows.astype("<i8").tobytes())
    first = [s.members(t)[:4].tolist() for t in steps[:2]]
    return {
        "spec": as_dict(spec),
        "steps": steps,
        "first_rows": first,
        "sha256": digest.hexdigest(),
        "fingerprint": s.fingerprint(),
    }


def by_name(spec: Sampler) -> str:
    return "-".join(str(value) for value in as_dict(spec).values())


@pytest.mark.parametrize("spec", specs(), ids=by_name)
def test_batches_are_the_golden_ones(spec):
    stored = {json.dumps(v["spec"]): v for v in json.loads(FILE.read_text())["vectors"]}
    assert vector(spec) == stored[json.dumps(as_dict(spec))]


def test_the_file_names_its_scheme_and_has_no_other_vectors():
    stored = json.loads(FILE.read_text())
    assert stored["scheme"] == SCHEME == "truebatch-schedule/1"
    assert stored["key_seed"] == KEY_SEED
    assert [v["spec"] for v in stored["vectors"]] == [as_dict(spec) for spec in specs()]


def test_placements_of_a_golden_batch_are_its_slots():
    spec = SAMPLERS["poisson"](num_examples=60_000, batch_size=256, num_steps=4)
    s = schedule(spec, Key.for_tests(KEY_SEED))
    placed = s.placements(0, 60_000, steps=[2])
    assert np.array_equal(placed.row, s.members(2))
    assert np.array_equal(placed.slot, np.arange(len(placed.row)))


def write() -> None:
    """Write the golden file of this version; refuses to replace one."""
    content = {"scheme": SCHEME, "key_seed": KEY_SEED, "vectors": [vector(spec) for spec in specs()]}
    with FILE.open("x") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    write()
