"""Faults of runs and their records: what is said of a run is not what ran."""

import json
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from truebatch import Key, records
from truebatch.batching import make_batches
from truebatch.data import EncodedSource, Features, RowRange
from truebatch.records import RECORD, Record, RunConfig, verify
from truebatch.records.verify import FAILED, LEFT_OUT
from truebatch.specs import SAMPLERS
from trust.fault import Check, Fault, replaced
from trust.faults.batches import shuffled
from trust.faults.small_run import KEY, finished, source

Fields = dict[str, Any]
Injection = Callable[[], AbstractContextManager[None]]

SEAL = "the record is as the key's holder wrote it"
SCHEDULE = "the schedule is the sampler's"
NOISE = "the noise is what the goal needs"
CLAIM = "the claim is what the accountant says"
BATCHES = "the written batches are the schedule's"
MODEL = "the model is the run's"


def holds(statement: str, **config: Any) -> None:
    """A run that has just been made, and one statement of `verify` about it, with all that it can read."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        directory = finished(place, **config)
        found = verify(directory, KEY, data=source(place), full=True)
        (check,) = (check for check in found if check.name == statement)
        if check.outcome == LEFT_OUT or "cannot be read" in check.detail:
            raise RuntimeError(f"verify did not come to check this: {check.detail}")
        assert check.outcome != FAILED, check.detail


def says(statement: str, **config: Any) -> Check:
    """The check that `verify` makes this statement."""
    return Check(name=f"verify: {statement}", run=partial(holds, statement, **config))


# ---- 20. A record is edited after the run ----

_RUN = records.run


def then(change: Callable[[Path], None]) -> Injection:
    """The main job, and then somebody who changes something in its directory."""

    def run(plan: Any, directory: Path, key: Key, **more: Any) -> Record:
        record = _RUN(plan, directory, key, **more)
        change(directory)
        return record

    return partial(replaced, {"truebatch.records:run": run})


def edited(change: Callable[[Fields], object], *, seal: Key | None = None) -> Injection:
    """The record changed by hand; and sealed again, by one who has a key."""

    def edit(directory: Path) -> None:
        fields = json.loads((directory / RECORD).read_text())
        change(fields)
        record = Record(fields) if seal is None else Record(fields).sealed(seal)
        record.save(directory)

    return then(edit)


def halve_sigma(record: Fields) -> None:
    record["claim"]["sigma"] /= 2


def halve_epsilon(record: Fields) -> None:
    record["claim"]["epsilon"] /= 2


def halve_steps(record: Fields) -> None:
    record["claim"]["spec"]["num_steps"] //= 2


def name_another_sampler(record: Fields) -> None:
    spec = record["claim"]["spec"]
    del spec["max_batch_size"]
    spec["sampler"] = "poisson"


def hide_the_mistake(record: Fields) -> None:
    record["claim"].update(accounted_as=None, private=True, epsilon_direction="upper")


def flip(pattern: str) -> Injection:
    """One bit in the middle of a file."""

    def change(directory: Path) -> None:
        *_, path = sorted(directory.glob(pattern))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return then(change)


def other_batches(directory: Path) -> None:
    """A whole set of batches, with a manifest that is true of them, drawn by a key that suits better."""
    record = json.loads((directory / RECORD).read_text())
    spec = dict(record["claim"]["spec"])
    spec = SAMPLERS[spec.pop("sampler")](**spec)
    rows = RowRange(source(directory.parent), 0, spec.num_examples)
    encoded = EncodedSource(rows, Features.from_dict(record["features"]))
    (directory / "batches").rename(directory / "first")
    make_batches(encoded, spec, directory / "batches", Key.for_tests(1))


# ---- 4. Steps are lost ----


def epochs_have_whole_steps() -> None:
    """Where b divides n an epoch has n/b steps, and E epochs have E times as many."""
    for S in range(1, 300):
        for b, E in ((1, 1), (7, 3)):
            config = RunConfig(batch_size=b, epochs=E, sampler="poisson", sigma=1.0, delta=1e-5)
            steps = config.spec(S * b).num_steps
            assert steps == S * E, f"{E} epochs of {S} steps have {steps}"


def int_steps_for_epochs(*, num_examples: int, batch_size: int, num_epochs: float) -> int:
    return int(num_epochs * int(1 / (batch_size / num_examples)))


# ---- The faults ----

FAULTS: tuple[Fault, ...] = (
    Fault(
        number=4,
        name="epochs become steps by int(1/q)",
        how="A run has E int(1/q) steps, with q = b/n as a float: 92 for n = 93 and b = 1.",
        inject=partial(replaced, {"truebatch.records.config:steps_for_epochs": int_steps_for_epochs}),
        check=Check(name="a run of E epochs of S whole steps has E S of them", run=epochs_have_whole_steps),
    ),
    Fault(
        number=6,
        name="the engine shuffles what it writes",
        how="Written batches walk through a shuffle, and manifest and record say truncated Poisson.",
        inject=partial(replaced, {"truebatch.batching.local:schedule": shuffled}),
        check=says(BATCHES),
    ),
    Fault(
        number=6,
        name="a shuffled run hides what it was accounted as",
        how="After a run of shuffled batches with Poisson's noise, the key's holder strikes out of the "
        "record that it has no guarantee, and seals it again.",
        inject=edited(hide_the_mistake, seal=KEY),
        check=says(CLAIM, sampler="dynamic_shuffle", accounted_as="poisson"),
    ),
    Fault(
        number=20,
        name="sigma is edited",
        how="Half of sigma is written into the record.",
        inject=edited(halve_sigma),
        check=says(SEAL),
    ),
    Fault(
        number=20,
        name="sigma is edited and sealed again",
        how="The same, by the key's holder.",
        inject=edited(halve_sigma, seal=KEY),
        check=says(NOISE),
    ),
    Fault(
        number=20,
        name="epsilon is edited and sealed again",
        how="Half of epsilon is claimed, by the key's holder.",
        inject=edited(halve_epsilon, seal=KEY),
        check=says(CLAIM),
    ),
    Fault(
        number=20,
        name="epochs are edited and sealed again",
        how="Half of the steps are written into the record, by the key's holder.",
        inject=edited(halve_steps, seal=KEY),
        check=says(SCHEDULE),
    ),
    Fault(
        number=20,
        name="the sampler is edited and sealed again",
        how="The record says Poisson without a cap, by the key's holder.",
        inject=edited(name_another_sampler, seal=KEY),
        check=says(SCHEDULE),
    ),
    Fault(
        number=20,
        name="the seal is another key's",
        how="A metric is edited, and the record sealed with a key that somebody made up.",
        inject=edited(lambda record: record["metrics"].update(test_auc=0.99), seal=Key.for_tests(1)),
        check=says(SEAL),
    ),
    Fault(
        number=20,
        name="a batch is edited",
        how="One bit of a file of batches is flipped.",
        inject=flip("batches/part-*.arrow"),
        check=says(BATCHES),
    ),
    Fault(
        number=20,
        name="the batches are another set",
        how="The written batches are replaced by others of the same spec and rows, with a manifest "
        "that is true of them.",
        inject=then(other_batches),
        check=says(BATCHES),
    ),
    Fault(
        number=20,
        name="the model is edited",
        how="One bit of the last checkpoint is flipped.",
        inject=flip("checkpoints/*.checkpoint"),
        check=says(MODEL),
    ),
)
