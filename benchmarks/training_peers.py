"""Other libraries' full step of the same model, where they are installed.

What takes minutes a step is timed on a few rows, and the time of a step is worked out from theirs.
"""

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from truebatch.training.models import click_model

DIMENSION, HIDDEN, NUM_NUMERIC = 48, 598, 13
SIGMA, CLIP_NORM, RATE = 0.55, 1.0, 1e-3
# Of 313 MB of gradient each.
FEW_ROWS = 8

Step = Callable[[], None]
Make = Callable[[int, Mapping[str, Any]], Step]


def available() -> dict[str, Make]:
    """Full steps."""
    found: dict[str, Make] = {}
    if _has("torch"):
        found["PyTorch, no privacy"] = torch_plain
    if _has("torch") and _has("opacus"):
        found["Opacus ghost"] = opacus_ghost
    return found


def slow() -> dict[str, Make]:
    """Those that make every gradient: a step of theirs is FEW_ROWS rows of it, without noise and update."""
    found: dict[str, Make] = {}
    if _has("torch") and _has("opacus"):
        found["Opacus hooks, 8 rows at once"] = opacus_hooks
    if _has("jax_privacy"):
        found["jax_privacy, 1 row at once"] = jax_privacy_rows
    return found


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _load(name: str) -> Any:
    return importlib.import_module(name)


def _torch_model(buckets: int, num_categorical: int) -> Any:
    torch, nn = _load("torch"), _load("torch.nn")

    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(buckets * num_categorical, DIMENSION)
            widths = [NUM_NUMERIC + DIMENSION * num_categorical, HIDDEN, HIDDEN, HIDDEN]
            layers: list[nn.Module] = []
            for inputs, outputs in itertools.pairwise(widths):
                layers += [nn.Linear(inputs, outputs), nn.ReLU()]
            self.rest = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))

        def forward(self, i: Any, c: Any) -> Any:
            return self.rest(torch.cat([i, self.table(c).flatten(1)], dim=1))[:, 0]

    return Clicks()


def _torch_rows(rows: Mapping[str, Any], count: int) -> tuple[Any, Any, Any, int]:
    torch = _load("torch")

    c = np.asarray(rows["c"][:count], np.int64)
    buckets = 61_538
    c = c + np.arange(c.shape[1]) * buckets
    label = torch.tensor(np.asarray(rows["label"][:count], np.float32))
    return torch.tensor(rows["i"][:count]), torch.tensor(c), label, buckets


def torch_plain(b: int, rows: Mapping[str, Any]) -> Step:
    torch = _load("torch")

    i, c, label, buckets = _torch_rows(rows, b)
    model = _torch_model(buckets, c.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.binary_cross_entropy_with_logits(model(i, c), label).backward()
        optimizer.step()

    return step


def opacus_ghost(b: int, rows: Mapping[str, Any]) -> Step:
    torch, samples, optimizers = _load("torch"), _load("opacus.grad_sample"), _load("opacus.optimizers")
    losses = _load("opacus.utils.fast_gradient_clipping_utils")

    i, c, label, buckets = _torch_rows(rows, b)
    model = samples.GradSampleModuleFastGradientClipping(
        _torch_model(buckets, c.shape[1]), max_grad_norm=CLIP_NORM, use_ghost_clipping=True
    )
    optimizer = optimizers.DPOptimizerFastGradientClipping(
        torch.optim.Adam(model.parameters(), lr=RATE, fused=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=b,
    )
    loss = losses.DPLossFastGradientClipping(model, optimizer, torch.nn.BCEWithLogitsLoss(reduction="mean"))

    def step() -> None:
        optimizer.zero_grad()
        loss(model(i, c), label).backward()
        optimizer.step()

    return step


def opacus_hooks(b: int, rows: Mapping[str, Any]) -> Step:
    """One micro-batch of gradients, clipped and added up; the step's noise and update are left out."""
    torch, opacus, optimizers = _load("torch"), _load("opacus"), _load("opacus.optimizers")

    i, c, label, buckets = _torch_rows(rows, FEW_ROWS)
    model = opacus.GradSampleModule(_torch_model(buckets, c.shape[1]))
    optimizer = optimizers.DPOptimizer(
        torch.optim.Adam(model.parameters(), lr=RATE, fused=True),
        noise_multiplier=SIGMA,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=b,
    )

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.binary_cross_entropy_with_logits(model(i, c), label).backward()
        optimizer.signal_skip_step(True)
        optimizer.step()

    return step


def jax_privacy_rows(b: int, rows: Mapping[str, Any]) -> Step:
    """A few rows' gradients one at a time, clipped and added up; noise and update are left out."""
    del b
    clipping = _load("jax_privacy.clipping")
    model = click_model()
    params = model.init(0)
    few = {name: jnp.asarray(x[:FEW_ROWS]) for name, x in rows.items()}

    def loss(params: Any, batch: Any) -> Any:
        return jax.vmap(model.loss, (None, 0))(params, batch).mean()

    gradient = jax.jit(
        clipping.clipped_grad(
            loss, l2_clip_norm=CLIP_NORM, batch_argnums=1, microbatch_size=1, keep_batch_dim=True
        )
    )

    def step() -> None:
        jax.block_until_ready(gradient(params, few))

    return step
