"""How fast batches are drawn, side by side in one run: milliseconds a step, and memberships a second by rows.

    python benchmarks/sampling.py                  # about three minutes
    python benchmarks/sampling.py --rounds 3 --no-shard

The peers are optional. In a fresh environment with this package:

    pip install jax-privacy torch && pip install --no-deps opacus

Everything runs on one thread and is timed in CPU seconds, and cases take turns, round after round, so that
other work on the machine disturbs all of them little and alike. A line shows the median and the best of the
rounds; ratios are of medians, to jax_privacy when it is there.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import itertools
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np

from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.sampling.blocks import KeyStream, Purpose
from truebatch.specs import TruncatedPoisson

N = 46_000_000
KEY = Key.for_tests(1)

# A case returns the seconds that one step took.
Case = Callable[[], float]


def clock(action: Callable[[], object], *, per: int = 1) -> float:
    start = time.process_time()
    action()
    return (time.process_time() - start) / per


def spec_for(b: int, *, n: int = N, num_steps: int = 10**6) -> TruncatedPoisson:
    # About six standard deviations of room, as the paper's rule gives.
    return TruncatedPoisson(
        num_examples=n, batch_size=b, num_steps=num_steps, max_batch_size=b + 6 * int(b**0.5)
    )


def ours(b: int) -> dict[str, Case]:
    s = schedule(spec_for(b), KEY)
    step = itertools.count()
    single, bulk = max(1, 2**17 // b // 4), max(4, 2**20 // b)

    def one_by_one() -> float:
        return clock(lambda: [s.members(next(step)) for _ in range(single)], per=single)

    def consecutive() -> float:
        first = next(step) * bulk
        return clock(lambda: [len(batch) for batch in s.batches(first, first + bulk)], per=bulk)

    start_up = clock(lambda: schedule(spec_for(b), KEY).members(0))
    print(f"truebatch: first batch of b={b} after {1e3 * start_up:.1f} ms", file=sys.stderr)
    return {"truebatch, members(t)": one_by_one, "truebatch, consecutive": consecutive}


def jax_privacy_case(b: int) -> dict[str, Case]:
    batch_selection = optional("jax_privacy.batch_selection", "pip install jax-privacy")
    if batch_selection is None:
        return {}
    strategy = batch_selection.CyclicPoissonSampling(
        sampling_prob=b / N, iterations=10**9, truncated_batch_size=spec_for(b).max_batch_size
    )
    start = time.process_time()
    batches = strategy.batch_iterator(N, rng=1)
    next(batches)
    print(f"jax_privacy: first batch of b={b} after {time.process_time() - start:.2f} s", file=sys.stderr)
    steps = max(4, 2**20 // b)
    return {"jax_privacy": lambda: clock(lambda: take(batches, steps), per=steps)}


def opacus_case(b: int) -> dict[str, Case]:
    torch = optional("torch", "pip install torch")
    sampler = optional("opacus.utils.uniform_sampler", "pip install torch && pip install --no-deps opacus")
    cases: dict[str, Case] = {}
    if torch is not None:
        torch.set_num_threads(1)
        cases["torch.rand(n) < q"] = lambda: clock(lambda: torch.nonzero(torch.rand(N) < b / N))
    if sampler is not None:
        batches = iter(sampler.UniformWithReplacementSampler(num_samples=N, sample_rate=b / N, steps=10**9))
        cases["opacus"] = lambda: clock(lambda: next(batches))
    return cases


def optional(module: str, remedy: str) -> ModuleType | None:
    """A peer's module, or None after saying how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"{module} is left out ({error}); to include it: {remedy}", file=sys.stderr)
        return None


def geometric_loop(b: int) -> dict[str, Case]:
    """The paper's Appendix A, example by example; timed on a few and scaled to all of them."""
    q, num_steps, few = b / N, N // b, 2000
    generator = np.random.default_rng(1)

    def batch_indices() -> np.ndarray:
        largest, indices = 0, np.array([])
        while largest < num_steps:
            gaps = generator.geometric(p=q, size=4)
            indices = np.concatenate((indices, largest + np.cumsum(gaps)))
            largest = indices[-1]
        return indices[indices <= num_steps]

    def scaled() -> float:
        return clock(lambda: [batch_indices() for _ in range(few)]) * (N / few) / num_steps

    return {"geometric loop (scaled)": scaled}


def limits(b: int) -> dict[str, Case]:
    generator = np.random.default_rng(1)
    stream = KeyStream(KEY)
    counters = np.arange(b // 4)
    repeats = max(4, 2**19 // b)
    return {
        "limit: b sorted integers": lambda: clock(
            lambda: [np.sort(generator.integers(0, N, b)) for _ in range(repeats)], per=repeats
        ),
        "limit: reading the key stream": lambda: clock(
            lambda: [stream.draw(Purpose.TAG, t, 0, counters) for t in range(repeats)], per=repeats
        ),
    }


def take(batches: Iterator[np.ndarray], count: int) -> list[int]:
    return [len(batch) for batch in itertools.islice(batches, count)]


def compare(b: int, rounds: int) -> None:
    cases = ours(b) | jax_privacy_case(b) | opacus_case(b) | geometric_loop(b) | limits(b)
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            elapsed = case()
            if turn:  # the first turn warms up
                seconds[name].append(elapsed)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base = medians.get("jax_privacy", medians["truebatch, consecutive"])
    print(f"\n## n = {N:,}, b = {b:,}\n\n| case | median ms a step | best | ratio |")
    print("| --- | ---: | ---: | ---: |")
    for name, values in seconds.items():
        print(
            f"| {name} | {1e3 * medians[name]:.4g} | {1e3 * min(values):.4g} | {medians[name] / base:.3g} |"
        )


def by_rows(rounds: int) -> None:
    print("\n## By rows, one thread\n\n| rows | b | memberships | million a second, median | best |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for b, epochs in ((1024, 2), (65_536, 4)):
        T = epochs * N // b
        s = schedule(spec_for(b, num_steps=T), KEY)
        size = max(1, 2**20 // s.tile_rows) * s.tile_rows
        rates, count = [], 0
        for turn in range(rounds):
            start = turn * size
            begin = time.process_time()
            count = len(s.placements(start, start + size).row)
            rates.append(count / (time.process_time() - begin) / 1e6)
        print(
            f"| {size:,} of {N:,} | {b:,} | {count:,} | {statistics.median(rates):.1f} | {max(rates):.1f} |"
        )


def shard() -> None:
    print("\n## A shard of 1,000,000 rows of n = 10^11, T = 10^6\n\n| b | first row | placed | seconds |")
    print("| ---: | ---: | ---: | ---: |")
    for b in (10**5, 10**6):
        s = schedule(spec_for(b, n=10**11), KEY)
        for start in (0, 10**11 // 2, 10**11 - 10**6):
            begin = time.process_time()
            placed = sum(len(part.row) for part in s.placement_blocks(start, start + 10**6))
            print(f"| {b:,} | {start:,} | {placed:,} | {time.process_time() - begin:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--no-shard", action="store_true", help="leave out the shard of 10^11 rows")
    options = parser.parse_args()
    names = ("numpy", "cryptography", "jax-privacy", "torch", "opacus")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    print(f"{datetime.date.today()}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"Python {platform.python_version()}, {', '.join(versions)}")
    for b in (1024, 65_536):
        compare(b, options.rounds)
    by_rows(options.rounds)
    if not options.no_shard:
        shard()


if __name__ == "__main__":
    main()
