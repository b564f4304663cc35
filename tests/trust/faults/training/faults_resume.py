"""Family 14: what a run does again after it was stopped, and should have done the same."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import jax

from truebatch import Key
from truebatch.batching import GatherBatches
from truebatch.batching.batches import Batch
from truebatch.training import checkpoint, feed
from truebatch.training.noise import Noise
from trust.faults.training.check_resume import RESUMES
from trust.faults.training.injecting import TRAIN, fault, mutated, noise_by, plus, pure_noise

CHECKPOINT = "truebatch.training.checkpoint"


def _noise_counted_from_the_start() -> AbstractContextManager[None]:
    """A generator that is seeded when a process starts and goes on from call to call."""
    calls: dict[int, tuple[Noise, int]] = {}

    def add(noise: Noise, step: int, total: Any, batch: Any) -> Any:
        _, count = calls.get(id(noise), (noise, 0))
        calls[id(noise)] = noise, count + 1  # holds on to it, so that no other has its id
        return plus(total, pure_noise(noise, count, total))

    return noise_by(add)


def _noise_from_the_system() -> AbstractContextManager[None]:
    class Fresh(Noise):
        def __init__(self, key: Key, sigma: float, clip_norm: float) -> None:
            super().__init__(Key.generate(), sigma, clip_norm)

    return mutated({f"{TRAIN}:Noise": Fresh})


def _batches_from_the_first() -> AbstractContextManager[None]:
    def batches_from(batches: Any, step: int, spec: Any, *, like: Any) -> Iterator[Any]:
        found = feed.batches_from(batches, 0, spec, like=like)
        return (arrays for arrays, _ in zip(found, range(step, spec.num_steps), strict=False))

    return mutated({f"{TRAIN}:batches_from": batches_from})


def _batches_drawn_again() -> AbstractContextManager[None]:
    init, read = GatherBatches.__init__, GatherBatches.read

    def with_key(self: Any, source: Any, spec: Any, key: Key, **named: Any) -> None:
        init(self, source, spec, key, **named)
        self.given = source, key

    def drawn_again(self: Any, start_step: int = 0, stop_step: int | None = None) -> Iterator[Batch]:
        if not start_step:
            return read(self, start_step, stop_step)
        source, key = self.given
        other = object.__new__(GatherBatches)
        init(other, source, self.spec, key.derive(f"from {start_step}"))
        return read(other, start_step, stop_step)

    place = "truebatch.batching.gather:GatherBatches"
    return mutated({f"{place}.__init__": with_key, f"{place}.read": drawn_again})


def _a_step_behind() -> AbstractContextManager[None]:
    save = checkpoint.save
    return mutated(
        {f"{CHECKPOINT}:save": lambda folder, step, state, meta: save(folder, step - 1, state, meta)}
    )


def _optimizer_anew() -> AbstractContextManager[None]:
    latest = checkpoint.latest

    def without_state(directory: Any, *, like: Any, expect: Any) -> Any:
        found = latest(directory, like=like, expect=expect)
        if found is None:
            return None
        params, _ = found.state
        return found._replace(state=(params, jax.tree.map(jax.numpy.zeros_like, like[1])))

    return mutated({f"{CHECKPOINT}:latest": without_state})


FAULTS = (
    fault(
        14,
        "noise begins anew when a run goes on",
        "Noise is counted by calls since the process started: step 3 has the noise of step 0.",
        _noise_counted_from_the_start,
        RESUMES,
    ),
    fault(
        14,
        "a step that is done again has other noise",
        "Noise comes from the operating system at each start: two noised sums of one batch are averaged.",
        _noise_from_the_system,
        RESUMES,
    ),
    fault(
        14,
        "batches begin anew when a run goes on",
        "The first batches are read again, whatever the step is.",
        _batches_from_the_first,
        RESUMES,
    ),
    fault(
        14,
        "batches are drawn again when a run goes on",
        "What is left of the run is drawn by a key that depends on where it begins.",
        _batches_drawn_again,
        RESUMES,
    ),
    fault(
        14,
        "a checkpoint is named for the step before",
        "The last step before a stop is taken twice.",
        _a_step_behind,
        RESUMES,
    ),
    fault(
        14,
        "the optimizer begins anew when a run goes on",
        "Parameters come back from a checkpoint, and the state of the optimizer does not.",
        _optimizer_anew,
        RESUMES,
    ),
)
