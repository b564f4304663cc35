"""Foreign bytes: valid files damaged in every way, and readers that are held to answer in time and memory."""

import copy
import json
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from truebatch.errors import TruebatchError

Found = TypeVar("Found")

# What no reader of a small file may take, in seconds and in bytes beside what the process had.
SECONDS, BYTES = 20, 2**30

ODD = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"),
    "", "x", "1", "\ud800", "\0", "poisson", [], {}, [[]], {"a": 1},
)  # fmt: skip


def amounts(few: int, many: int) -> pytest.MarkDecorator:
    """The same property on a few examples, always the same, and on many that are drawn anew each time."""
    return pytest.mark.parametrize(
        "examples", [pytest.param(few, id="few"), pytest.param(-many, id="many", marks=pytest.mark.slow)]
    )


def drawn(examples: int) -> settings:
    """Hypothesis settings for one of `amounts`."""
    return settings(
        max_examples=abs(examples),
        derandomize=examples > 0,
        database=None,
        deadline=None,
        print_blob=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The bytes with one to three places flipped, set, cut out, put in, copied over, or cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3)))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(("flip", "set", "cut", "put", "copy", "end")))
        size = draw(st.sampled_from((1, 4, 8, 100)))
        if how == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "set":
            data[at : at + 1] = bytes([draw(st.sampled_from((0, 9, 10, 34, 44, 127, 128, 255)))])
        elif how == "cut":
            del data[at : at + size]
        elif how == "put":
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif how == "copy":
            start = draw(st.integers(0, max(0, len(data) - 1)))
            data[at : at + size] = data[start : start + size]
        else:
            del data[at:]
    return bytes(data)


@st.composite
def reworded(draw: st.DrawFn, value: Any) -> Any:
    """Plain JSON values with one or two of them changed a little, replaced by something odd, or left out."""
    whole = copy.deepcopy(value)
    for _ in range(draw(st.sampled_from((1, 1, 2)))):
        places = list(_places(whole))
        if not places:
            return whole
        owner, name = draw(st.sampled_from(places))
        old = owner[name]
        how = draw(st.sampled_from(("odd", "near", "gone")))
        if how == "gone":
            del owner[name]
        elif how == "near" and isinstance(old, int | float) and not isinstance(old, bool):
            owner[name] = old + draw(st.sampled_from((-1, 1, 100)))
        elif how == "near" and isinstance(old, str) and old:
            owner[name] = old[:-1] + chr(ord(old[-1]) ^ 1)
        else:
            owner[name] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return whole


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    names = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield value, name
        yield from _places(value[name])


def same_json(one: Any, other: Any) -> bool:
    """Whether two plain values are the same to the last word: 1, 1.0 and true are three."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def ours_or(read: Callable[[], Found]) -> Found | None:
    """What the reader gives, or None where it refuses in words of ours: within time and memory."""
    with _limited():
        try:
            return read()
        except TruebatchError:
            return None


@contextmanager
def _limited() -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"no answer within {SECONDS} s")

    with open("/proc/self/statm") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (held + BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
