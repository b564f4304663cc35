"""A fault: how the installed code is broken on purpose, and the check that has to notice."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that must hold of the installed code. `run` raises where it does not.

    The same `run` is made on the code as it is, where it must come back, and on the broken one, where it
    must raise an AssertionError or one of our own errors. `false_alarm` is the chance that it raises on
    true code, `power` the chance that it raises on the broken one; 0 and 1 where nothing is drawn.
    """

    name: str
    run: Callable[[], None]
    false_alarm: float = 0.0
    power: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way for the guarantee to be gone while training looks fine.

    `number` is that of its family; a family may have several members. `inject` breaks the installed code
    for as long as its context lasts.
    """

    number: int
    name: str
    how: str
    inject: Callable[[], AbstractContextManager[None]]
    check: Check


@contextmanager
def replaced(places: dict[str, Any]) -> Iterator[None]:
    """Attributes of the installed code replaced, each named as in "truebatch.keys:Key.derive"."""
    kept = []
    try:
        for place, new in places.items():
            module, _, path = place.partition(":")
            *parents, name = path.split(".")
            owner: Any = import_module(module)
            for parent in parents:
                owner = getattr(owner, parent)
            kept.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, new)
        yield
    finally:
        for owner, name, old in reversed(kept):
            setattr(owner, name, old)
