"""Data sets whose rows are gradients: one direction a row, so that nothing else hides what a step does."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Row `ids[i]` is `scale[i]` in direction `direction[i]`, all others `others` in direction 0; else zero.

    `ids` are increasing. Read like an array of float32 [rows, dimension], without being held as one:
    `len(rows)`, `rows[some_ids]`, `numpy.asarray(rows)`. A row is the gradient of the linear loss, row .
    parameters, before it is clipped.
    """

    num_rows: int
    dimension: int
    ids: Ids
    direction: Ids
    scale: Floats
    others: float = 0.0

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, ids: Any) -> npt.NDArray[np.float32]:
        wanted = np.atleast_1d(ids)
        dense = np.zeros((len(wanted), self.dimension), np.float32)
        dense[:, 0] = self.others
        place = np.searchsorted(self.ids, wanted)
        (named,) = np.nonzero(np.append(self.ids, -1)[place] == wanted)
        dense[named, 0] = 0
        dense[named, self.direction[place[named]]] = self.scale[place[named]]
        return dense

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self[np.arange(self.num_rows)].astype(dtype or np.float32)
