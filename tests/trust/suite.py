"""The runner: every check on the code as it is and on the broken code, each in a process of its own."""

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

from truebatch.errors import TruebatchError
from trust.fault import Fault

ROOMS = ("batches", "accounting", "training", "audit", "records", "secrecy")
MODULES = tuple(f"trust.faults.{room}" for room in ROOMS)

FAMILIES = {
    1: "Workers share or copy the state of a generator",
    2: "Inclusion is decided by a 32-bit float",
    3: "Empty batches are dropped",
    4: "Steps are lost to int(1/q)",
    5: "The accountant is optimistic",
    6: "Shuffled batches are reported as Poisson's",
    7: "The sum is divided by the realised size, or by B",
    8: "Accumulation is counted as steps, or noise is added per micro-batch",
    9: "Noise is added per device",
    10: "Noise is scaled for the mean on a sum, or the reverse",
    11: "Padding contributes",
    12: "A gradient that is not finite poisons the step, or changes control flow",
    13: "A cut batch keeps its first B rows",
    14: "A resume or retry draws batches or noise again",
    15: "The auditor cries wolf",
    16: "Noise has cut tails or float artefacts",
    17: "Clipping goes by a norm that is too small",
    18: "The last batch is partial",
    19: "Key or membership leaks into a log, record, pickle or exception",
    20: "A record is edited after the run",
}

# A side that takes longer hangs: the slowest takes about a minute.
_LONGEST_S = 900


class Outcome(StrEnum):
    """What one run of a check came to."""

    HELD = "held"
    RAISED = "raised"
    ERROR = "error"


class Verdict(StrEnum):
    """What the two runs say together."""

    CAUGHT = "caught"
    NOT_CAUGHT = "NOT CAUGHT"
    FALSE_ALARM = "FALSE ALARM"
    ERROR = "ERROR"


@dataclass(frozen=True, kw_only=True)
class Side:
    """One run of a check, on true code or on broken code; `said` is why it raised, or went wrong."""

    outcome: Outcome
    said: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Member:
    """A fault, and where it is found."""

    module: str
    index: int
    fault: Fault


@dataclass(frozen=True, kw_only=True)
class Result:
    """A fault, and both runs of its check."""

    fault: Fault
    intact: Side
    broken: Side

    @property
    def verdict(self) -> Verdict:
        """Caught only if the check holds of true code and raises, as checks do, on broken code."""
        match self.intact.outcome, self.broken.outcome:
            case (Outcome.ERROR, _) | (_, Outcome.ERROR):
                return Verdict.ERROR
            case Outcome.RAISED, _:
                return Verdict.FALSE_ALARM
            case _, Outcome.HELD:
                return Verdict.NOT_CAUGHT
        return Verdict.CAUGHT

    @property
    def seconds(self) -> float:
        """Of both runs."""
        return self.intact.seconds + self.broken.seconds

    @property
    def said(self) -> str:
        """Why it was caught, or what went wrong."""
        return self.intact.said or self.broken.said


def members(modules: Iterable[str] = MODULES, only: Iterable[int] = ()) -> list[Member]:
    """The faults of these modules by family, or of some families only. A name that two have is refused."""
    wanted = set(only) or set(FAMILIES)
    found = [
        Member(module=module, index=i, fault=fault)
        for module in modules
        for i, fault in enumerate(import_module(module).FAULTS)
        if fault.number in wanted
    ]
    names = [member.fault.name for member in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"every fault must have a name of its own; got twice: {', '.join(sorted(twice))}.")
    return sorted(found, key=lambda member: member.fault.number)


def side(fault: Fault, *, broken: bool) -> Side:
    """One run of the check, in this process.

    What a check raises is an AssertionError or an error of ours. Anything else, and anything that the
    injection itself raises, is an error of the suite: a mutation that does not fit the code any more.
    """
    began = time.monotonic()
    outcome, said = Outcome.HELD, ""
    try:
        with contextlib.ExitStack() as stack:
            if broken:
                _enter(stack, fault)
            try:
                fault.check.run()
            except (AssertionError, TruebatchError) as error:
                outcome, said = Outcome.RAISED, f"{type(error).__name__}: {error}"
    except Exception:
        outcome, said = Outcome.ERROR, traceback.format_exc()
    return Side(outcome=outcome, said=said, seconds=time.monotonic() - began)


def _enter(stack: contextlib.ExitStack, fault: Fault) -> None:
    try:
        stack.enter_context(fault.inject())
    except (AssertionError, TruebatchError) as error:
        raise RuntimeError("the injection itself raised") from error


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """Without what truebatch or JAX computed before, and without what they compute in here afterwards."""
    _forget()
    try:
        yield
    finally:
        _forget()


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "truebatch":
            for thing in list(vars(module).values()):
                if callable(clear := getattr(thing, "cache_clear", None)):
                    clear()
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


def run(found: Sequence[Member], *, jobs: int) -> Iterator[Result]:
    """Both sides of every fault, as they are done, so many at a time.

    Each side has a process of its own, forked from one that has imported what it needs and done nothing
    else: no cache, program or device of another carries over.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*sorted({member.module for member in found})])
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(_both, context, member) for member in found]
        try:
            for future in as_completed(waiting):
                yield future.result()
        finally:
            for future in waiting:
                future.cancel()


def _both(context: ForkServerContext, member: Member) -> Result:
    intact, broken = (_in_a_process(context, member, broken=broken) for broken in (False, True))
    return Result(fault=member.fault, intact=intact, broken=broken)


def _in_a_process(context: ForkServerContext, member: Member, *, broken: bool) -> Side:
    began = time.monotonic()
    answer, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as place:
        said = Path(place, "said")
        process = context.Process(target=_answer, args=(there, said, member.module, member.index, broken))
        process.start()
        there.close()
        try:
            found: Side | str = (
                answer.recv() if answer.poll(_LONGEST_S) else f"took over {_LONGEST_S} seconds"
            )
        except EOFError:
            process.join()
            found = f"the process ended with code {process.exitcode}: {said.read_text()[-2000:]}"
        process.kill()
        process.join()
    if isinstance(found, Side):
        return found
    return Side(outcome=Outcome.ERROR, said=found, seconds=time.monotonic() - began)


def _answer(there: Connection, said: Path, module: str, index: int, broken: bool) -> None:
    """What a process of one side does. What it prints is kept apart, and shown if it dies."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    there.send(side(import_module(module).FAULTS[index], broken=broken))
