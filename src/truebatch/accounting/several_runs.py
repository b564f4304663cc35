"""K runs of one sampler on the same rows, each with coins and noise of its own: whose bounds hold for all.

Every step of every run is the same mechanism on the same rows, whatever was seen before it, so K runs of T
steps compose as one run of K T steps; choosing among their models, or stopping one early, looks at nothing
else. So the best of K runs is covered where all K are. The runs may differ in whatever the bounds do not
depend on: learning rate, optimizer, initial parameters. They must not share batches: coins that two runs
share are drawn once, and twice the steps on them are not twice the mechanism.
"""

import dataclasses

from truebatch.errors import InvalidArgument
from truebatch.specs import Deterministic, DynamicShuffle, PersistentShuffle, Sampler


def upper_sampler_of_runs(spec: Sampler, *, num_runs: int, last_steps: int | None = None) -> Sampler:
    """A sampler whose upper bounds hold for K runs together; of the last one, only `last_steps` where given.

    The same one with K T steps, but for a shuffle that persists: K runs are K shuffles and not one. With one
    epoch each, that is a dynamic shuffle of K epochs; with more, given where the example falls in every run,
    its K E releases are Gaussian mechanisms, and the bound without amplification holds, that of the
    deterministic sampler, by joint convexity.

    >>> upper_sampler_of_runs(PersistentShuffle(num_examples=20, batch_size=10, num_steps=4), num_runs=3)
    Deterministic(num_examples=20, batch_size=10, num_steps=12)
    """
    _require_runs(num_runs)
    steps = (num_runs - 1) * spec.num_steps + (spec.num_steps if last_steps is None else last_steps)
    if isinstance(spec, PersistentShuffle) and num_runs > 1:
        kind = DynamicShuffle if spec.whole_epochs == 1 else Deterministic
        return kind(num_examples=spec.num_examples, batch_size=spec.batch_size, num_steps=steps)
    return dataclasses.replace(spec, num_steps=steps)


def lower_sampler_of_runs(spec: Sampler, *, num_runs: int) -> Sampler:
    """A sampler whose lower bounds hold for K runs together.

    The same one with K T steps; for a shuffle that persists over several epochs a single run, since all of
    them leak at least what one does.

    >>> lower_sampler_of_runs(PersistentShuffle(num_examples=20, batch_size=10, num_steps=4), num_runs=3)
    PersistentShuffle(num_examples=20, batch_size=10, num_steps=4)
    """
    if isinstance(spec, PersistentShuffle) and spec.whole_epochs > 1:
        return spec
    return upper_sampler_of_runs(spec, num_runs=num_runs)


def _require_runs(num_runs: int) -> None:
    if isinstance(num_runs, bool) or not isinstance(num_runs, int) or num_runs < 1:
        raise InvalidArgument(f"num_runs must be a whole number of at least 1; got num_runs={num_runs!r}.")
