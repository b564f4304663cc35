"""schedule(spec, key): who joins which batch, as a pure function with two views that agree."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from truebatch.errors import InvalidArgument, InvalidKey
from truebatch.keys import Key
from truebatch.sampling.blocks import Int64s, KeyStream
from truebatch.sampling.plans import plan_for
from truebatch.sampling.tiling import Placements, Steps, Tiling
from truebatch.specs import Sampler, as_dict

# A new version of the scheme gives other batches for the same key; golden vectors hold each version still.
SCHEME = "truebatch-schedule/1"
_PURPOSE = "sampling"


class Plan(Protocol):
    """What a sampler provides; each gives its results chunk by chunk, in bounded memory."""

    tiling: Tiling

    @property
    def distance(self) -> Fraction:
        """Total variation distance to the ideal sampler, given uniform blocks."""

    @property
    def num_blocks(self) -> int:
        """A bound on how many blocks all batches use."""

    def sizes(self, steps: Steps) -> Iterator[Int64s]:
        """Batch sizes, in order, in pieces."""

    def batches(self, steps: range) -> Iterator[Int64s]:
        """Sorted rows of each step."""

    def placements(self, start: int, stop: int, steps: Steps) -> Iterator[Placements]:
        """Placements of rows, by step and then by row, in pieces."""


def schedule(spec: Sampler, key: Key) -> "Schedule":
    """The batches of `spec` under `key`. See docs/concepts/schedule.md for the scheme.

    >>> from truebatch.specs import Poisson
    >>> s = schedule(Poisson(num_examples=100, batch_size=3, num_steps=10), Key.for_tests(7))
    >>> [len(s.members(t)) for t in range(3)] == s.sizes(0, 3).tolist()
    True
    """
    if not isinstance(spec, Sampler):
        raise InvalidArgument(
            f"spec must be a sampler; got an object of type {type(spec).__name__}.",
            hint="use TruncatedPoisson(num_examples=..., batch_size=..., num_steps=..., max_batch_size=...).",
        )
    if not isinstance(key, Key):
        raise InvalidKey(
            f"key must be a Key; got an object of type {type(key).__name__}.",
            hint="use Key.generate(), Key.from_bytes(data) or Key.load(path).",
        )
    return Schedule(spec, key)


class Schedule:
    """The batches of one spec under one key, read by step or by rows.

    Guarantees:
      - Both views are the same yes/no matrix, on any machine, in any order, in any thread.
      - `members(t)` takes time in proportion to the batch; nothing is prepared in proportion to num_examples.
      - `placements` evaluates the tiles its rows are in and the counts of the others, never their rows.
      - Working memory beside the result is bounded (docs/concepts/schedule.md states the budget).
      - `repr` and `fingerprint()` are free of the key. Pickling raises: ship the spec and the key's bytes.
    Secret: everything this returns except fingerprint, sampling_prob, statistical_distance and tile_rows.
    """

    def __init__(self, spec: Sampler, key: Key) -> None:
        self.spec = spec
        plan, self._sampling_prob = plan_for(spec, KeyStream(key.derive(f"{_PURPOSE} {SCHEME}")))
        self._plan: Plan = plan

    @property
    def sampling_prob(self) -> Fraction:
        """The probability that one row joins one step, before any cut, exactly as it is drawn.

        For Poisson and TruncatedPoisson this is floor(2^64 b/n) / 2^64, at most b/n; otherwise b/n.
        """
        return self._sampling_prob

    @property
    def statistical_distance(self) -> float:
        """An upper bound on the total variation distance of all batches to the ideal sampler's, rounded up.

        Ideal: coins of probability `sampling_prob`. Covers the tables' rounding, and AES blocks being
        distinct where ideal ones would be independent. Not covered: an attack on AES-256, and for shuffled
        tiles of more than 4,096 rows one on the Feistel network.
        """
        plan = self._plan
        exact = min(plan.distance + Fraction(plan.num_blocks**2, 2**129), Fraction(1))
        value = float(exact)
        return value if Fraction(value) >= exact else math.nextafter(value, math.inf)

    @property
    def tile_rows(self) -> int:
        """Rows are evaluated in blocks of this many: ranges that begin and end on them waste nothing."""
        return self._plan.tiling.tile_rows

    def members(self, step: int) -> Int64s:
        """The row ids of batch `step`, sorted."""
        t = _whole("step", step)
        if not 0 <= t < self.spec.num_steps:
            raise InvalidArgument(
                f"step must be from 0 to num_steps-1; got step={t}, num_steps={self.spec.num_steps}."
            )
        return next(self._plan.batches(range(t, t + 1)))

    def batches(self, start_step: int = 0, stop_step: int | None = None) -> Iterator[Int64s]:
        """`members` of consecutive steps: several times faster a step when batches are small."""
        return self._plan.batches(self._step_range(start_step, stop_step))

    def sizes(self, start_step: int = 0, stop_step: int | None = None) -> Int64s:
        """The sizes of consecutive batches. As secret as the batches."""
        steps = self._step_range(start_step, stop_step)
        return np.concatenate([*self._plan.sizes(steps), np.empty(0, dtype=np.int64)])

    def placements(self, start: int, stop: int, *, steps: Steps | Sequence[int] | None = None) -> Placements:
        """Every (step, slot, row) of rows start..stop-1, in all steps or the given ones, as three arrays.

        `slot` is the row's position in `members(step)`. Ordered by step, then row. `steps` is a range or
        increasing step numbers.

        Guarantees:
          - members(step)[slot] == row for each placement, and no placement of these rows is missing.
        """
        blocks = self.placement_blocks(start, stop, steps=steps)
        num_steps = self.spec.num_steps if steps is None else len(steps)
        mean = (stop - start) * num_steps * float(self._sampling_prob)
        return _joined(blocks, room=int(mean + 6 * math.sqrt(mean)) + 64)

    def placement_blocks(
        self, start: int, stop: int, *, steps: Steps | Sequence[int] | None = None
    ) -> Iterator[Placements]:
        """The same as `placements`, in pieces of bounded size: for ranges too large to hold."""
        first, last, n = _whole("start", start), _whole("stop", stop), self.spec.num_examples
        if not 0 <= first <= last <= n:
            raise InvalidArgument(
                "rows must satisfy 0 <= start <= stop <= num_examples; "
                f"got start={first}, stop={last}, num_examples={n}."
            )
        return self._plan.placements(first, last, self._steps(steps))

    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the spec and the scheme. The same for every key."""
        text = json.dumps(
            {"scheme": SCHEME, "spec": as_dict(self.spec)}, sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(text.encode()).hexdigest()

    def _step_range(self, start_step: int, stop_step: int | None) -> range:
        T = self.spec.num_steps
        first = _whole("start_step", start_step)
        last = T if stop_step is None else _whole("stop_step", stop_step)
        if not 0 <= first <= last <= T:
            raise InvalidArgument(
                "steps must satisfy 0 <= start_step <= stop_step <= num_steps; "
                f"got start_step={first}, stop_step={last}, num_steps={T}."
            )
        return range(first, last)

    def _steps(self, steps: Steps | Sequence[int] | None) -> Steps:
        if steps is None:
            return range(self.spec.num_steps)
        if isinstance(steps, range) and steps.step == 1:
            return self._step_range(steps.start, max(steps.start, steps.stop)) if len(steps) else range(0)
        return _increasing(steps, num_steps=self.spec.num_steps)

    def __reduce__(self) -> NoReturn:
        raise InvalidKey(
            "a Schedule holds its key and is never pickled.",
            hint="ship the spec and key.to_bytes() on purpose, and call schedule(spec, key) there.",
        )

    def __repr__(self) -> str:
        return f"Schedule({self.spec!r}, fingerprint={self.fingerprint()[:16]}...)"


def _joined(blocks: Iterator[Placements], *, room: int) -> Placements:
    """All blocks as one, written where they belong as they come: small pieces that pile up cost far more."""
    columns = [np.empty(room, dtype=np.int64) for _ in Placements._fields]
    end = 0
    for block in blocks:
        start, end = end, end + len(block.row)
        if end > room:
            room = end + end // 2
            columns = [
                np.concatenate((column[:start], np.empty(room - start, np.int64))) for column in columns
            ]
        for column, piece in zip(columns, block, strict=True):
            column[start:end] = piece
    return Placements(*(column[:end] for column in columns))


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise InvalidArgument(f"{name} must be a whole number; got {name}={value!r}.")
    return int(value.__index__())


def _increasing(steps: Any, *, num_steps: int) -> npt.NDArray[np.int64]:
    try:
        array = np.asarray(steps)
    except (ValueError, OverflowError):
        array = np.empty((1, 1))
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidArgument(
            f"steps must be a range or a list of whole numbers; got an object of type {type(steps).__name__}."
        )
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= num_steps:
        raise InvalidArgument(
            f"steps must be from 0 to num_steps-1; got steps from {low} to {high}, num_steps={num_steps}."
        )
    array = array.astype(np.int64)
    if (np.diff(array) <= 0).any():
        raise InvalidArgument("steps must be increasing, each once.", hint="pass sorted(set(steps)).")
    return array
