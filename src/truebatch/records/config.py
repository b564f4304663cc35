"""What a run is asked for: one frozen object, from flags, a file or Python, written into its record."""

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from truebatch.accounting import max_batch_size_by_rule
from truebatch.errors import InvalidArgument, InvalidSpec
from truebatch.specs import SAMPLERS, Sampler, TruncatedPoisson, steps_for_epochs

_WHOLE_EPOCHS = ("deterministic", "persistent_shuffle", "dynamic_shuffle", "balls_and_bins")
_MODELS = ("click", "linear")
_MOST = 2**62
_OPTIMIZERS = ("adam", "adagrad", "sgd")
_SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Sampler, goal, model and optimizer of one run.

    The noise follows from `epsilon`, or is stated as `sigma`; with neither, the run has no privacy, which
    must be meant: `private=False`. `accounted_as` names another sampler than the one that draws the batches:
    the field's common mistake, as a baseline. With `tuning_runs` above 1 the goal is that of so many runs
    together, among which the best is chosen; this is one of them.
    """

    batch_size: int
    epochs: float | None = None
    steps: int | None = None
    sampler: str = TruncatedPoisson.name
    max_batch_size: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    sigma: float | None = None
    clip_norm: float = 1.0
    private: bool = True
    accounted_as: str | None = None
    tuning_runs: int = 1
    model: str = "click"
    dimension: int = 48
    hidden: tuple[int, ...] = (598, 598, 598)
    optimizer: str = "adam"
    learning_rate: float = 1e-3
    schedule: str = "cosine"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for name, known in (
            ("sampler", tuple(SAMPLERS)),
            ("model", _MODELS),
            ("optimizer", _OPTIMIZERS),
            ("schedule", _SCHEDULES),
        ):
            _require_one_of(name, getattr(self, name), known)
        if self.accounted_as is not None:
            _require_one_of("accounted_as", self.accounted_as, tuple(SAMPLERS))
        if (self.epochs is None) == (self.steps is None):
            raise InvalidArgument(
                f"a run's length is epochs or steps; got epochs={self.epochs}, steps={self.steps}."
            )
        for name in (
            "batch_size",
            "epochs",
            "steps",
            "max_batch_size",
            "clip_norm",
            "dimension",
            "learning_rate",
        ):
            _require_positive(name, getattr(self, name))
        self._require_goal()
        self._require_runs()

    def _require_goal(self) -> None:
        if not self.private:
            for name in ("epsilon", "sigma", "accounted_as"):
                if getattr(self, name) is not None:
                    raise InvalidArgument(
                        f"a run without privacy has no goal; got {name}={getattr(self, name)!r} "
                        "with private=False."
                    )
            return
        if (self.epsilon is None) == (self.sigma is None):
            raise InvalidArgument(
                "noise is stated by one of epsilon and sigma; "
                f"got epsilon={self.epsilon}, sigma={self.sigma}.",
                hint="give epsilon and delta, and sigma follows from the accountant.",
            )
        if self.delta is None or not 0 < self.delta < 1:
            raise InvalidArgument(f"delta must be above 0 and below 1; got delta={self.delta}.")
        for name in ("epsilon", "sigma"):
            _require_positive(name, getattr(self, name))

    def _require_runs(self) -> None:
        if (
            isinstance(self.tuning_runs, bool)
            or not isinstance(self.tuning_runs, int)
            or self.tuning_runs < 1
        ):
            raise InvalidArgument(
                f"tuning_runs must be a whole number of at least 1; got tuning_runs={self.tuning_runs!r}."
            )
        if self.tuning_runs > 1 and (not self.private or self.accounted_as is not None):
            raise InvalidArgument(
                "tuning_runs shares a guarantee out among runs, and this run has none; "
                f"got tuning_runs={self.tuning_runs} with private={self.private}, "
                f"accounted_as={self.accounted_as!r}."
            )

    def num_examples(self, num_rows: int) -> int:
        """How many training rows are used: samplers of whole epochs leave out what b does not divide."""
        if self.batch_size > num_rows:
            raise InvalidSpec(
                "batch_size must be at most the number of training rows; "
                f"got batch_size={self.batch_size} for {num_rows} rows."
            )
        whole = {self.sampler, self.accounted_as} & set(_WHOLE_EPOCHS)
        return num_rows - num_rows % self.batch_size if whole else num_rows

    def spec(self, num_rows: int, *, sampler: str | None = None) -> Sampler:
        """The sampler that draws batches from so many training rows; or another for the same run."""
        name, n, b = sampler or self.sampler, self.num_examples(num_rows), self.batch_size
        T = self.steps or steps_for_epochs(num_examples=n, batch_size=b, num_epochs=self.epochs or 1.0)
        if name != TruncatedPoisson.name:
            return SAMPLERS[name](num_examples=n, batch_size=b, num_steps=T)
        cap = self.max_batch_size
        if cap is None:
            # Without a goal, the cap is that of a strict one: it decides how much padding there is, no more.
            cap = max_batch_size_by_rule(
                num_examples=n,
                batch_size=b,
                num_steps=T * self.tuning_runs,
                epsilon=self.epsilon if self.epsilon is not None else 1.0,
                delta=self.delta if self.delta is not None else 1e-8,
            )
        return TruncatedPoisson(num_examples=n, batch_size=b, num_steps=T, max_batch_size=cap)

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {**dataclasses.asdict(self), "hidden": list(self.hidden)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The config of these values; a name that is not one of ours is refused."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise InvalidArgument(
                    f"a config must have names of ours only; got {name!r}.",
                    hint=f"there are: {', '.join(sorted(known))}.",
                )
        try:
            return cls(**values)
        except TypeError as error:
            raise InvalidArgument(f"a config must be complete, of the right types: {error}.") from None


def _require_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InvalidArgument(f"{name} must be one of {', '.join(known)}; got {value!r}.")


def _require_positive(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
        raise InvalidArgument(
            f"{name} must be a positive number of at most 2^62; got {name}={reprlib.repr(value)}."
        )
