"""A run that is stopped and started again does at every step what the run that was left alone does."""

import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from truebatch import Key, TruncatedPoisson
from truebatch.batching import GatherBatches
from truebatch.data import TableSource
from trust.fault import Check
from trust.faults.training.runs import Seen, run

SPEC = TruncatedPoisson(num_examples=400, batch_size=16, num_steps=12, max_batch_size=40)
WIDTH = 50


class Stopped(Exception):
    """Stands for whatever ends a process between two steps."""


def _source() -> TableSource:
    rng = np.random.default_rng(4)
    values = pa.array(rng.normal(size=SPEC.num_examples * WIDTH).astype(np.float32))
    return TableSource(pa.table({"x": pa.FixedSizeListArray.from_arrays(values, WIDTH)}))


def _loss(params: Any, example: Any) -> Any:
    return jnp.square(example["x"] @ params["w"] - 1)


def _attempt(seen: list[Seen], **more: Any) -> None:
    """A start of the run, as a new process makes it: nothing is at hand but source, spec and key."""
    key = Key.for_tests(8)
    batches = GatherBatches(_source(), SPEC, key.derive("batches"))
    params = {"w": jnp.zeros(WIDTH)}
    run(_loss, params, batches, spec=SPEC, sigma=1.0, clip_norm=0.5, key=key, seen=seen, **more)


def _resumes_with_the_same_bits() -> None:
    alone: list[Seen] = []
    _attempt(alone)
    assert [step.count for step in alone] == list(range(SPEC.num_steps))
    with tempfile.TemporaryDirectory() as directory:
        again: list[Seen] = []
        for last in (1, 4, 8, None):  # checkpoints are after steps 3, 6 and 9
            before = len(again)

            def watch(progress: Any, last: int | None = last) -> None:
                if progress.step == last:
                    raise Stopped

            try:
                _attempt(again, checkpoints=Path(directory), checkpoint_every=3, watch=watch)
            except Stopped:
                pass
            else:
                assert last is None
            first = 0 if last in (1, 4) else 3 if last == 8 else 6
            found = [step.count for step in again[before:]]
            assert found == list(range(first, last or SPEC.num_steps)), f"started at {first}, steps {found}"
    for step in again:
        same = _bits(step) == _bits(alone[step.count])
        assert same, f"step {step.count} is another one after a restart"


def _bits(step: Seen) -> bytes:
    return b"".join(leaf.tobytes() for leaf in (*step.gradient, *step.params))


RESUMES = Check(
    name="a run stopped three times hands its optimizer, at every step, the bits of a run left alone",
    run=_resumes_with_the_same_bits,
)
ALL = (RESUMES,)
