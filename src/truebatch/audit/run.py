"""The audit of a run: its sampler, noise and clip norm, by its record; and what of it was not audited."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from truebatch.accounting import Interval
from truebatch.audit.attacks import AttackName, attack, attacks_of
from truebatch.audit.audit import audit
from truebatch.audit.result import Audit, proven
from truebatch.audit.steps import OurStep
from truebatch.audit.trials import Progress
from truebatch.errors import DamagedRun, InvalidArgument
from truebatch.keys import Key
from truebatch.records import Record, RunConfig
from truebatch.specs import SAMPLERS, Sampler, as_dict
from truebatch.training.prepare import Road

# Fewer runs than this prove next to nothing: before, the first steps of the run are audited in place of all.
# Where a run has many canaries, a few are enough.
_FEWEST_RUNS, _FEWEST_OF_MANY = 100, 20
# What cannot have been trained on is not audited: a record may come from anywhere.
_MOST_ROWS, _ROWS_A_STEP = 2**40, 2**16
# Of a sampler without epochs, the first steps are cut to this share at the least.
_LEAST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What a record says of a run's privacy; `claimed` is the sampler that its claim is that of."""

    spec: Sampler
    claimed: Sampler
    sigma: float
    clip_norm: float
    delta: float
    epsilon: float | None
    road: Road
    accounted_as: str | None


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """The audit, of all steps of the run or of its first ones, and what is proven of the whole run."""

    audit: Audit
    recorded: Recorded
    proven: Interval | None

    @property
    def num_steps(self) -> int:
        """How many steps were audited; what they leak, the run leaks."""
        return self.audit.spec.num_steps

    def as_dict(self) -> dict[str, Any]:
        """Plain values for scripts."""
        ends = {} if self.proven is None else {"lower": self.proven.lower, "upper": self.proven.upper}
        values = {side: bound.value for side, bound in ends.items()}
        return {
            "run": {
                "spec": as_dict(self.recorded.spec),
                "accounted_as": self.recorded.accounted_as,
                "proven": {s: v if v is not None and math.isfinite(v) else None for s, v in values.items()}
                or None,
            },
            "not_audited": self.not_audited(),
            **self.audit.as_dict(),
        }

    def not_audited(self) -> list[str]:
        """What the audit says nothing of."""
        left = [
            "the run's model and data: the loss here is linear, and rows are the worst ones",
            "the run's own key and files: keys here are public test keys; truebatch verify checks those",
        ]
        if self.num_steps < self.recorded.spec.num_steps:
            first, all_steps = self.num_steps, self.recorded.spec.num_steps
            left.append(
                f"steps {first:,} to {all_steps - 1:,}: the first {first:,} of {all_steps:,} were run"
            )
        return left


def recorded(directory: Path) -> Recorded:
    """What the record of a run says; one that does not say it is refused."""
    fields = Record.load(directory).fields
    try:
        claim = fields["claim"]
        values = dict(claim["spec"])
        spec = SAMPLERS[values.pop("sampler")](**values)
        accounted_as = claim["accounted_as"]
        found = Recorded(
            spec=spec,
            claimed=spec if accounted_as is None else _named(accounted_as, fields["config"], spec),
            sigma=_number(claim["sigma"] or 0),
            clip_norm=_number(claim["clip_norm"] or 0),
            delta=_number(claim["delta"] or 0),
            epsilon=None if claim["epsilon"] is None else _number(claim["epsilon"]),
            road=fields["training"]["road"],
            accounted_as=accounted_as,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedRun(
            "a record must say sampler, noise, clip norm and claim; "
            f"this one does not ({type(error).__name__}: {error})."
        ) from None
    if found.sigma == 0:
        raise InvalidArgument("an audit needs noise; the run added none and claims nothing.")
    if max(spec.num_examples, spec.num_steps * _ROWS_A_STEP) > _MOST_ROWS:
        raise InvalidArgument(f"an audit is of at most 2^40 rows and 2^24 steps; the record says {spec}.")
    if found.road not in ("layers", "examples"):
        raise DamagedRun(f'a record\'s road must be "layers" or "examples"; got {found.road!r}.')
    return found


def audit_run(
    directory: Path,
    *,
    delta: float | None = None,
    claimed_epsilon: float | None = None,
    trials: int | None = None,
    confidence: float = 0.95,
    attacks: Sequence[AttackName] | None = None,
    seed: int = 0,
    seconds: float = 300.0,
    watch: Callable[[Progress], None] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> RunAudit:
    """Audit the step of a run at the numbers of its record: n, b, T, sigma, clip norm, delta and claim.

    Who names a sampler and sigma claims a whole curve: at another `delta` the claim is the epsilon that the
    claimed sampler has there. A few hundred trials see large deltas best.
    It ends after about `seconds`, with the trials there were. Where not even a hundred runs would fit, the
    first steps stand for the run, whole epochs where the sampler has them: who sees all models sees those of
    the first steps, so what is proven of them holds of the run.
    """
    found = recorded(directory)
    delta = found.delta if delta is None else delta
    if claimed_epsilon is None:
        claimed_epsilon = found.epsilon if delta == found.delta else _claim_at(found, delta)
    spec = first_steps(found, seconds=seconds) if not stop() else found.spec
    result = audit(
        None,
        spec,
        sigma=found.sigma,
        clip_norm=found.clip_norm,
        road=found.road,
        delta=delta,
        claimed_epsilon=claimed_epsilon,
        trials=trials,
        confidence=confidence,
        attacks=attacks,
        seed=seed,
        seconds=seconds,
        watch=watch,
        stop=stop,
    )
    whole = result.proven
    if spec != found.spec:
        whole = proven(found.spec, sigma=found.sigma, clip_norm=found.clip_norm, delta=delta)
    return RunAudit(audit=result, recorded=found, proven=whole)


def _named(name: str, config: Any, drawn: Sampler) -> Sampler:
    """The sampler of this name for the same run."""
    return RunConfig.from_dict(config).spec(drawn.num_examples, sampler=name)


def _claim_at(found: Recorded, delta: float) -> float | None:
    """The epsilon that the claimed sampler may claim with the run's noise at another delta."""
    ends = proven(found.claimed, sigma=found.sigma, clip_norm=found.clip_norm, delta=delta)
    return None if ends is None or ends.upper.value is None else float(ends.upper.value)


def first_steps(found: Recorded, *, seconds: float) -> Sampler:
    """As many of the first steps as a hundred runs have time for."""
    spec, least = found.spec, getattr(found.spec, "steps_per_epoch", None)
    least = least or max(1, math.ceil(_LEAST_SHARE * spec.num_steps))
    if spec.num_steps <= least:
        return spec
    short = dataclasses.replace(spec, num_steps=least)
    step = OurStep(short, sigma=found.sigma, clip_norm=found.clip_norm, road=found.road)
    rows = attack("crowd", short, sigma=found.sigma, clip_norm=found.clip_norm).rows(np.array([True]))
    step(rows, Key.for_tests(0))  # compiles
    began = time.monotonic()
    step(rows, Key.for_tests(1))
    wanted = _FEWEST_RUNS if attacks_of(spec) == ("crowd",) else _FEWEST_OF_MANY
    fit = seconds / wanted / max(time.monotonic() - began, 1e-9)
    return dataclasses.replace(spec, num_steps=min(spec.num_steps, max(1, int(fit)) * least))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"not a number: {value!r}")
    return float(value)
