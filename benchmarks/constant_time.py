"""What a step's duration tells of its batch's size, and what it costs that it tells nothing.

    python benchmarks/constant_time.py                     # 1,024 and 8,192: some minutes
    python benchmarks/constant_time.py --sizes 1024 --rounds 50

The clipped sum of the 78-million-parameter model over one batch of B slots. As many are real as three
standard deviations below the expected size b, as b itself, as three above, and all: as it is, and with
`constant_time`. The cases take turns, round after round; a line shows the median of the rounds in
milliseconds. `rest` is noise and update, which do not depend on the batch. The cost is that of the whole step
at the expected size.
"""

import argparse
import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch import Key, TruncatedPoisson
from truebatch.training import optimizers
from truebatch.training.clipping import by_layers
from truebatch.training.microbatches import micro_batch_rows, sum_on_one_device
from truebatch.training.models import PAPER_BUCKETS, click_model
from truebatch.training.noise import Noise
from truebatch.training.privacy import Privacy
from truebatch.training.update import compiled_update

CAPS = {1024: 1328, 2048: 2469, 4096: 4681, 8192: 9007, 16384: 17520, 32768: 34355, 65536: 67754}
NUM_EXAMPLES, SIGMA, CLIP_NORM = 36_672_493, 0.55, 1.0


def rows(count: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    c = (PAPER_BUCKETS * rng.random((count, 26)) ** 3).astype(np.int32)
    i = rng.normal(size=(count, 13)).astype(np.float32)
    label = (rng.random(count) < 0.03).astype(np.int8)
    return {"i": jnp.asarray(i), "c": jnp.asarray(c), "label": jnp.asarray(label)}


def measure(model: Any, b: int, rounds: int) -> None:
    B = CAPS[b]
    spec = TruncatedPoisson(num_examples=NUM_EXAMPLES, batch_size=b, num_steps=10, max_batch_size=B)
    privacy = Privacy(spec=spec, clip_norm=CLIP_NORM, sigma=SIGMA, delta=2.7e-8)
    micro, params, examples = micro_batch_rows(B), model.init(0), rows(B)
    noise = Noise(Key.for_tests(0), privacy.noise_sigma(num_parameters(params)), CLIP_NORM)
    optimizer = optimizers.adam(1e-3)
    state, update = optimizer.init(params), compiled_update(optimizer, batch_size=b)
    scratch = jax.tree.map(jnp.zeros_like, params)
    add, spread = by_layers(model.loss, clip_norm=CLIP_NORM), round(3 * math.sqrt(b))
    sums = {on: sum_on_one_device(add, micro_batch=micro, constant_time=on) for on in (False, True)}
    cases = [(on, size) for on in sums for size in (b - spread, b, b + spread, B)]
    seen: dict[Any, list[float]] = {case: [] for case in (*cases, "rest")}
    for step in range(rounds + 1):
        for case in cases:
            on, size = case
            weights = jnp.asarray((np.arange(B) < size).astype(np.float32))
            began = time.perf_counter()
            gradient = jax.block_until_ready(sums[on](params, scratch, examples, weights)).gradient
            seen[case].append(time.perf_counter() - began)
            began = time.perf_counter()
            params, state = jax.block_until_ready(update(params, state, noise.add(step, gradient)))
            seen["rest"].append(time.perf_counter() - began)
            scratch = gradient
    median = {case: 1e3 * statistics.median(times[1:]) for case, times in seen.items()}  # the first compiles
    for on in sums:
        line = "  ".join(f"{size:,}: {median[on, size]:7.1f}" for case_on, size in cases if case_on is on)
        print(f"b = {b:,}, B = {B:,}, constant time {'on ' if on else 'off'}  real rows -> ms  {line}")
    whole = [median[on, b] + median["rest"] for on in sums]
    print(
        f"b = {b:,}: rest of the step {median['rest']:.1f} ms; the step costs {whole[1] / whole[0]:.3f} times"
    )


def num_parameters(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 8192], choices=list(CAPS))
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    model = click_model()
    for b in arguments.sizes:
        measure(model, b, arguments.rounds)


if __name__ == "__main__":
    main()
