"""The main job: from data to a model with a guarantee, and the record of it."""

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optax

from truebatch.batching import Batches, GatherBatches, make_batches, open_batches, output
from truebatch.batching import Progress as Moved
from truebatch.batching.engine import WORK, no_progress
from truebatch.batching.journal import write_aside
from truebatch.batching.manifest import MANIFEST
from truebatch.data import EncodedSource, MappedSource, RowRange, prepare
from truebatch.errors import DamagedRun, OutputRefused, SourceChanged
from truebatch.keys import Key
from truebatch.records.bounds import comparison
from truebatch.records.plan import RunPlan
from truebatch.records.record import (
    BATCHES,
    CHECKPOINTS,
    CURVES,
    FORMAT,
    RECORD,
    ROWS,
    Fields,
    Record,
    key_check,
    schedule_key,
    under_key,
    versions,
)
from truebatch.sampling import SCHEME, schedule
from truebatch.training import optimizers
from truebatch.training.evaluate import evaluation
from truebatch.training.train import Progress, Trained, train

_JOB = "job.json"


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Who is told how far a run has come."""

    rows: Callable[[Moved], None] = no_progress
    steps: Callable[[Progress], None] = lambda _: None


def run(
    plan: RunPlan,
    directory: str | os.PathLike[str],
    key: Key,
    *,
    memory: int = 2**30,
    constant_time: bool = False,
    watch: Watch | None = None,
) -> Record:
    """Carry out a plan in a directory, from where an earlier call was stopped, and return its record.

    `memory` and `constant_time` are means: they change no bit of what comes out.

    Guarantees:
      - A directory of another plan or key, or in use, is refused and left as it is.
      - The record is written last, and sealed: a directory without one is not finished.
    """
    where, watch = Path(directory), watch or Watch()
    with output.claimed(where, made=RECORD):
        asked = json.loads(json.dumps(plan.as_dict()))
        draws = schedule_key(key, _public(asked, key))
        asked |= _of_key(plan, key, draws)
        if (where / RECORD).exists():
            record = Record.load(where)
            _require_same(where, record.fields, _public(asked, key), key)
            if not record.is_sealed_by(key):
                raise DamagedRun(
                    f"a finished run's record must be as it was sealed; that of {str(where)!r} was changed.",
                    hint="'truebatch verify' says what does not hold; another run needs another directory.",
                )
        else:
            _begin(where, asked, key)
            record = _carry_out(plan, where, key, draws, asked, memory, watch, constant_time)
        output.clear(where)
    return record


def _of_key(plan: RunPlan, key: Key, draws: Key) -> Fields:
    drawn = schedule(plan.spec, draws)
    fingerprint = drawn.fingerprint()
    return {
        "schedule": {
            "scheme": SCHEME,
            "fingerprint": fingerprint,
            "sampling_prob": str(drawn.sampling_prob),
            "statistical_distance": drawn.statistical_distance,
        },
        "key": {"public": key.is_public, "check": key_check(key, fingerprint)},
    }


def _public(asked: Fields, key: Key) -> Fields:
    """What was asked for as the record says it; the file in the unfinished directory has it in the clear."""
    return {**asked, "data": under_key(asked["data"], key)}


def _begin(where: Path, asked: Fields, key: Key) -> None:
    path = where / WORK / _JOB
    if path.exists():
        _require_same(where, output.begun_as(path), asked, key)
    else:
        write_aside(path, json.dumps(asked))


def _require_same(where: Path, found: Fields, asked: Fields, key: Key) -> None:
    # The key first: under another one, the same data have other tags.
    if not _is_of(found, key):
        raise OutputRefused(
            f"a directory holds one run; {str(where)!r} has another key.",
            hint="give the key that it was begun with, or choose another directory.",
        )
    if found.get("data") != asked["data"]:
        raise SourceChanged(
            f"the source must be the one that {str(where)!r} was begun with; it differs in "
            f"{output.difference(found.get('data'), asked['data'])}.",
            hint="give the original source, or choose another directory for a run on this one.",
        )
    for name, value in asked.items():
        if found.get(name) != value:
            raise OutputRefused(
                f"a directory holds one run; {str(where)!r} has another {name}: "
                f"{output.difference(found.get(name), value)}.",
                hint="give the same arguments and key, or choose another directory.",
            )


def _is_of(found: Fields, key: Key) -> bool:
    drawn, said = found.get("schedule"), found.get("key")
    if not (isinstance(drawn, dict) and isinstance(said, dict)):
        return False
    return said.get("check") == key_check(key, str(drawn.get("fingerprint")))


def _carry_out(
    plan: RunPlan,
    where: Path,
    key: Key,
    draws: Key,
    asked: Fields,
    memory: int,
    watch: Watch,
    constant_time: bool,
) -> Record:
    """`key` is the run's, `draws` what its batches are drawn with."""
    began, bounds = time.monotonic(), comparison(plan)
    batches, stored = _batches(plan, where, key, draws, memory, watch)
    valid, test = (
        _prepared(plan, rows, where, name, watch)
        for rows, name in ((plan.valid, "valid"), (plan.test, "test"))
    )
    trained = train(
        plan.model,
        batches,
        key=noise_key(key, asked),
        privacy=plan.claim.privacy,
        accounted_as=plan.claim.accounted_as,
        optimizer=optimizer_of(plan),
        seed=plan.config.seed,
        constant_time=constant_time,
        validation=valid,
        checkpoints=where / CHECKPOINTS,
        curves=where / CURVES,
        watch=watch.steps,
    )
    metrics = {f"valid_{name}": value for name, value in trained.metrics.items()}
    if test is not None:
        metrics |= {
            f"test_{name}": value for name, value in evaluation(plan.model, test)(trained.params).items()
        }
    record = Record(
        {
            "format": FORMAT,
            **_public(asked, key),
            "bounds": bounds,
            "batches": stored,
            "checkpoint": last_checkpoint(where),
            "metrics": metrics,
            "training": _training(trained),
            "versions": versions(),
            "seconds": {"wall": round(time.monotonic() - began, 1), "stepping": round(trained.seconds, 1)},
        }
    ).sealed(key)
    record.save(where)
    return record


def noise_key(key: Key, asked: Fields) -> Key:
    """The key of a run's noise: another as soon as anything that was asked for differs, the data included.

    Two runs on neighbouring data with one noise would cancel it in their difference.
    """
    text = json.dumps(asked, sort_keys=True, separators=(",", ":"))
    return key.derive(f"noise of the run {hashlib.sha256(text.encode()).hexdigest()}")


def last_checkpoint(where: Path) -> Fields:
    """Name, size and SHA-256 of the file that holds the trained model."""
    path = max((where / CHECKPOINTS).glob("step-*"), key=lambda p: p.name)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest}


def _training(trained: Trained) -> Fields:
    return {"road": trained.road, "claim": str(trained.claim)}


def _batches(
    plan: RunPlan, where: Path, key: Key, draws: Key, memory: int, watch: Watch
) -> tuple[Batches, Fields]:
    """Batches by the plan that suits, and what is kept of them."""
    if plan.gathers:
        rows = _prepared(plan, plan.train, where, "train", watch)
        assert rows is not None
        return GatherBatches(rows, plan.spec, draws), {
            "plan": "gather",
            "rows": under_key(rows.identity(), key),
        }
    source, stood = EncodedSource(plan.train, plan.features), (where / BATCHES / MANIFEST).exists()
    manifest = make_batches(source, plan.spec, where / BATCHES, draws, memory=memory, advance=watch.rows)
    batches = open_batches(where / BATCHES)
    if stood:  # what an earlier call left is read before it is gone on with
        batches.verify()
    return batches, {"plan": "scatter", "files": under_key(manifest["files"], key)}


def _prepared(
    plan: RunPlan, rows: RowRange | None, where: Path, name: str, watch: Watch
) -> MappedSource | None:
    if rows is None:
        return None
    (where / ROWS).mkdir(mode=0o700, exist_ok=True)

    def advance(done: int, total: int) -> None:
        watch.rows(Moved(phase=f"{name} rows", done=done, total=total, num_bytes=0))

    path = where / ROWS / f"{name}.rows"
    stood = path.exists()
    prepared = prepare(rows, path, plan.features, progress=advance)
    if stood:
        prepared.verify()
    return prepared


def optimizer_of(plan: RunPlan) -> optax.GradientTransformation:
    """The optimizer of a config, its rate falling to zero over the run when the schedule is cosine."""
    config, T = plan.config, plan.spec.num_steps
    rate: optimizers.LearningRate = config.learning_rate
    if config.schedule == "cosine":
        rate = optimizers.cosine_decay(config.learning_rate, num_steps=T)
    if config.optimizer == "adagrad":
        return optimizers.adagrad(rate)
    return optimizers.adam(rate) if config.optimizer == "adam" else optimizers.sgd(rate)
