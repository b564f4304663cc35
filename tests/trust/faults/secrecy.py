"""Faults of secrecy: the key, or who was in which batch, is told in passing."""

import contextlib
import io
import logging
import pickle
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle
import numpy as np
import pyarrow as pa

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.batching import Batch, GatherBatches, Job, make_batches
from truebatch.batching.assemble import split
from truebatch.batching.engine import Task
from truebatch.batching.shipped import Drawn
from truebatch.data import TableSource
from truebatch.errors import IncompletePart, InvalidKey, TruebatchError
from truebatch.records import RECORD, Record, write_report
from truebatch.specs import SAMPLERS
from truebatch.training import Noise
from trust.fault import Check, Fault, replaced
from trust.faults.leaks import derived_keys, leak
from trust.faults.small_run import finished

KEY = Key.from_bytes(bytes(np.random.default_rng(19).bytes(32)))
SPEC = TruncatedPoisson(num_examples=3000, batch_size=40, num_steps=30, max_batch_size=90)

# The module, which the function of this name in its room would hide.
assembling = import_module("truebatch.batching.assemble")


def nothing_is_told(
    said: Iterable[tuple[str, bytes]], spec: Any = SPEC, derived: Iterable[bytes] = ()
) -> None:
    for what, text in said:
        found = leak(text, KEY, spec, derived)
        assert found is None, f"{what}: {found}"


def table() -> pa.Table:
    field = pa.field("x", pa.float32(), nullable=False)
    return pa.table([pa.array(np.zeros(SPEC.num_examples, np.float32))], pa.schema([field]))


def spec_of(directory: Path) -> Any:
    fields = dict(Record.load(directory).fields["claim"]["spec"])
    return SAMPLERS[fields.pop("sampler")](**fields)


# ---- Logs ----


def logs_tell_nothing() -> None:
    """All that a run logs at the lowest level, prints or warns of."""
    said, logger = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(said), logger.level
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        logger.addHandler(handler)
        stack.callback(logger.removeHandler, handler)
        stack.callback(logger.setLevel, level)
        logger.setLevel(logging.DEBUG)
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(said))
        derived = stack.enter_context(derived_keys())
        spec = spec_of(finished(Path(place), gathers=True, key=KEY))
    nothing_is_told([("a log", said.getvalue().encode())], spec, derived)


_MADE = GatherBatches._made


def logs_sizes(self: GatherBatches, steps: range) -> Iterator[Batch]:
    for batch in _MADE(self, steps):
        rows = int(batch.weight.sum())
        logging.getLogger("truebatch.batching").debug("step %d: a batch of %d rows", batch.step, rows)
        yield batch


# ---- Records, manifests and checkpoints ----


def files_tell_nothing() -> None:
    """All that a run leaves, but for the batches and rows themselves, which are as private as the data."""
    with tempfile.TemporaryDirectory() as place:
        with derived_keys() as derived:
            directory = finished(Path(place), key=KEY)
        write_report(Record.load(directory), directory)
        public = [
            path
            for path in sorted(directory.rglob("*"))
            if path.is_file() and path.suffix not in {".arrow", ".rows"}
        ]
        if not {RECORD, "manifest.json", "curves.csv", "report.html"} <= {path.name for path in public}:
            raise RuntimeError(f"a run does not leave what was to be read: {public}")
        nothing_is_told([(path.name, path.read_bytes()) for path in public], spec_of(directory), derived)


def manifests_tell_nothing() -> None:
    with tempfile.TemporaryDirectory() as place:
        make_batches(TableSource(table()), SPEC, f"{place}/batches", KEY)
        nothing_is_told([("a manifest", Path(place, "batches", "manifest.json").read_bytes())])


_OF_KEY, _BATCHES = (
    import_module("truebatch.records.run").__dict__[name] for name in ("_of_key", "_batches")
)
_DESCRIBE = import_module("truebatch.batching.make").describe
_META = import_module("truebatch.training.train").run_meta


def with_a_seed(plan: Any, key: Key, *more: Any) -> dict[str, Any]:
    return {**_OF_KEY(plan, key, *more), "seed": key.to_bytes().hex()}


def with_sizes(plan: Any, where: Path, key: Key, *means: Any) -> Any:
    batches, stored = _BATCHES(plan, where, key, *means)
    return batches, {**stored, "examples_seen": int(schedule(plan.spec, key).sizes().sum())}


def describes_sizes(job: Job, key: Key, identity: Any) -> dict[str, Any]:
    return {**_DESCRIBE(job, key, identity), "sizes": schedule(job.spec, key).sizes().tolist()}


def meta_with_a_seed(claim: Any, key: Key) -> dict[str, Any]:
    return {**_META(claim, key), "seed": list(key.to_bytes())}


# ---- Pickles and what is printed of an object ----


def holders() -> list[Any]:
    """What holds a key."""
    source = TableSource(table())
    job = Job(spec=SPEC, schema=source.schema)
    return [
        KEY,
        KEY.derive("something else"),
        schedule(SPEC, KEY),
        GatherBatches(source, SPEC, KEY),
        Task(job=job, source=source, key=KEY, directory=Path("nowhere"), parts=[0]),
        Noise(KEY, 1.0, 1.0),
        {"seed": KEY},
    ]


def pickles_tell_nothing() -> None:
    for holder, pickler in ((h, p) for h in holders() for p in (pickle, cloudpickle)):
        with contextlib.suppress(TruebatchError, TypeError, pickle.PicklingError):
            nothing_is_told([(f"a pickled {type(holder).__name__}", pickler.dumps(holder))])


def words_tell_nothing() -> None:
    shipped = Drawn.of(Job(spec=SPEC, schema=table().schema), KEY)
    for holder in [*holders(), shipped]:
        nothing_is_told([(f"a printed {type(holder).__name__}", f"{holder} {holder!r}".encode())])


def pickled(self: Key) -> Any:
    return Key.from_bytes, (self._secret,)


def printed(self: Key) -> str:
    return f"Key({self._secret!r})"


# ---- Exceptions ----


def errors_tell_nothing() -> None:
    """A key that is cut short, from memory and from a file; and parts whose rows have not all arrived."""
    cut = KEY.to_bytes()[:-1]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "key")
        path.write_bytes(cut)
        path.chmod(0o600)
        nothing_is_told(_errors(lambda: Key.from_bytes(cut), lambda: Key.load(path), lambda: KEY.save(path)))


def missing_rows_tell_nothing() -> None:
    job = Job(spec=SPEC, schema=table().schema)
    drawn, (piece,) = schedule(SPEC, KEY), table().to_batches()
    blocks = [block for _, block in split(job, drawn, piece, 0)]
    nothing_is_told(_errors(lambda: list(assembling.assemble(job, drawn, 0, blocks[1:]))))


def _errors(*attempts: Callable[[], object]) -> Iterator[tuple[str, bytes]]:
    """What each says as it fails, which it has to, with all that led there."""
    for attempt in attempts:
        try:
            attempt()
        except TruebatchError:
            yield "an error", traceback.format_exc().encode()
        else:
            raise RuntimeError("this was to fail")


def shows_the_bytes(cls: type[Key], data: bytes) -> NoReturn:
    raise InvalidKey(f"a key must be exactly 32 bytes; got {data!r}.")


_ASSEMBLE = assembling.assemble


def says_how_many(job: Job, drawn: Any, part: int, blocks: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from _ASSEMBLE(job, drawn, part, blocks)
    except IncompletePart as error:
        raise IncompletePart(f"{error.message} There must be {drawn.sizes().tolist()} rows.") from None


# ---- The faults ----

_RUN, _KEYS = "truebatch.records.run", "truebatch.keys"
_FILES = Check(name="nothing that a run leaves tells the key or who was drawn", run=files_tell_nothing)

FAULTS: tuple[Fault, ...] = (
    Fault(
        number=19,
        name="a log has the sizes of batches",
        how="The loader logs how many rows each batch has.",
        inject=partial(replaced, {"truebatch.batching.gather:GatherBatches._made": logs_sizes}),
        check=Check(name="no log or output of a run tells the key or who was drawn", run=logs_tell_nothing),
    ),
    Fault(
        number=19,
        name="a record has the seed",
        how="The record keeps the key in hexadecimal, so that the run can be reproduced.",
        inject=partial(replaced, {f"{_RUN}:_of_key": with_a_seed}),
        check=_FILES,
    ),
    Fault(
        number=19,
        name="a record counts the examples",
        how="The record says how many rows were drawn in all, as progress meters do.",
        inject=partial(replaced, {f"{_RUN}:_batches": with_sizes}),
        check=_FILES,
    ),
    Fault(
        number=19,
        name="a checkpoint has the seed",
        how="The header of a checkpoint keeps the bytes of the key, to go on with.",
        inject=partial(replaced, {"truebatch.training.train:run_meta": meta_with_a_seed}),
        check=_FILES,
    ),
    Fault(
        number=19,
        name="a manifest has the sizes of batches",
        how="The manifest lists how many rows each batch has, beside its padding.",
        inject=partial(replaced, {"truebatch.batching.make:describe": describes_sizes}),
        check=Check(name="no manifest tells the key or who was drawn", run=manifests_tell_nothing),
    ),
    Fault(
        number=19,
        name="a key is pickled",
        how="A key pickles as any object does, with whatever holds it.",
        inject=partial(replaced, {f"{_KEYS}:Key.__reduce__": pickled}),
        check=Check(name="no pickle of what holds a key tells it", run=pickles_tell_nothing),
    ),
    Fault(
        number=19,
        name="a key is printed",
        how="A key shows its bytes, as a dataclass would, wherever something that holds it is printed.",
        inject=partial(replaced, {f"{_KEYS}:Key.__repr__": printed}),
        check=Check(name="nothing that holds a key prints it", run=words_tell_nothing),
    ),
    Fault(
        number=19,
        name="an exception shows a key that was cut short",
        how="A key of the wrong length is shown in the error that refuses it.",
        inject=partial(replaced, {f"{_KEYS}:Key.from_bytes": classmethod(shows_the_bytes)}),
        check=Check(name="no error about a key shows a part of it", run=errors_tell_nothing),
    ),
    Fault(
        number=19,
        name="an exception says how many rows are missing",
        how="The error about an incomplete part says how many rows its batches must have.",
        inject=partial(replaced, {"truebatch.batching.assemble:assemble": says_how_many}),
        check=Check(name="no error about missing rows tells who was drawn", run=missing_rows_tell_nothing),
    ),
)
