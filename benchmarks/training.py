"""How fast the 78-million-parameter model trains with and without privacy, side by side in one run.

    python benchmarks/training.py                    # 1,024, 8,192 and 65,536: some minutes
    python benchmarks/training.py --sizes 1024 --rounds 5
    python benchmarks/training.py --epoch            # a stretch of 2 million rows, extrapolated to an epoch

A side is one full step: gradient, clipping, noise on all parameters, Adam. Each side lives in a process of
its own and sides take turns, round after round, so that other work on the machine disturbs all of them alike;
a line shows the median and the best of the rounds, the processor time over the number of processors, which
other work hardly moves, and peak memory. Ratios are of medians, to JAX + Optax without privacy as one starts
it. The first steps of each side, which compile, are not counted. Sides with huge pages are started with
GLIBC_TUNABLES as below.

Peers are timed when they are installed. Those with a star make every gradient: they are timed on 8 rows, and
the time of a step is worked out from that.

    pip install jax-privacy torch && pip install --no-deps opacus
"""

import argparse
import dataclasses
import datetime
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import training_peers

from truebatch import Key, TruncatedPoisson
from truebatch.training import optimizers
from truebatch.training.clipping import by_layers
from truebatch.training.microbatches import micro_batch_rows, sum_on_one_device
from truebatch.training.models import PAPER_BUCKETS, click_model
from truebatch.training.noise import Noise
from truebatch.training.privacy import Privacy
from truebatch.training.train import train
from truebatch.training.update import compiled_update

MODEL = click_model()
NUM_EXAMPLES = 36_672_493
# The paper's caps.
CAPS = {
    1024: 1328,
    2048: 2469,
    4096: 4681,
    8192: 9007,
    16384: 17520,
    32768: 34355,
    65536: 67754,
    262144: 266475,
}
SIGMA, CLIP_NORM, RATE = 0.55, 1.0, 1e-3

SLOW_UP_TO = 1024

# Huge pages, and memory that is kept when it is freed: page faults of fresh buffers cost a tenth of a step.
HUGE_PAGES = (
    "glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=2147483648"
    ":glibc.malloc.trim_threshold=34359738368:glibc.malloc.top_pad=268435456"
)

# A step; returns when its result is there. What makes one, for a batch size and rows.
Step = Callable[[], None]
Make = Callable[[int, dict[str, Any]], Step]


def rows(count: int, seed: int = 0) -> dict[str, Any]:
    """Rows in the shape of the paper's data: heavy-tailed buckets, 3 % of labels 1."""
    rng = np.random.default_rng(seed)
    return {
        "i": rng.normal(size=(count, 13)).astype(np.float32),
        "c": np.minimum(rng.zipf(1.2, size=(count, 26)), PAPER_BUCKETS - 1).astype(np.int32),
        "label": (rng.random(count) < 0.03).astype(np.int8),
    }


def on_device(tree: Any) -> Any:
    return jax.device_put(tree, jax.devices()[0])


def ours(b: int, *, private: bool) -> Step:
    """Our programs, on a batch of B rows of which b are real."""
    B = CAPS[b] if private else b
    weights = on_device((np.arange(B) < b).astype(np.float32))
    examples = on_device(rows(B))
    params = on_device(MODEL.init(0))
    optimizer = optimizers.adam(RATE)
    clipped_sum = sum_on_one_device(
        by_layers(MODEL.loss, clip_norm=CLIP_NORM if private else None), micro_batch=micro_batch_rows(B)
    )
    noise = Noise(Key.for_tests(0), SIGMA if private else 0.0, CLIP_NORM)
    update = compiled_update(optimizer, batch_size=b)
    held = [params, on_device(optimizer.init(params)), on_device(jax.tree.map(jnp.zeros_like, params))]
    count = iter(range(10**6))

    def step() -> None:
        params, state, scratch = held
        total = clipped_sum(params, scratch, examples, weights).gradient
        held[:] = [*update(params, state, noise.add(next(count), total) if private else total), total]
        jax.block_until_ready(held)

    return step


def jax_and_optax(b: int) -> Step:
    """What one would write without privacy: the mean loss of a full batch, its gradient, Optax's Adam."""
    optimizer = optax.adam(RATE)
    examples = on_device(rows(b))
    params = on_device(MODEL.init(0))
    held = [params, on_device(optimizer.init(params))]

    def update(params: Any, state: Any, examples: Any) -> tuple[Any, Any]:
        gradient = jax.grad(lambda p: jax.vmap(MODEL.loss, (None, 0))(p, examples).mean())(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(update, donate_argnums=(0, 1))

    def step() -> None:
        held[:] = compiled(*held, examples)
        jax.block_until_ready(held)

    return step


BASE = "JAX + Optax, no privacy"
HUGE = ", huge pages"
OURS, OURS_PLAIN = f"truebatch, private{HUGE}", f"truebatch, no privacy{HUGE}"


def sides() -> dict[str, Make]:
    """Full steps, by name; a name says whether the process has huge pages."""
    return {
        BASE: lambda b, _: jax_and_optax(b),
        f"{BASE}{HUGE}": lambda b, _: jax_and_optax(b),
        OURS_PLAIN: lambda b, _: ours(b, private=False),
        OURS: lambda b, _: ours(b, private=True),
        **training_peers.available(),
    }


class Took(NamedTuple):
    """Seconds on the clock, and of the processor."""

    wall: float
    processor: float


class Worker:
    """A side in a process of its own: takes a step and says how long it took, whenever it is asked."""

    def __init__(self, name: str, b: int) -> None:
        tunables = {"GLIBC_TUNABLES": HUGE_PAGES} if HUGE in name else {}
        command = [sys.executable, "-W", "ignore", __file__, "--side", name, "--sizes", str(b)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | tunables
        )
        self.ask()

    def ask(self) -> Took:
        """One step, in seconds on the clock and of the processor."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(file=self._process.stdin, flush=True)
        wall, processor = self._process.stdout.readline().split()
        return Took(float(wall), float(processor))

    def stop(self) -> float:
        """Ends the process, and gives its peak memory in GiB."""
        said, _ = self._process.communicate()
        return float(said)


def work(name: str, b: int) -> None:
    """What a worker does."""
    make = {**sides(), **training_peers.slow()}[name]
    step = make(b, rows(b))
    step()
    step()
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        step()
        print(time.perf_counter() - start, time.process_time() - used, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def compare(b: int, rounds: int) -> None:
    workers = {name: Worker(name, b) for name in sides()}
    taken = [{name: worker.ask() for name, worker in workers.items()} for _ in range(rounds)]
    base = statistics.median(each[BASE].wall for each in taken)
    for name, worker in workers.items():
        show(b, name, [each[name] for each in taken], base, worker.stop())
    for name in training_peers.slow() if b <= SLOW_UP_TO else ():
        worker = Worker(name, b)
        share = training_peers.FEW_ROWS / b
        seconds = [Took(*(x / share for x in worker.ask())) for _ in range(3)]
        show(b, f"{name} *", seconds, base, worker.stop())


def show(b: int, name: str, taken: list[Took], base: float, memory: float) -> None:
    middle, best = statistics.median(t.wall for t in taken), min(t.wall for t in taken)
    processor = statistics.median(t.processor for t in taken) / (os.cpu_count() or 1)
    print(
        f"{b:>7,}  {name:<38} {1e3 * middle:>9,.0f} ms"
        f" (best {1e3 * best:>9,.0f}; processor {1e3 * processor:>9,.0f})"
        f"  {b / middle:>7,.0f} rows/s  {base / middle:>6.3f} x  {memory:5.2f} GiB",
        flush=True,
    )


@dataclasses.dataclass(frozen=True)
class Pool:
    """Batches of different rows and realised sizes, cut out of a pool of synthetic rows."""

    spec: TruncatedPoisson
    columns: dict[str, Any]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rng = np.random.default_rng(0)
        B, q = self.spec.max_batch_size, self.spec.sampling_prob
        for _ in range(self.spec.num_steps):
            size = min(B, rng.binomial(self.spec.num_examples, q))
            start = rng.integers(0, len(self.columns["label"]) - B)
            weight = (np.arange(B) < size).astype(np.float32)
            yield {name: x[start : start + B] for name, x in self.columns.items()} | {"weight": weight}


def epoch(b: int, rows_wanted: int) -> None:
    """The whole loop, batches included, for some million rows; an epoch takes n / b such steps."""
    T = -(-rows_wanted // b) + 1
    spec = TruncatedPoisson(num_examples=NUM_EXAMPLES, batch_size=b, num_steps=T, max_batch_size=CAPS[b])
    marks: list[float] = []
    train(
        MODEL,
        Pool(spec, rows(4 * CAPS[b])),
        spec=spec,
        key=Key.for_tests(1),
        privacy=Privacy(spec=spec, clip_norm=CLIP_NORM, delta=2.7e-8, sigma=SIGMA),
        optimizer=optimizers.adam(RATE),
        evaluate_every=T,
        watch=lambda _: marks.append(time.perf_counter()),
    )
    seconds = marks[-1] - marks[0]  # The first step compiles.
    per_row = seconds / ((T - 1) * b)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{(T - 1) * b:,} rows in {seconds:.0f} s: {1 / per_row:,.0f} rows/s, {peak:.2f} GiB")
    print(f"an epoch of {NUM_EXAMPLES:,} rows, extrapolated: {per_row * NUM_EXAMPLES / 60:.0f} minutes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 8192, 65536], choices=sorted(CAPS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--epoch", action="store_true")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        work(given.side, given.sizes[0])
        return
    print(f"{datetime.date.today()}  {platform.processor() or platform.machine()}, {os.cpu_count()} cores")
    print(f"python {platform.python_version()}, jax {jax.__version__}, optax {optax.__version__}")
    if given.epoch:
        epoch(given.sizes[-1], given.rows)
        return
    for b in given.sizes:
        compare(b, given.rounds)


if __name__ == "__main__":
    main()
