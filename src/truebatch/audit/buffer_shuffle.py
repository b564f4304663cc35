"""The buffer shuffle of data pipes, for study alone: nothing trains with it and nothing claims it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np

from truebatch.audit.rows import Floats, Ids
from truebatch.errors import InvalidArgument, InvalidKey, InvalidSpec
from truebatch.keys import Key
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.specs import Deterministic, DynamicShuffle, Sampler


@dataclass(frozen=True, kw_only=True)
class BufferShuffle(Sampler):
    """In each epoch rows pass through a buffer of K, and batches are cut from what comes out.

    The buffer is filled with the first K rows. Each output is a uniform element of the buffer, and the next
    row takes its place; after the last row the buffer is emptied in the same way. K = 1 is the order of the
    data, K = n a full shuffle.

    Guarantees:
      - Every row is in exactly one batch of each epoch.
    No guarantee: that a row may end up anywhere. Row i never comes out before output i - K + 1, and the last
    row is uniform over the last K outputs.
    It is not one of `truebatch.specs.SAMPLERS`: no schedule, accountant or command takes it.
    """

    buffer_size: int

    name: ClassVar[str] = "buffer_shuffle"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.fixed_order  # whole epochs are checked there
        if not 1 <= self.buffer_size <= self.num_examples:
            raise InvalidSpec(
                "buffer_size must be from 1 to num_examples; "
                f"got buffer_size={self.buffer_size}, num_examples={self.num_examples}."
            )

    @property
    def fixed_order(self) -> Deterministic:
        """The sampler whose upper bound holds here too.

        The order of rows does not depend on their values, each row is used once an epoch in every order, and
        for every single order the mechanism is that of Theorem 3.1. The mixture over orders can only be
        nearer: the hockey-stick divergence is jointly convex.
        """
        return Deterministic(
            num_examples=self.num_examples, batch_size=self.batch_size, num_steps=self.num_steps
        )

    @property
    def shuffle_of_the_end(self) -> DynamicShuffle | None:
        """The full shuffle that hides the last row as well: over the K/b last batches, or the last one.

        Its lower bound holds here too. None where K is above b and b does not divide it.
        """
        b, E = self.batch_size, self.num_steps * self.batch_size // self.num_examples
        K = max(self.buffer_size, b)
        if K % b:
            return None
        return DynamicShuffle(num_examples=K, batch_size=b, num_steps=E * (K // b))


def last_row_prob(spec: BufferShuffle) -> Floats:
    """The probability of each step of an epoch to hold the last row: it is uniform over the last K outputs.

    >>> last_row_prob(BufferShuffle(num_examples=8, batch_size=2, num_steps=4, buffer_size=3)).round(3)
    array([0.   , 0.   , 0.333, 0.667])
    """
    n, b, K = spec.num_examples, spec.batch_size, spec.buffer_size
    counts = np.bincount(np.arange(n - K, n) // b, minlength=n // b)
    return counts / K


class BufferSchedule:
    """The batches of one buffer shuffle under one key, with what a schedule answers that is read by step.

    Guarantees:
      - A batch is a function of (spec, key, step): no state of a generator is kept.
      - Every draw is uniform up to K / 2^64.
    """

    def __init__(self, spec: BufferShuffle, key: Key) -> None:
        self.spec = spec
        self._stream = KeyStream(key.derive("audit buffer shuffle"))

    def members(self, step: int) -> Ids:
        """The row ids of batch `step`, sorted."""
        if not 0 <= step < self.spec.num_steps:
            raise InvalidArgument(
                f"step must be from 0 to num_steps-1; got step={step}, num_steps={self.spec.num_steps}."
            )
        b, S = self.spec.batch_size, self.spec.num_examples // self.spec.batch_size
        within = step % S * b
        return np.sort(self.order(step // S)[within : within + b])

    def batches(self) -> Iterator[Ids]:
        """`members` of all steps, each epoch's order drawn once."""
        n, b = self.spec.num_examples, self.spec.batch_size
        for epoch in range(self.spec.num_steps * b // n):
            yield from np.sort(self.order(epoch).reshape(n // b, b), axis=1)

    def order(self, epoch: int) -> Ids:
        """All rows in the order in which they leave the buffer."""
        n, K = self.spec.num_examples, self.spec.buffer_size
        held = np.minimum(K, n - np.arange(n))
        words = self._stream.draw(Purpose.MOVE, epoch, 0, np.arange(n))[:, 0]
        picks = (words % held.astype(np.uint64)).tolist()
        buffer, out = list(range(K)), []
        for following, pick in enumerate(picks, start=K):
            out.append(buffer[pick])
            last = following if following < n else buffer.pop()
            if pick < len(buffer):
                buffer[pick] = last
        return np.array(out)

    def __reduce__(self) -> NoReturn:
        raise InvalidKey("a BufferSchedule holds its key and is never pickled.")

    def __repr__(self) -> str:
        return f"BufferSchedule({self.spec!r})"
