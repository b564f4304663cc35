"""Gather or scatter: which plan suits a source, and why."""

from dataclasses import dataclass
from pathlib import Path

from truebatch.batching.assemble import Job
from truebatch.batching.engine import Engine
from truebatch.batching.gather import GatherEngine, PackedRows, RandomAccess, require_random_access
from truebatch.batching.local import LocalEngine
from truebatch.data import Layout, Source
from truebatch.errors import InvalidArgument

PLANS = ("auto", "gather", "scatter")

# A row that is not in the page cache costs a seek, 45 times a row of a sequential read, so gathering pays
# only when nearly all rows stay there. Half of what is available leaves the other half to what is written.
_CACHE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How batches will be made: the engine, and the reason in a sentence."""

    name: str
    engine: Engine
    reason: str


def choose_plan(source: Source, job: Job, *, wanted: str = "auto") -> Plan:
    """The plan that suits: gather where rows can be reached at random in memory, scatter everywhere else."""
    if wanted not in PLANS:
        raise InvalidArgument(f"plan must be one of {', '.join(PLANS)}; got {wanted!r}.")
    if wanted == "gather":
        require_random_access(source)
        return Plan(name="gather", engine=GatherEngine(), reason="asked for")
    if wanted == "scatter":
        return Plan(name="scatter", engine=LocalEngine(), reason="asked for")
    if not isinstance(source, PackedRows | RandomAccess):
        return Plan(
            name="scatter", engine=LocalEngine(), reason="the source is read in order, from end to end"
        )
    size, cache = job.spec.num_examples * Layout.of(job.schema).width, available_memory()
    if size > _CACHE_SHARE * cache:
        reason = f"{size / 1e9:.3g} GB of rows would not stay in {cache / 1e9:.3g} GB of available memory"
        return Plan(name="scatter", engine=LocalEngine(), reason=reason)
    reason = f"{size / 1e9:.3g} GB of rows stay in {cache / 1e9:.3g} GB of available memory"
    return Plan(name="gather", engine=GatherEngine(), reason=reason)


def available_memory(proc: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still fill, page cache included: the machine's, or its control group's."""
    found = [_meminfo(proc)]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _number(cgroup / limit), _number(cgroup / used)
        if most is not None and now is not None:
            found.append(max(0, most - now))
    return min(found)


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 2**32  # not Linux: a guess that errs to the side of scatter


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
