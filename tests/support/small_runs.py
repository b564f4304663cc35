"""A small data set with truncated Poisson batches, and what a run on it needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from truebatch import Key, TruncatedPoisson, schedule
from truebatch.specs import Sampler
from truebatch.training.models import linear_model

MODEL = linear_model(buckets=(6, 4), num_numeric=3)
KEY = Key.for_tests(11)
SPEC = TruncatedPoisson(num_examples=900, batch_size=30, num_steps=40, max_batch_size=60)


def rows(n: int = SPEC.num_examples, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    i = rng.normal(size=(n, 3)).astype(np.float32)
    c = rng.integers(0, (6, 4), size=(n, 2)).astype(np.int32)
    score = i[:, 0] - 0.5 * i[:, 1] + (c[:, 0] % 2) - 0.5
    return {"i": i, "c": c, "label": (score + rng.logistic(size=n) > 0).astype(np.int8)}


@dataclass(frozen=True)
class GatheredBatches:
    """Batches of a schedule as columns; `padding` fills the rows of weight 0."""

    spec_: Sampler
    columns: dict[str, Any]
    size: int
    padding: float = 0

    def __len__(self) -> int:
        return self.spec_.num_steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        drawn = schedule(self.spec_, KEY)
        for step in range(self.spec_.num_steps):
            members = drawn.members(step)
            batch = {}
            for name, column in self.columns.items():
                with np.errstate(invalid="ignore"):
                    filler = np.full((self.size - len(members), *column.shape[1:]), self.padding).astype(
                        column.dtype
                    )
                batch[name] = np.concatenate([column[members], filler])
            yield batch | {"weight": (np.arange(self.size) < len(members)).astype(np.float32)}


def gathered(padding: float = 0, spec: Sampler = SPEC, size: int = SPEC.max_batch_size) -> GatheredBatches:
    return GatheredBatches(spec, rows(spec.num_examples), size, padding)
