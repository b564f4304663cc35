"""Log loss, AUC and accuracy of a classifier of two classes, at once or piece by piece.

Scores are logits: above 0 means label 1. Weights, where given, are not negative.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from truebatch.errors import InvalidArgument, InvalidData

Floats = npt.NDArray[np.float64]

# Scores are binned by the leading bits of their float32: sign, exponent and 11 bits of the fraction, so that
# two scores of one bin differ by less than 0.05 %. Two counters of 2^20 bins take 16 MiB.
_BIN_BITS = 20
_NUM_BINS = 1 << _BIN_BITS
_FLOAT_BITS = 32
_SIGN = np.uint32(1 << (_FLOAT_BITS - 1))


def log_loss(labels: Any, logits: Any, weights: Any = None) -> float:
    """The mean of log(1 + e^logit) - label * logit, which is the cross entropy; exact for logits of any size.

    >>> round(log_loss([1, 0], [0.0, 0.0]), 6)
    0.693147
    """
    y, x, w = _checked(labels, logits, weights)
    return float(np.sum(w * _losses(y, x)) / _positive(np.sum(w)))


def accuracy(labels: Any, logits: Any, weights: Any = None) -> float:
    """The share of rows, by weight, whose label is 1 exactly where the logit is above 0.

    >>> accuracy([1, 0, 1], [0.5, -2.0, -1.0], [1.0, 1.0, 2.0])
    0.5
    """
    y, x, w = _checked(labels, logits, weights)
    return float(np.sum(w * ((x > 0) == (y > 0))) / _positive(np.sum(w)))


def auc(labels: Any, scores: Any, weights: Any = None) -> float:
    """The area under the ROC curve: how often, by weight, a row of label 1 outscores one of label 0.

    Exact, by sorting; equal scores count one half. Any increasing function of the logit does for a score.

    >>> auc([1, 0, 1, 0], [0.9, 0.1, 0.4, 0.4])
    0.875
    """
    y, x, w = _checked(labels, scores, weights)
    order = np.argsort(x, kind="stable")
    x = x[order]
    group = np.cumsum(np.concatenate(([0], x[1:] > x[:-1]))) if x.size else np.zeros(0, dtype=np.int64)
    positive: Floats = np.bincount(group, weights=(w * y)[order]).astype(np.float64)
    negative: Floats = np.bincount(group, weights=(w * (1 - y))[order]).astype(np.float64)
    return _area(positive, negative)


class StreamingMetrics:
    """The same three metrics in one pass over pieces of rows, in 16 MiB whatever their number.

    Guarantees:
      - Loss and accuracy are those of all rows at once, but for rounding; so is the AUC, but for pairs of
        rows whose scores differ by less than 0.05 %: `auc_error` bounds what these can do to it.
      - Pieces may come in any sizes and any order.
    """

    def __init__(self) -> None:
        self._weight = self._loss = self._right = 0.0
        self._bins = np.zeros((2, _NUM_BINS))

    def add(self, labels: Any, logits: Any, weights: Any = None) -> None:
        """Take in some rows; rows of weight 0, such as padding, may hold anything."""
        y, x, w = _checked(labels, logits, weights)
        self._weight += float(np.sum(w))
        self._loss += float(np.sum(w * _losses(y, x)))
        self._right += float(np.sum(w * ((x > 0) == (y > 0))))
        bins = _bins(x)
        self._bins[0] += np.bincount(bins, weights=w * y, minlength=_NUM_BINS)
        self._bins[1] += np.bincount(bins, weights=w * (1 - y), minlength=_NUM_BINS)

    @property
    def loss(self) -> float:
        """The mean log loss."""
        return self._loss / _positive(self._weight)

    @property
    def accuracy(self) -> float:
        """The share of rows on the right side of 0."""
        return self._right / _positive(self._weight)

    @property
    def auc(self) -> float:
        """The area under the ROC curve, with scores of one bin taken as equal."""
        return _area(*self._bins)

    @property
    def auc_error(self) -> float:
        """At most how far `auc` is from the exact one: half the share of pairs that fall into one bin."""
        positive, negative = self._bins
        return float(positive @ negative / 2 / (positive.sum() * negative.sum()))


def _losses(y: Floats, x: Floats) -> Floats:
    losses: Floats = np.logaddexp(0, np.where(y > 0, -x, x))
    return losses


def _positive(weight: float) -> float:
    if not weight > 0:
        raise InvalidData("metrics need at least one row of positive weight; got none.")
    return weight


def _area(positive: Floats, negative: Floats) -> float:
    """From the weights of both labels at each score, in increasing order of scores."""
    total = positive.sum() * negative.sum()
    if not total > 0:
        raise InvalidData(
            "an AUC needs rows of both labels; got "
            f"labels of {'1' if positive.sum() > 0 else '0' if negative.sum() > 0 else 'no row'} only.",
            hint="take more rows, or the loss alone.",
        )
    below = np.cumsum(negative) - negative
    return float(np.sum(positive * (below + negative / 2)) / total)


def _bins(x: Floats) -> npt.NDArray[np.int64]:
    """Numbers of bins in the order of scores: leading bits of a float32, negative ones turned over."""
    with np.errstate(over="ignore"):  # what is beyond float32 is infinite, and last
        bits = (x.astype(np.float32) + np.float32(0)).view(np.uint32)  # -0 is 0
    ordered = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return (ordered >> np.uint32(_FLOAT_BITS - _BIN_BITS)).astype(np.int64)


def _checked(labels: Any, scores: Any, weights: Any) -> tuple[Floats, Floats, Floats]:
    """Rows of positive weight, as float64."""
    y, x = np.asarray(labels, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    w = np.ones(y.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if not (y.ndim == 1 and y.shape == x.shape == w.shape):
        raise InvalidArgument(
            "labels, scores and weights must be lists of one length; "
            f"got shapes {list(y.shape)}, {list(x.shape)}, {list(w.shape)}."
        )
    if not (np.isfinite(w).all() and (w >= 0).all()):
        raise InvalidArgument("weights must be finite and not negative; some are not.")
    if not w.all():
        y, x, w = (a[w > 0] for a in (y, x, w))
    if not ((y == 0) | (y == 1)).all():
        raise InvalidData("labels must be 0 or 1; some are not.")
    if np.isnan(x).any():
        raise InvalidData("scores must be numbers; some are NaN.", hint="the model has diverged.")
    return y, x, w
