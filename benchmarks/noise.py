"""What a step costs beside its gradient: noise, optimizer, checkpoint, for 78 million parameters.

    python benchmarks/noise.py                       # about a minute
    python benchmarks/noise.py --coordinates 8000000 --rounds 3

Cases take turns, round after round, so that other work on the machine disturbs all of them alike. A line
shows the median and the best of the rounds, the median of processor time over the number of processors, and
its ratio to the first line. The process starts itself again with huge pages for large blocks, as training
does: without them, page faults cost more than the noise.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from truebatch.keys import Key
from truebatch.training import checkpoint
from truebatch.training.noise import Noise
from truebatch.training.noise_words import SPARE_WORDS, Kind, NoiseWords, num_threads
from truebatch.training.optimizers import adagrad, adam
from truebatch.training.update import compiled_update

KEY = Key.for_tests(1)
WIDTH = 48
HUGE_PAGES = "glibc.malloc.hugetlb=1"

Case = Callable[[], object]


def with_huge_pages() -> None:
    """Start again with the setting, which counts when a process begins."""
    if HUGE_PAGES not in os.environ.get("GLIBC_TUNABLES", ""):
        os.environ["GLIBC_TUNABLES"] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.argv])


def noise_cases(rows: int) -> dict[str, Case]:
    noise, words = Noise(KEY, sigma=0.55, clip_norm=1.0), NoiseWords(KEY)
    sums = jnp.zeros((rows, WIDTH), jnp.float32)
    buffers = {kind: np.empty(2**20 + SPARE_WORDS, dtype=np.uint64) for kind in Kind}
    room = np.ones(rows * WIDTH)
    draw = jax.jit(lambda i: jax.random.normal(jax.random.key(i), (rows, WIDTH), jnp.float32))
    numpy_bits = np.random.Generator(np.random.Philox(1))

    def ours() -> None:
        noise.add(3, sums).block_until_ready()

    def stream() -> None:
        with ThreadPoolExecutor(num_threads()) as pool:
            for first in range(0, rows * WIDTH // 2, 2**20):
                words.fill(buffers, step=3, first=first, pool=pool)

    return {
        "noise on the grid, added (ours)": ours,
        "of this, the key stream": stream,
        "jax.random.normal, float32, not added": lambda: draw(3).block_until_ready(),
        "numpy standard_normal, float64, one thread, not added": lambda: numpy_bits.standard_normal(out=room),
    }


def optimizer_case(optimizer: optax.GradientTransformation, total: jax.Array) -> Case:
    params = jnp.zeros_like(total)
    held = {"params": params, "state": jax.tree.map(jnp.copy, optimizer.init(params))}
    update = compiled_update(optimizer, batch_size=1024)

    def step() -> None:
        held["params"], held["state"] = update(held["params"], held["state"], total)
        jax.block_until_ready(held)

    return step


def optimizer_cases(rows: int) -> dict[str, Case]:
    total = jnp.ones((rows, WIDTH), jnp.float32)
    decay = optax.cosine_decay_schedule(1e-3, 1000)
    return {
        "adam (ours)": optimizer_case(adam(decay), total),
        "optax.adam, compiled in the same way": optimizer_case(optax.adam(decay), total),
        "optax.adam, update and apply apart": unfused_case(optax.adam(decay), total),
        "adagrad (ours)": optimizer_case(adagrad(decay), total),
        "optax.adagrad, compiled in the same way": optimizer_case(optax.adagrad(decay), total),
    }


def unfused_case(optimizer: optax.GradientTransformation, total: jax.Array) -> Case:
    params = jnp.zeros_like(total)
    held = {"params": params, "state": optimizer.init(params)}
    update, apply = jax.jit(optimizer.update), jax.jit(optax.apply_updates)

    def step() -> None:
        updates, held["state"] = update(total, held["state"], held["params"])
        held["params"] = apply(held["params"], updates)
        jax.block_until_ready(held)

    return step


def checkpoint_cases(rows: int, folder: Path) -> dict[str, Case]:
    state = {name: jax.random.normal(jax.random.key(i), (rows, WIDTH)) for i, name in enumerate("pmv")}

    def save() -> None:
        checkpoint.save(folder / "run", 1, state, {"run": "benchmark"})

    def raw() -> None:
        with (folder / "raw").open("wb") as file:
            for leaf in state.values():
                file.write(np.asarray(leaf).data)
            os.fsync(file.fileno())

    save()
    return {
        "write and sync the bytes alone": raw,
        "checkpoint.save": save,
        "checkpoint.latest": lambda: checkpoint.latest(folder / "run", like=state),
    }


def report(title: str, cases: dict[str, Case], rounds: int) -> None:
    for case in cases.values():
        case()
    wall: dict[str, list[float]] = {name: [] for name in cases}
    busy: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start, start_busy = time.perf_counter(), time.process_time()
            case()
            wall[name].append(1e3 * (time.perf_counter() - start))
            busy[name].append(1e3 * (time.process_time() - start_busy) / num_threads())
    base = statistics.median(next(iter(busy.values())))
    print(f"\n**{title}**\n")
    print("| case | median ms | best | processor ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for name in cases:
        median, processor = statistics.median(wall[name]), statistics.median(busy[name])
        print(f"| {name} | {median:.0f} | {min(wall[name]):.0f} | {processor:.0f} | {processor / base:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--coordinates", type=int, default=78_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where checkpoints are written (a temporary folder)")
    arguments = parser.parse_args()
    with_huge_pages()
    rows = arguments.coordinates // WIDTH
    print(f"{rows * WIDTH:,} coordinates, {num_threads()} threads, jax {jax.__version__}")
    report("Noise", noise_cases(rows), arguments.rounds)
    report("Optimizer", optimizer_cases(rows), arguments.rounds)
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        report("Checkpoint of parameters and Adam's state", checkpoint_cases(rows, folder), arguments.rounds)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
