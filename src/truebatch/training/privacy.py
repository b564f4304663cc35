"""What a run may claim: the noise it adds, and the sampler whose accounting says so."""

import math
from dataclasses import dataclass

from truebatch import accounting
from truebatch.accounting import Adjacency, Bound, UnknownAnalysis
from truebatch.accounting.rounding import effective_sigma, sigma_to_add
from truebatch.accounting.several_runs import lower_sampler_of_runs, upper_sampler_of_runs
from truebatch.errors import InvalidArgument, PrivacyMismatch
from truebatch.keys import Key
from truebatch.sampling import schedule
from truebatch.specs import Sampler
from truebatch.training.noise import statistical_distance

_FEWEST_STEPS = 32


@dataclass(frozen=True, kw_only=True)
class NoPrivacy:
    """Training without noise, and without clipping unless a clip norm is given. Nothing may be claimed."""

    clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.clip_norm is not None:
            _require_positive("clip_norm", self.clip_norm)


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Per-example clipping to `clip_norm`, and noise for (epsilon, delta), or of a stated sigma.

    `spec` is the sampler that is accounted for. It must be the one that drew the batches; training refuses
    another unless told `accounted_as`. Every number is the upper end, the one that may be claimed.

    With `num_runs`, (epsilon, delta) is that of so many runs together, this one among them: of their models
    and of the choice of the best. Each must state the same sampler, goal and `num_runs`, have no more
    parameters than this one, and batches and noise of a key of its own.
    """

    spec: Sampler
    clip_norm: float
    delta: float
    epsilon: float | None = None
    sigma: float | None = None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    num_runs: int = 1

    def __post_init__(self) -> None:
        _require_positive("clip_norm", self.clip_norm)
        if not 0 < self.delta < 1:
            raise InvalidArgument(f"delta must be above 0 and below 1; got delta={self.delta}.")
        if (self.epsilon is None) == (self.sigma is None):
            raise InvalidArgument(
                "noise is stated by one of epsilon and sigma; "
                f"got epsilon={self.epsilon}, sigma={self.sigma}.",
                hint="give epsilon, and sigma follows from the accountant.",
            )
        if self.sigma is not None and not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise InvalidArgument(f"sigma must be a number from 0 on; got sigma={self.sigma}.")
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        upper_sampler_of_runs(self.spec, num_runs=self.num_runs)

    def noise_sigma(self, num_parameters: int) -> float:
        """The noise to add, in units of the clip norm: what the accountant asks for, and the grid's share."""
        if self.sigma is not None:
            return self.sigma
        needed = accounting.sigma(
            upper_sampler_of_runs(self.spec, num_runs=self.num_runs),
            epsilon=self.epsilon or 0.0,
            delta=self.delta,
            adjacency=self.adjacency,
            statistical_distance=self._statistical_distance(num_parameters),
        ).upper
        return sigma_to_add(
            effective=_known(needed), clip_norm=self.clip_norm, num_coordinates=num_parameters
        )

    def epsilon_after(self, num_steps: int, *, noise_sigma: float, num_parameters: int) -> float:
        """What may be claimed at `delta` after some steps with this noise: a function of public numbers.

        Where there are several runs, after all steps of the others and these of this one.
        Samplers that walk through whole epochs are accounted for the epoch they are in, and the first steps
        of a run for 32 of them, since bounds on very few steps are the slowest to find.
        """
        if num_steps == 0 and self.num_runs == 1:
            return 0.0
        if noise_sigma == 0:
            return math.inf
        sigma = effective_sigma(sigma=noise_sigma, clip_norm=self.clip_norm, num_coordinates=num_parameters)
        last = self._accounted_steps(num_steps)
        spec = upper_sampler_of_runs(self.spec, num_runs=self.num_runs, last_steps=last)
        found = accounting.epsilon(
            spec,
            sigma=sigma,
            delta=self.delta,
            adjacency=self.adjacency,
            statistical_distance=self._statistical_distance(num_parameters),
        ).upper
        # What sigma was calibrated for holds; finding it again rounds up a second time.
        return min(_known(found), math.inf if self.epsilon is None else self.epsilon)

    def epsilon_lower(self, *, noise_sigma: float, num_parameters: int) -> float | None:
        """What is proven against all steps with this noise at `delta`; None where no bound is known.

        Of the noise as it is added: rounding to the grid, 2^22 steps to a standard deviation, takes less off
        than any digit that is shown.
        """
        if noise_sigma == 0:
            return math.inf
        found = accounting.epsilon(
            lower_sampler_of_runs(self.spec, num_runs=self.num_runs),
            sigma=noise_sigma,
            delta=self.delta,
            adjacency=self.adjacency,
            statistical_distance=self._statistical_distance(num_parameters),
        ).lower
        return None if found.value is None else float(found.value)

    def _accounted_steps(self, num_steps: int) -> int:
        per_epoch: int = getattr(self.spec, "steps_per_epoch", 1)
        return min(self.spec.num_steps, -(-max(num_steps, _FEWEST_STEPS) // per_epoch) * per_epoch)

    def _statistical_distance(self, num_parameters: int) -> float:
        """Of all that is drawn, batches and noise, from what is accounted for; the same for every key."""
        noise = statistical_distance(num_coordinates=num_parameters, num_steps=self.spec.num_steps)
        return self.num_runs * (schedule(self.spec, Key.for_tests(0)).statistical_distance + noise)


def require_match(drawn_by: Sampler, privacy: Privacy | NoPrivacy, *, accounted_as: str | None) -> None:
    """Refuse noise that was calibrated for another sampler than the one that drew the batches.

    The wrong pairing is a baseline of the paper; `accounted_as`, the name of the sampler that is accounted
    for, says that it is meant.
    """
    if isinstance(privacy, NoPrivacy):
        if accounted_as is not None:
            raise PrivacyMismatch(
                f"without noise nothing is accounted for; got accounted_as={accounted_as!r} and NoPrivacy."
            )
        return
    for_kind, drawn_kind = type(privacy.spec).__name__, type(drawn_by).__name__
    if accounted_as is None:
        if drawn_by != privacy.spec:
            raise PrivacyMismatch(
                f"batches come from {drawn_by} but sigma was calibrated for {privacy.spec}.",
                hint=f'pass accounted_as="{for_kind}" if this is the deliberately wrong baseline.',
            )
        return
    if accounted_as not in {for_kind, privacy.spec.name}:
        raise PrivacyMismatch(
            "accounted_as must name the sampler that sigma was calibrated for; "
            f"got accounted_as={accounted_as!r}, and sigma for {for_kind}."
        )
    if drawn_by == privacy.spec:
        raise PrivacyMismatch(
            f"accounted_as is for noise of another sampler; batches and noise are both of {drawn_kind}.",
            hint="leave accounted_as out.",
        )


def _known(bound: Bound) -> float:
    if bound.value is None:
        raise UnknownAnalysis(
            f"a run needs an upper bound to claim; {bound.source}.",
            hint="use TruncatedPoisson, or NoPrivacy().",
        )
    return float(bound.value)


def _require_positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
        raise InvalidArgument(f"{name} must be a positive number; got {name}={value!r}.")
