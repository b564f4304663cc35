"""Checking a run: what its record says, against the key, the schedule, the files, and the data."""

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from truebatch import accounting
from truebatch.accounting.rounding import effective_sigma
from truebatch.accounting.several_runs import upper_sampler_of_runs
from truebatch.batching import FileBatches, open_batches
from truebatch.batching.output import difference
from truebatch.data import EncodedSource, Features, MappedSource, RowRange, Source
from truebatch.errors import DamagedRun, TruebatchError
from truebatch.keys import Key
from truebatch.records.config import RunConfig
from truebatch.records.record import (
    BATCHES,
    CHECKPOINTS,
    ROWS,
    Fields,
    Record,
    key_check,
    schedule_key,
    under_key,
)
from truebatch.records.split import PARTS, split_from_dict
from truebatch.sampling import SCHEME, Schedule, schedule
from truebatch.specs import SAMPLERS, Sampler

PASSED, FAILED, LEFT_OUT = "passed", "FAILED", "not checked"

# Steps whose batches are drawn anew when not all are asked for.
_SAMPLED_STEPS = 16
_SAMPLED_ROWS = 4096
# Rows of the source that are compared at a time.
_COMPARED_ROWS = 2**16
# What a claimed number may differ by from the one computed now: what the accountant's own tolerances allow.
_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement about a run, and whether it holds."""

    name: str
    outcome: str
    detail: str


class _Broken(Exception):
    """A statement does not hold, for this reason."""


class _LeftOut(Exception):
    """A statement could not be checked, for this reason."""


def verify(directory: Path, key: Key, *, data: Source | None = None, full: bool = False) -> list[Check]:
    """Every check of a run that can be made with what is given.

    None stops the others, but for the seal: the numbers of a record that is not as it was sealed may be any,
    so large that nobody comes to their end, and nothing is worked out from them.

    `data` is the source that the run was made from. `full` reads every file and draws every batch again;
    otherwise some steps, chosen by the system's generator, stand for all.
    """
    record = Record.load(directory).fields
    spec, drawn = _spec_and_schedule(record, key)
    sealed = Record(record).is_sealed_by(key)
    steps = _steps(spec, full=full) if sealed else []

    def checks() -> Iterator[tuple[str, Callable[[], str]]]:
        yield "the record is as the key's holder wrote it", lambda: _seal(record, key)
        yield "the key is the run's", lambda: _key(record, key, drawn)
        yield "the schedule is the sampler's", if_sealed(lambda: _schedule(record, drawn, steps))
        yield "the noise is what the goal needs", if_sealed(lambda: _noise(record, spec))
        yield "the claim is what the accountant says", if_sealed(lambda: _claim(record, spec))
        yield "the prepared rows are as they were", lambda: _rows(record, directory, key, full=full)
        yield (
            "the written batches are the schedule's",
            if_sealed(lambda: _batches(record, directory, key, drawn, steps, full=full)),
        )
        yield "the model is the run's", lambda: _checkpoint(record, directory)
        yield (
            "the data are the run's",
            if_sealed(lambda: _data(record, directory, key, data, drawn, full=full)),
        )

    def if_sealed(check: Callable[[], str]) -> Callable[[], str]:
        return check if sealed else _left_out_unsealed

    return [_checked(name, check) for name, check in checks()]


def _checked(name: str, check: Callable[[], str]) -> Check:
    try:
        return Check(name=name, outcome=PASSED, detail=check())
    except _LeftOut as reason:
        return Check(name=name, outcome=LEFT_OUT, detail=str(reason))
    except _Broken as reason:
        return Check(name=name, outcome=FAILED, detail=str(reason))
    except TruebatchError as error:
        return Check(name=name, outcome=FAILED, detail=error.message)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        return Check(name=name, outcome=FAILED, detail=f"it cannot be read ({type(error).__name__}: {error})")


def _spec_and_schedule(record: Fields, key: Key) -> tuple[Sampler, Schedule]:
    """What the record says was drawn; a record that does not even say that is refused."""
    try:
        fields = dict(record["claim"]["spec"])
        spec = SAMPLERS[fields.pop("sampler")](**fields)
        draws = schedule_key(key, record)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise DamagedRun(
            f"a record must name its sampler; this one does not ({type(error).__name__}: {error})."
        ) from None
    return spec, schedule(spec, draws)


def _left_out_unsealed() -> str:
    raise _LeftOut("the record is not as it was sealed, so it may say anything")


def _steps(spec: Sampler, *, full: bool) -> list[int]:
    """All steps, or some that nobody could have known beforehand."""
    if full or spec.num_steps <= _SAMPLED_STEPS:
        return list(range(spec.num_steps))
    return sorted(secrets.SystemRandom().sample(range(spec.num_steps), _SAMPLED_STEPS))


def _seal(record: Fields, key: Key) -> str:
    if not Record(record).is_sealed_by(key):
        raise _Broken("the record was changed after it was sealed, or it was sealed by another key")
    return "sealed with HMAC-SHA256 by this key"


def _key(record: Fields, key: Key, drawn: Schedule) -> str:
    if record["key"]["check"] != key_check(key, drawn.fingerprint()):
        raise _Broken("the record names another key")
    if record["key"]["public"] is not key.is_public:
        raise _Broken("the record says otherwise whether the key is public")
    if key.is_public:
        return "it is a public test key: nothing drawn from it is secret, and the run protects nobody"
    return "its check agrees"


def _schedule(record: Fields, drawn: Schedule, steps: list[int]) -> str:
    said, spec = record["schedule"], drawn.spec
    found = {
        "scheme": SCHEME,
        "fingerprint": drawn.fingerprint(),
        "sampling_prob": str(drawn.sampling_prob),
        "statistical_distance": drawn.statistical_distance,
    }
    for name, value in found.items():
        if said[name] != value:
            raise _Broken(f"{name} is {said[name]} in the record, and {value} by the schedule")
    first = secrets.SystemRandom().randrange(max(1, spec.num_examples - _SAMPLED_ROWS))
    last = min(first + _SAMPLED_ROWS, spec.num_examples)
    placed = drawn.placements(first, last, steps=steps)
    for step in steps:
        members = drawn.members(step)
        here = placed.row[placed.step == step]
        if not np.array_equal(members[(members >= first) & (members < last)], here):
            raise _Broken(f"the two views of the schedule disagree at step {step}")
    return f"{_count(steps, spec)} drawn anew by step and by rows, and they agree"


def _noise(record: Fields, spec: Sampler) -> str:
    claim, goal = record["claim"], record["config"]["epsilon"]
    if claim["sigma"] is None:
        raise _LeftOut("the run added no noise and claims nothing")
    if claim["sigma"] != record["config"]["sigma"] and goal is None:
        raise _Broken(f"sigma was to be {record['config']['sigma']}, and is {claim['sigma']} in the claim")
    if goal is None:
        return f"sigma = {claim['sigma']:g}, as was asked for"
    reached = _epsilon(record, spec)
    if not reached <= goal * (1 + _TOLERANCE):
        raise _Broken(f"sigma = {claim['sigma']:g} gives epsilon = {reached:.6g}, and the goal was {goal:g}")
    return f"sigma = {claim['sigma']:g} gives epsilon = {reached:.6g} at delta = {claim['delta']:g}"


def _claim(record: Fields, spec: Sampler) -> str:
    claim = record["claim"]
    if claim["sigma"] is None:
        if claim["private"] or claim["epsilon"] is not None:
            raise _Broken("the record claims privacy without noise")
        return "no privacy is claimed"
    if claim["private"] is not (claim["accounted_as"] is None and claim["sigma"] > 0):
        raise _Broken("the record claims a guarantee for another sampler than the one that drew the batches")
    reached = _epsilon(record, spec)
    claimed = math.inf if claim["epsilon"] is None else claim["epsilon"]
    if not claimed >= reached * (1 - _TOLERANCE):
        raise _Broken(f"epsilon = {claimed:.6g} is claimed, and {reached:.6g} is what may be claimed")
    proven = claim["epsilon_lower"]
    if proven is not None and claim["accounted_as"] is None and not proven <= reached * (1 + _TOLERANCE):
        raise _Broken(
            f"epsilon is said to be at least {proven:.6g}, above {reached:.6g}, which may be claimed"
        )
    if claim["accounted_as"] is not None:
        return f"NO GUARANTEE, and the record says so: accounted as {claim['accounted_as']}"
    said = f"epsilon = {claimed:.6g} at delta = {claim['delta']:g} ({claim['adjacency']}) is an upper bound"
    if claim["num_runs"] == 1:
        return said
    return f"{said} for {claim['num_runs']} runs together; how many were made cannot be checked"


def _epsilon(record: Fields, spec: Sampler) -> float:
    """What may be claimed with the noise of the record, for the sampler that it is accounted as."""
    claim = record["claim"]
    if claim["accounted_as"] is not None:
        config = RunConfig.from_dict(record["config"])
        spec = config.spec(spec.num_examples, sampler=claim["accounted_as"])
    if claim["num_runs"] != record["config"]["tuning_runs"]:
        raise _Broken(f"the claim is of {claim['num_runs']} runs, and the config of another number")
    found = accounting.epsilon(
        upper_sampler_of_runs(spec, num_runs=claim["num_runs"]),
        sigma=effective_sigma(
            sigma=claim["sigma"], clip_norm=claim["clip_norm"], num_coordinates=claim["num_parameters"]
        ),
        delta=claim["delta"],
        adjacency=claim["adjacency"],
    ).upper
    return math.inf if found.value is None else float(found.value)


def _rows(record: Fields, directory: Path, key: Key, *, full: bool) -> str:
    stored = record["batches"]
    if stored["plan"] != "gather":
        raise _LeftOut("the run's batches were written, not gathered")
    rows = MappedSource.open(directory / ROWS / "train.rows")
    if under_key(rows.identity(), key) != stored["rows"]:
        raise _Broken("the prepared rows are others than those of the record")
    if not full:
        return "their digest is the record's; --full reads them all"
    rows.verify()
    return "all of them were read, and their digest is the record's"


def _batches(
    record: Fields, directory: Path, key: Key, drawn: Schedule, steps: list[int], *, full: bool
) -> str:
    stored = record["batches"]
    if stored["plan"] != "scatter":
        raise _LeftOut("the run gathered its batches and wrote none")
    batches = open_batches(directory / BATCHES)
    if under_key(batches.manifest["files"], key) != stored["files"] or batches.spec != drawn.spec:
        raise _Broken("the written batches are others than those of the record")
    for step in steps:
        (batch,) = batches.read(step, step + 1)
        if int(batch.weight.sum()) != len(drawn.members(step)):
            raise _Broken(f"batch {step} is not of the size that the schedule gives it")
    if not full:
        return f"{_count(steps, drawn.spec)} are of the schedule's sizes; --full reads every byte"
    batches.verify()
    return "every byte was read, and digests and sizes are those of record and schedule"


def _checkpoint(record: Fields, directory: Path) -> str:
    said = record["checkpoint"]
    path = directory / CHECKPOINTS / Path(said["file"]).name
    if not path.is_file():
        raise _Broken(f"{path} is missing")
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != said["sha256"]:
            raise _Broken(f"{path} was changed after the run")
    return f"{path.name} has the digest of the record"


def _data(
    record: Fields, directory: Path, key: Key, data: Source | None, drawn: Schedule, *, full: bool
) -> str:
    if data is None:
        raise _LeftOut("give --data to compare with the source")
    for name in ("train", "valid", "test"):
        said = record["data"][name]
        if said is None:
            continue
        found = under_key(json.loads(json.dumps(RowRange(data, *said["rows"]).identity())), key)
        if found != said:
            raise _Broken(f"the {name} rows differ in {difference(said, found)}")
    _split(record, data, drawn)
    rows = EncodedSource(
        RowRange(data, *record["data"]["train"]["rows"]), Features.from_dict(record["features"])
    )
    n = rows.num_rows
    if full:
        starts = range(0, n, _COMPARED_ROWS)
    else:
        starts = range(secrets.SystemRandom().randrange(max(1, n - _COMPARED_ROWS)), n, n)
    for first in starts:
        last = min(first + _COMPARED_ROWS, n)
        if not _same_rows(record, directory, rows, range(first, last), drawn, full=full):
            raise _Broken(f"rows {first} to {last - 1} are others than those the run was trained on")
    which = "all rows" if full else f"rows {starts[0]} to {min(starts[0] + _COMPARED_ROWS, n) - 1}"
    return f"the source is the one of the record; {which} were compared value by value"


def _split(record: Fields, data: Source, drawn: Schedule) -> None:
    """The rows of each part are those that the split gives, but for training rows that b does not divide."""
    parts = split_from_dict(record["split"]).parts(data)
    n = RunConfig.from_dict(record["config"]).num_examples(parts[0][1] - parts[0][0])
    expected = [[parts[0][0], parts[0][0] + n], *(None if part is None else list(part) for part in parts[1:])]
    found = [None if said is None else said["rows"] for said in (record["data"][name] for name in PARTS)]
    if found != expected or n != drawn.spec.num_examples:
        raise _Broken(f"the rows of the parts are {found} in the record, and {expected} by its split")


def _same_rows(
    record: Fields, directory: Path, rows: Source, these: range, drawn: Schedule, *, full: bool
) -> bool:
    """Whether some rows of the source are those that were prepared, or that stand in the written batches."""
    expected = pa.Table.from_batches(rows.read(these.start, these.stop), rows.schema)
    if record["batches"]["plan"] == "gather":
        stored = MappedSource.open(directory / ROWS / "train.rows")
        return bool(
            pa.Table.from_batches(stored.read(these.start, these.stop), stored.schema).equals(expected)
        )
    steps = _steps(drawn.spec, full=full)
    return _placed_as(expected, these.start, open_batches(directory / BATCHES), drawn, steps)


def _placed_as(rows: pa.Table, first: int, batches: FileBatches, drawn: Schedule, steps: list[int]) -> bool:
    """Whether these rows stand in the written batches wherever the schedule places them."""
    placed = drawn.placements(first, first + len(rows), steps=steps)
    for step in steps:
        (batch,) = batches.read(step, step + 1)
        here = placed.step == step
        found = pa.Table.from_batches([batch.record]).drop_columns(["weight"]).take(placed.slot[here])
        if not found.equals(rows.take(placed.row[here] - first)):
            return False
    return True


def _count(steps: list[int], spec: Sampler) -> str:
    return (
        f"all {len(steps)} steps"
        if len(steps) == spec.num_steps
        else f"{len(steps)} of {spec.num_steps} steps"
    )
