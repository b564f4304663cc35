import dataclasses

import jax
import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score
from small_runs import MODEL, rows

from truebatch.data import open_source
from truebatch.errors import InvalidData
from truebatch.training import evaluate as module
from truebatch.training.evaluate import evaluation

PARAMS = jax.tree.map(
    lambda x: x + np.linspace(-1, 1, x.size, dtype=np.float32).reshape(x.shape), MODEL.init(0)
)


def logits(data: dict[str, np.ndarray]) -> np.ndarray:
    assert MODEL.predict is not None
    return np.asarray(jax.vmap(MODEL.predict, (None, 0))(PARAMS, data), np.float64)


@pytest.mark.parametrize("count", [1, 99, 100, 101, 250])
def test_metrics_are_those_of_all_rows_whatever_the_chunks(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK", 100)
    data = rows(count, seed=2)
    data["label"][0] = 0
    found = evaluation(MODEL, data)(PARAMS)
    again = evaluation(MODEL, open_source(data))(PARAMS)
    assert found == again
    z = logits(data)
    assert abs(found["loss"] - log_loss(data["label"], 1 / (1 + np.exp(-z)), labels=[0, 1])) < 1e-5
    if count > 1:
        assert abs(found["auc"] - roc_auc_score(data["label"], z)) < 1e-9


def test_auc_needs_labels_of_both_kinds_and_a_prediction() -> None:
    data = rows(50)
    assert evaluation(MODEL, data | {"label": np.ones(50, np.int8)})(PARAMS).keys() == {"loss"}
    assert evaluation(dataclasses.replace(MODEL, predict=None), data)(PARAMS).keys() == {"loss"}
    assert evaluation(MODEL, data)(PARAMS).keys() == {"loss", "auc"}


def test_no_rows_are_no_validation() -> None:
    with pytest.raises(InvalidData, match="at least one row"):
        evaluation(MODEL, {name: x[:0] for name, x in rows(5).items()})(PARAMS)
