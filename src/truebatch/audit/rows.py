"""Data sets whose rows are gradients: one direction a row, so that nothing else hides what a step does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

NOWHERE = -1


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Row i is `scale[i]` in direction `direction[i]` and zero elsewhere; NOWHERE is a row of zeros.

    Read like an array of float32 [rows, dimension], without being held as one: `len(rows)`, `rows[ids]`,
    `numpy.asarray(rows)`. The row is the gradient of the linear loss, row . parameters, before it is clipped.
    """

    direction: Ids
    scale: Floats
    dimension: int

    def __len__(self) -> int:
        return len(self.direction)

    def __getitem__(self, ids: Any) -> npt.NDArray[np.float32]:
        direction, scale = np.atleast_1d(self.direction[ids]), np.atleast_1d(self.scale[ids])
        dense = np.zeros((len(direction), self.dimension), np.float32)
        (here,) = np.nonzero(direction != NOWHERE)
        dense[here, direction[here]] = scale[here]
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[np.arange(len(self))].astype(dtype or np.float32)
