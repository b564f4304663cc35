"""Metrics are scikit-learn's, at once and piece by piece."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score
from sklearn.metrics import log_loss as sklearn_log_loss

from truebatch.errors import InvalidArgument, InvalidData
from truebatch.training.metrics import StreamingMetrics, accuracy, auc, log_loss

ROWS = st.lists(
    st.tuples(st.booleans(), st.integers(-6, 6), st.integers(0, 3)), min_size=4, max_size=60
).filter(lambda rows: {label for label, _, weight in rows if weight} == {True, False})


def example(n: int = 20_000, seed: int = 0, *, decimals: int | None = None):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    logits = rng.normal(size=n) * 3 + labels
    if decimals is not None:
        logits = np.round(logits, decimals)
    return labels, logits, rng.uniform(0, 2, n)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("decimals", [None, 0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_are_those_of_scikit_learn(decimals, weighted):
    y, x, w = example(decimals=decimals)
    w = w if weighted else None
    assert auc(y, x, w) == pytest.approx(roc_auc_score(y, x, sample_weight=w), abs=1e-12)
    assert log_loss(y, x, w) == pytest.approx(sklearn_log_loss(y, sigmoid(x), sample_weight=w), rel=1e-9)
    assert accuracy(y, x, w) == pytest.approx(accuracy_score(y, x > 0, sample_weight=w), abs=1e-12)


def test_the_area_counts_equal_scores_as_one_half_and_not_in_order_of_rows():
    y, x, _ = example(decimals=0)
    order = np.argsort(-y, kind="stable")
    assert auc(y[order], x[order]) == pytest.approx(auc(y[order[::-1]], x[order[::-1]]), abs=1e-12)
    assert auc([1, 0], [2.0, 2.0]) == 0.5


@given(rows=ROWS)
@settings(max_examples=100, deadline=None)
def test_the_area_is_the_share_of_pairs(rows):
    y, x, w = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    pairs = (w * y)[:, None] * (w * (1 - y))[None, :]
    wins = np.where(x[:, None] > x, 1.0, np.where(x[:, None] == x, 0.5, 0.0))
    assert auc(y, x, w) == pytest.approx((pairs * wins).sum() / pairs.sum(), abs=1e-12)


@pytest.mark.parametrize("piece", [1000, 7001])
def test_pieces_give_what_all_rows_give(piece):
    y, x, w = example()
    found = StreamingMetrics()
    for start in range(0, len(y), piece):
        found.add(*(a[start : start + piece] for a in (y, x, w)))
    assert found.loss == pytest.approx(log_loss(y, x, w), rel=1e-12)
    assert found.accuracy == pytest.approx(accuracy(y, x, w), rel=1e-12)
    assert abs(found.auc - auc(y, x, w)) <= found.auc_error < 1e-3
    assert found.auc != auc(y, x, w)  # or the bound would have nothing to bound


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30, 1e37])
def test_bins_follow_the_order_of_scores_of_any_size(scale):
    y, x, _ = example(2000)
    found = StreamingMetrics()
    found.add(y, x * scale)
    assert abs(found.auc - auc(y, x)) <= found.auc_error < 1e-3


def test_zero_is_one_score():
    found = StreamingMetrics()
    found.add([1, 0], [0.0, -0.0])
    assert found.auc == 0.5


def test_the_error_bound_is_reached():
    found = StreamingMetrics()
    found.add([1, 0], [1.0001, 1.0])
    assert (found.auc, found.auc_error, auc([1, 0], [1.0001, 1.0])) == (0.5, 0.5, 1.0)


def test_large_logits_keep_their_loss():
    assert log_loss([1, 0], [-1000.0, 1000.0]) == 1000.0
    assert log_loss([1, 0], [np.inf, -np.inf]) == 0.0
    assert log_loss([1], [50.0]) == pytest.approx(np.exp(-50.0), abs=1e-15)


def test_padding_may_hold_anything():
    y, x, w = [1, 0, 7], [1.0, 2.0, np.nan], [1.0, 1.0, 0.0]
    assert auc(y, x, w) == 0.0
    found = StreamingMetrics()
    found.add(y, x, w)
    assert found.loss == log_loss(y[:2], x[:2])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 0], [1.0]), InvalidArgument, r"shapes \[2\], \[1\], \[2\]"),
        (([1, 0], [1.0, 2.0], [1.0, -1.0]), InvalidArgument, "not negative"),
        (([1, 2], [1.0, 2.0]), InvalidData, "0 or 1"),
        (([1, 0], [1.0, np.nan]), InvalidData, "NaN"),
        (([1, 1], [1.0, 2.0]), InvalidData, "labels of 1 only"),
        (([0, 0], [1.0, 2.0]), InvalidData, "labels of 0 only"),
        (([], []), InvalidData, "labels of no row only"),
    ],
)
def test_bad_rows_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        auc(*arguments)


def test_scores_beyond_float32_are_the_last_bin():
    found = StreamingMetrics()
    found.add([1, 0, 0, 1], [1e300, 1.0, -np.inf, np.inf])
    assert found.auc == 1.0


def test_metrics_of_no_rows_are_refused():
    for metric in (log_loss, accuracy):
        with pytest.raises(InvalidData, match="at least one row"):
            metric([1], [2.0], [0.0])
    with pytest.raises(InvalidData, match="at least one row"):
        StreamingMetrics().loss  # noqa: B018  # reading it is what is tested
