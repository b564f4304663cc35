"""The paper's experiments on training: which runs there are, and what each is asked for.

Figure 3 (left and right) sweeps the batch size at epsilon = 5, Figure 4 (left) sweeps epsilon at one batch
size, for one epoch and for five. A cell is one training run.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from truebatch import accounting
from truebatch.errors import InvalidArgument
from truebatch.records import RunConfig
from truebatch.specs import SAMPLERS, TruncatedPoisson

# The statistical distance of real draws from ideal ones, tiny as it is, costs e^epsilon times itself. Beyond
# this epsilon no delta is left: nothing may be claimed, and the noise is what ideal draws would need.
_LARGEST_CLAIM = 32.0


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A way of drawing batches, and whose noise it adds: its own, another sampler's, or none.

    Shuffles take the noise that they are proven to need at least, as in the paper: an optimistic choice, for
    which no epsilon of the sweep may be claimed.
    """

    name: str
    label: str
    sampler: str
    noise_of: str | None
    optimistic: bool = False


ARMS = {
    arm.name: arm
    for arm in (
        Arm(name="deterministic", label="deterministic", sampler="deterministic", noise_of="deterministic"),
        Arm(
            name="truncated_poisson",
            label="truncated Poisson",
            sampler="truncated_poisson",
            noise_of="truncated_poisson",
        ),
        Arm(
            name="persistent_shuffle",
            label="persistent shuffle, at least",
            sampler="persistent_shuffle",
            noise_of="persistent_shuffle",
            optimistic=True,
        ),
        Arm(
            name="dynamic_shuffle",
            label="dynamic shuffle, at least",
            sampler="dynamic_shuffle",
            noise_of="dynamic_shuffle",
            optimistic=True,
        ),
        Arm(
            name="common_mistake",
            label="dynamic shuffle with Poisson's noise (not private)",
            sampler="dynamic_shuffle",
            noise_of="poisson",
        ),
        Arm(name="plain_poisson", label="Poisson, no privacy", sampler="truncated_poisson", noise_of=None),
        Arm(
            name="plain_persistent",
            label="persistent shuffle, no privacy",
            sampler="persistent_shuffle",
            noise_of=None,
        ),
        Arm(
            name="plain_dynamic",
            label="dynamic shuffle, no privacy",
            sampler="dynamic_shuffle",
            noise_of=None,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training run of the study."""

    arm: str
    batch_size: int
    epochs: int
    epsilon: float
    delta: float
    learning_rate: float
    clip_norm: float
    seed: int
    model: str = "linear"
    optimizer: str = "adam"

    @property
    def name(self) -> str:
        """The name of its file: every field shows in it."""
        text = json.dumps(dataclasses.asdict(self), sort_keys=True)
        return f"{self.arm}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def config(self, num_rows: int) -> RunConfig:
        """The run that it is, on so many training rows; sigma as the arm has it."""
        arm = ARMS[self.arm]
        base: dict[str, Any] = {
            "batch_size": self.batch_size,
            "epochs": self.epochs,
            "sampler": arm.sampler,
            "model": self.model,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "clip_norm": self.clip_norm,
            "seed": self.seed,
        }
        if arm.noise_of is None:
            return RunConfig(**base, private=False)
        if arm.noise_of != arm.sampler:
            base["accounted_as"] = arm.noise_of
        config = RunConfig(**base, epsilon=self.epsilon, delta=self.delta)
        if not arm.optimistic and self.epsilon <= _LARGEST_CLAIM:
            return config
        spec = config.spec(num_rows, sampler=config.accounted_as)
        ends = accounting.sigma(spec, epsilon=self.epsilon, delta=self.delta)
        sigma = (ends.lower if arm.optimistic else ends.upper).value
        if sigma is None:
            raise InvalidArgument(f"no such bound is known for {spec.name}, which {self.arm} takes.")
        if isinstance(spec, TruncatedPoisson):
            base["max_batch_size"] = spec.max_batch_size
        return RunConfig(**base, sigma=float(sigma), delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is varied, and over what the learning rate and the clip norm are tuned."""

    name: str
    arms: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    epsilons: tuple[float, ...]
    epochs: tuple[int, ...] = (1, 5)
    learning_rates: tuple[float, ...] = (0.005, 0.01, 0.05, 0.1)
    clip_norms: tuple[float, ...] = (1.0, 5.0)
    num_seeds: int = 3
    delta: float = 1e-6
    model: str = "linear"
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        for name in self.arms:
            if name not in ARMS:
                raise InvalidArgument(f"an arm must be one of {', '.join(ARMS)}; got {name!r}.")

    def points(self) -> Iterator[tuple[str, int, int, float]]:
        """(arm, batch size, epochs, epsilon); an arm without noise has one epsilon, which is not used."""
        for epochs in self.epochs:
            for batch_size in self.batch_sizes:
                for name in self.arms:
                    plain = ARMS[name].noise_of is None
                    for epsilon in self.epsilons[:1] if plain else self.epsilons:
                        yield name, batch_size, epochs, epsilon

    def tuning(self, point: tuple[str, int, int, float]) -> list[Cell]:
        """The cells of a point among which validation AUC chooses; all of the first seed."""
        clips = self.clip_norms if ARMS[point[0]].noise_of is not None else self.clip_norms[:1]
        return [self._cell(point, rate, clip, 0) for rate in self.learning_rates for clip in clips]

    def repeats(self, chosen: Cell) -> list[Cell]:
        """The chosen cell with every other seed."""
        return [dataclasses.replace(chosen, seed=seed) for seed in range(1, self.num_seeds)]

    def _cell(self, point: tuple[str, int, int, float], rate: float, clip: float, seed: int) -> Cell:
        arm, batch_size, epochs, epsilon = point
        return Cell(
            arm=arm,
            batch_size=batch_size,
            epochs=epochs,
            epsilon=epsilon,
            delta=self.delta,
            learning_rate=rate,
            clip_norm=clip,
            seed=seed,
            model=self.model,
            optimizer=self.optimizer,
        )


# The paper's batch sizes as far as the flights have rows for them, and its epsilons.
BY_BATCH_SIZE = Sweep(
    name="auc-by-batch-size",
    arms=tuple(ARMS),
    batch_sizes=(1024, 2048, 4096, 8192, 16384, 32768, 65536),
    epsilons=(5.0,),
)
BY_EPSILON = Sweep(
    name="auc-by-epsilon",
    arms=tuple(name for name, arm in ARMS.items() if arm.noise_of is not None),
    batch_sizes=(16384,),
    epsilons=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
    learning_rates=(0.01, 0.05, 0.1),
)
SWEEPS = {sweep.name: sweep for sweep in (BY_BATCH_SIZE, BY_EPSILON)}
assert all(arm.sampler in SAMPLERS for arm in ARMS.values())
