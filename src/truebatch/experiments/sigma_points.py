"""One point of a grid: its answer, and the file that keeps it."""

import hashlib
import json
import math
import os
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import truebatch
from truebatch import accounting
from truebatch.accounting.bounds import Bound
from truebatch.accounting.clones import sigma_clones_optimistic
from truebatch.errors import InvalidArgument
from truebatch.experiments.sigma_grids import Point, Question
from truebatch.specs import as_dict, steps_for_epochs


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Both ends of sigma at one point; None where nothing is known, and the source says why."""

    lower: float | None
    upper: float | None
    source_lower: str
    source_upper: str


def solve(point: Point) -> Answer:
    """Ask the accountant."""
    if point.question is not Question.SIGMA:
        return _clones(point)
    ends = accounting.sigma(
        point.spec,
        epsilon=point.epsilon,
        delta=point.delta,
        adjacency=point.adjacency,
        dear=point.dear,
    )
    return Answer(
        lower=_finite(ends.lower),
        upper=_finite(ends.upper),
        source_lower=ends.lower.source,
        source_upper=ends.upper.source,
    )


def _finite(bound: Bound) -> float | None:
    if bound.value is None:
        return None
    value = float(bound.value)
    return value if math.isfinite(value) else None


def _clones(point: Point) -> Answer:
    """What the amplification bound would need at the very least, read in its own favour (Appendix C).

    Neither end is a bound on sigma: every rigorous use of that analysis needs more than this value.
    """
    n, b = point.spec.num_examples, point.spec.batch_size
    S = steps_for_epochs(num_examples=n, batch_size=b, num_epochs=1)
    shares, name = (S, "S") if point.question is Question.CLONES_STEPS else (n, "n")
    value = sigma_clones_optimistic(
        epsilon=point.epsilon, delta=point.delta, steps_per_epoch=S, delta0=point.delta / shares
    )
    reading = f"arXiv 2012.12803 read optimistically, delta_0 = delta/{name}: an estimate, not a bound"
    return Answer(
        lower=None,
        upper=value if math.isfinite(value) else None,
        source_lower="a reading of an upper bound says nothing here",
        source_upper=reading,
    )


def cache_key(point: Point) -> str:
    """A digest of all that the answer depends on: the point, the accountant's source, what it runs on."""
    facts = {
        "spec": as_dict(point.spec),
        "epsilon": float(point.epsilon).hex(),
        "delta": float(point.delta).hex(),
        "adjacency": point.adjacency.value,
        "question": point.question.value,
        "dear": point.dear,
        "versions": _versions(),
        "accountant": _source_digest(),
    }
    return _digest(facts)


def _versions() -> dict[str, str]:
    others = {name: metadata.version(name) for name in ("numpy", "scipy")}
    return {"truebatch": truebatch.__version__, **others}


@cache
def _source_digest() -> str:
    """One digest over the accountant's files and this one, so that a change never serves old numbers."""
    room = Path(accounting.__file__).parent
    files = sorted([*room.rglob("*.py"), room.parent / "specs.py", Path(__file__)])
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class PointCache:
    """Answers kept in a directory, one small file each.

    Guarantees:
      - A file that is cut short, altered or made for another point counts as absent.
      - A file appears whole or not at all, also when several processes write it.
    """

    def __init__(self, directory: Path | None) -> None:
        """Keep answers in this directory; in none where it is None."""
        self._directory = directory

    def load(self, point: Point) -> Answer | None:
        """The answer kept for this point, if there is a sound one."""
        if self._directory is None:
            return None
        key = cache_key(point)
        try:
            entry = json.loads((self._directory / f"{key}.json").read_text(encoding="utf-8"))
            sound = entry["key"] == key and entry["sha256"] == _digest([key, entry["answer"]])
            return Answer(**entry["answer"]) if sound else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, point: Point, answer: Answer) -> None:
        """Keep an answer."""
        if self._directory is None:
            return
        key = cache_key(point)
        values = vars(answer)
        entry = {"key": key, "point": point.label, "answer": values, "sha256": _digest([key, values])}
        text = json.dumps(entry, indent=1, allow_nan=False) + "\n"
        write_whole(self._directory / f"{key}.json", text.encode())


def open_cache(directory: Path | None) -> PointCache:
    """The cache in this directory, or in the platform's; without a writable platform cache, none."""
    chosen = directory if directory is not None else default_cache_dir()
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        writable = os.access(chosen, os.W_OK)
    except OSError:
        writable = False
    if not writable and directory is not None:
        raise InvalidArgument(
            f"the cache directory must be a directory that can be written to; got {directory}.",
            hint="choose another, or leave it out for the platform's own.",
        )
    return PointCache(chosen if writable else None)


def default_cache_dir() -> Path:
    """$XDG_CACHE_HOME/truebatch, or .cache/truebatch in the user's home."""
    root = os.environ.get("XDG_CACHE_HOME")
    base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    return base / "truebatch" / "sigma"


def write_whole(path: Path, content: bytes) -> None:
    """Write aside and rename, so that no reader meets half a file."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
