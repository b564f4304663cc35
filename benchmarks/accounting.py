"""Calibrations of the paper's settings, timed: ours, beside dp_accounting, prv_accountant and RDP.

    python benchmarks/accounting.py --quick

prints three tables as markdown. The first one has sigma of Poisson batches by every accountant that is
installed, with the time it took and its error against ours; the second the time of every sampler against its
goal; the third what happens when four processes calibrate at once and nobody pins their threads. Beside the
seconds on the clock stand those of the processor, which other work on the machine moves far less: ratios and
goals are held against these.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata, util
from typing import Any

from truebatch import accounting
from truebatch.accounting.catalogue import known_curves
from truebatch.experiments.sigma_grids import BATCH_SIZES, DELTA, EPSILON, paper_specs
from truebatch.specs import Sampler

QUICK_SIZES = (1_024, 16_384, 262_144)
PRV_EPSILON_ERROR = 0.01
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CHILDREN = 4
PATIENCE = 3.0  # times the processor time of one process alone; threads that spin take tens or hundreds


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Another accountant: its package, and how it finds sigma for (q, T)."""

    name: str
    package: str
    sigma: Callable[[float, int], float]


def pld(interval: float) -> Peer:
    def sigma(q: float, steps: int) -> float:
        from dp_accounting import NeighboringRelation  # noqa: PLC0415 - an optional peer
        from dp_accounting.pld.pld_privacy_accountant import PLDAccountant  # noqa: PLC0415 - an optional peer

        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        return _calibrated(lambda: PLDAccountant(relation, interval), q, steps)

    return Peer(name=f"PLD, {interval:.0e}", package="dp-accounting", sigma=sigma)


def rdp() -> Peer:
    def sigma(q: float, steps: int) -> float:
        from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant  # noqa: PLC0415 - an optional peer

        return _calibrated(RdpAccountant, q, steps)

    return Peer(name="RDP", package="dp-accounting", sigma=sigma)


def _calibrated(make_accountant: Callable[[], Any], q: float, steps: int) -> float:
    import dp_accounting as dpa  # noqa: PLC0415 - an optional peer

    def event(sigma: float) -> object:
        step = dpa.PoissonSampledDpEvent(q, dpa.GaussianDpEvent(sigma))
        return dpa.SelfComposedDpEvent(step, steps)

    bracket = dpa.ExplicitBracketInterval(0.2, 2.0)
    return float(dpa.calibrate_dp_mechanism(make_accountant, event, EPSILON, DELTA, bracket, tol=1e-6))


def prv() -> Peer:
    def sigma(q: float, steps: int) -> float:
        from prv_accountant.dpsgd import find_noise_multiplier  # noqa: PLC0415 - an optional peer

        return float(
            find_noise_multiplier(
                sampling_probability=q,
                num_steps=steps,
                target_epsilon=EPSILON,
                target_delta=DELTA,
                eps_error=PRV_EPSILON_ERROR,
            )
        )

    return Peer(name=f"PRV, {PRV_EPSILON_ERROR:g}", package="prv-accountant", sigma=sigma)


def installed(peers: Iterable[Peer]) -> list[Peer]:
    """The peers that are there; one clear line for each that is not."""
    there = []
    for peer in peers:
        if util.find_spec(peer.package.replace("-", "_")) is None:
            print(f"{peer.name}: left out, `pip install {peer.package}` adds it", file=sys.stderr)
        else:
            there.append(peer)
    return there


def paper_spec(
    kind: str, *, batch_size: int = 65_536, num_epochs: int = 1, epsilon: float = EPSILON
) -> Sampler:
    specs = paper_specs(batch_size=batch_size, num_epochs=num_epochs, epsilon=epsilon, delta=DELTA)
    return next(spec for spec in specs if spec.name == kind)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a call returned, its seconds on the clock and those of the processor."""

    value: Any
    seconds: float
    cpu: float


def timed(function: Callable[[], Any]) -> Timed:
    start, cpu = time.perf_counter(), time.process_time()
    value = function()
    return Timed(value=value, seconds=time.perf_counter() - start, cpu=time.process_time() - cpu)


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread once this much processor time is used."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def poisson_table(batch_sizes: Iterable[int], peers: list[Peer], *, limit: float) -> None:
    print("## sigma of Poisson batches, one epoch\n")
    row("b", "accountant", "sigma", "seconds", "CPU s", "times slower", "error against ours")
    row(*["---:", "---", "---:", "---:", "---:", "---:", "---:"])
    accounting.sigma(
        paper_spec("poisson", batch_size=3_000), epsilon=EPSILON, delta=DELTA
    )  # imports, warm-up
    for b in batch_sizes:
        spec = paper_spec("poisson", batch_size=b)
        ours = timed(lambda spec=spec: accounting.sigma(spec, epsilon=EPSILON, delta=DELTA))
        sigma, width = ours.value.upper.value, ours.value.upper.value / ours.value.lower.value - 1
        times = f"{ours.seconds:.2f}", f"{ours.cpu:.2f}"
        row(f"{b:,}", "truebatch", f"{sigma:.9f}", *times, "1", f"bracket {width:.1e}")
        for peer in peers:
            row(f"{b:,}", peer.name, *_peer_cells(peer, spec, ours, limit=limit))
    print()


def _peer_cells(peer: Peer, spec: Sampler, ours: Timed, *, limit: float) -> tuple[str, ...]:
    try:
        with cpu_limit(limit):
            theirs = timed(lambda: peer.sigma(spec.sampling_prob, spec.num_steps))
    except TimeoutError:
        return "stopped", "", f"over {limit:g}", f"over {limit / ours.cpu:.0f}", ""
    except Exception as error:  # a peer may fail; that is a result, and the others still count
        return f"failed: {type(error).__name__}", "", "", "", ""
    off = theirs.value / ours.value.upper.value - 1
    slower = f"{theirs.cpu / ours.cpu:.0f}"
    return f"{theirs.value:.9f}", f"{theirs.seconds:.2f}", f"{theirs.cpu:.2f}", slower, f"{off:+.1e}"


def sampler_table(*, slow: bool) -> None:
    cases = [
        ("deterministic", 5, EPSILON, False, None),
        ("poisson", 1, EPSILON, False, 0.3),
        ("poisson", 5, EPSILON, False, 0.3),
        ("poisson", 1, 32.0, False, 0.3),
        ("poisson", 1, 256.0, False, 5.0),
        ("truncated_poisson", 5, EPSILON, False, None),
        ("persistent_shuffle", 1, EPSILON, False, 0.02),
        ("persistent_shuffle", 5, EPSILON, False, 0.02),
        ("dynamic_shuffle", 5, EPSILON, False, 2.0),
        ("dynamic_shuffle", 50, EPSILON, False, 10.0),
        ("balls_and_bins", 1, EPSILON, False, 1.0),
    ]
    if slow:
        cases += [("dynamic_shuffle", 5, EPSILON, True, 20.0), ("balls_and_bins", 5, EPSILON, True, None)]
    print("## every sampler, b = 65,536\n")
    row("sampler", "epochs", "epsilon", "sigma, lower", "sigma, upper", "seconds", "CPU s", "goal")
    row(*["---", *["---:"] * 7])
    for kind, num_epochs, epsilon, dear, goal in cases:
        spec = paper_spec(kind, num_epochs=num_epochs, epsilon=epsilon)
        known_curves.cache_clear()  # nothing is left over from the table before
        took = timed(lambda s=spec, e=epsilon, d=dear: accounting.sigma(s, epsilon=e, delta=DELTA, dear=d))
        ends = [f"{bound.value:.9f}" for bound in (took.value.lower, took.value.upper)]
        name = f"{kind}, dear bounds" if dear else kind
        times = f"{took.seconds:.3f}", f"{took.cpu:.3f}"
        row(name, num_epochs, f"{epsilon:g}", *ends, *times, "" if goal is None else f"{goal:g}")
    print()


def contention_table() -> bool:
    """Whether four unpinned processes at once do the work of one each, and not their threads' waiting.

    Threads that spin burn processor time, so that is what is judged; the clock also shows other work.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    alone, together = _children(1), _children(CHILDREN)
    print(f"## {CHILDREN} processes at once on {cores} cores, threads not pinned\n")
    row("", "seconds", "CPU s")
    row("---", "---:", "---:")
    slowest = {}
    for name, runs in (("one alone", alone), (f"the slowest of {CHILDREN}", together)):
        slowest[name] = [max(run[key] for run in runs) for key in ("seconds", "cpu")]
        row(name, *(f"{value:.2f}" for value in slowest[name]))
    wall, cpu = (after / before for before, after in zip(*slowest.values(), strict=True))
    row("times as much", f"{wall:.1f}", f"{cpu:.1f}")
    row("explained by sharing the cores", f"{max(1.0, CHILDREN / cores):.1f}", "1.0")
    print()
    return cpu <= PATIENCE


def _children(count: int) -> list[dict[str, float]]:
    environment = {k: v for k, v in os.environ.items() if k not in THREAD_VARIABLES}
    command = [sys.executable, os.path.abspath(__file__), "--child"]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    return [json.loads(process.communicate()[0]) for process in running]


def child() -> None:
    """The work of one of several processes: two calibrations, without the time to import."""

    def work() -> None:
        for kind in ("poisson", "dynamic_shuffle"):
            accounting.sigma(paper_spec(kind, num_epochs=5), epsilon=EPSILON, delta=DELTA)

    took = timed(work)
    print(json.dumps({"seconds": took.seconds, "cpu": took.cpu}))


def row(*cells: object) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def versions() -> str:
    names = ("truebatch", "numpy", "scipy", "dp-accounting", "prv-accountant")
    found = {name: _version(name) for name in names}
    return ", ".join(f"{name} {version}" for name, version in found.items() if version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three batch sizes instead of nine")
    parser.add_argument(
        "--slow", action="store_true", help="add PLD at 1e-5 (two minutes each) and dear bounds"
    )
    parser.add_argument("--limit", type=float, default=600.0, help="processor seconds a peer may take (600)")
    parser.add_argument("--no-peers", action="store_true", help="time only our own calibrations")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child()
        return 0
    peers = [rdp(), pld(1e-3), pld(1e-4), *([pld(1e-5)] if options.slow else []), prv()]
    print(f"epsilon = {EPSILON:g}, delta = {DELTA:g}, n = 36,672,493; {versions()}\n")
    sizes = QUICK_SIZES if options.quick else BATCH_SIZES
    poisson_table(sizes, [] if options.no_peers else installed(peers), limit=options.limit)
    sampler_table(slow=options.slow)
    calm = contention_table()
    if not calm:
        print("Contention: times exploded.", file=sys.stderr)
    return 0 if calm else 1


if __name__ == "__main__":
    sys.exit(main())
