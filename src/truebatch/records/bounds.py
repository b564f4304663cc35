"""What the same noise would have to claim under every sampler: the table beside a run's own claim."""

from typing import Any

from truebatch import accounting
from truebatch.accounting.bounds import Number
from truebatch.accounting.rounding import effective_sigma
from truebatch.accounting.several_runs import lower_sampler_of_runs, upper_sampler_of_runs
from truebatch.errors import TruebatchError
from truebatch.records.plan import RunPlan
from truebatch.specs import SAMPLERS, nearest_multiple
from truebatch.training.privacy import Privacy


def comparison(plan: RunPlan) -> list[dict[str, Any]]:
    """For each sampler, epsilon at the run's noise and delta: both ends, and what each rests on.

    Upper ends are for the noise that is left after rounding, lower ends for the noise that is added; for the
    run's own sampler they are those of its claim. Where the claim is of several runs, so are they all.
    Samplers of whole epochs are taken at the nearest number of examples that the batch size divides.
    """
    privacy = plan.claim.privacy
    if not isinstance(privacy, Privacy) or plan.claim.sigma == 0:
        return []
    return [_row(plan, privacy, name) for name in SAMPLERS]


def _row(plan: RunPlan, privacy: Privacy, name: str) -> dict[str, Any]:
    left = effective_sigma(
        sigma=plan.claim.sigma, clip_norm=privacy.clip_norm, num_coordinates=plan.claim.num_parameters
    )
    spec, base = plan.spec, {"sampler": name, "adjacency": str(privacy.adjacency), "delta": privacy.delta}
    try:
        if name == spec.name:
            other = spec
        else:
            b, n = spec.batch_size, nearest_multiple(spec.num_examples, spec.batch_size)
            cap = (
                {"max_batch_size": getattr(spec, "max_batch_size", 2 * b)}
                if name == "truncated_poisson"
                else {}
            )
            other = SAMPLERS[name](
                num_examples=n, batch_size=b, num_steps=nearest_multiple(spec.num_steps, n // b), **cap
            )
        lower, upper = (
            accounting.epsilon(of_runs, sigma=sigma, delta=privacy.delta, adjacency=privacy.adjacency)
            for sigma, of_runs in (
                (plan.claim.sigma, lower_sampler_of_runs(other, num_runs=privacy.num_runs)),
                (left, upper_sampler_of_runs(other, num_runs=privacy.num_runs)),
            )
        )
    except TruebatchError as error:
        return {**base, "lower": None, "upper": None, "why": error.message}
    least, most = lower.lower.value, upper.upper.value
    if name == spec.name:
        least, most = plan.claim.epsilon_lower, plan.claim.epsilon_of_batches
    return {
        **base,
        "lower": _plain(least),
        "upper": _plain(most),
        "source": {"lower": lower.lower.source, "upper": upper.upper.source},
    }


def _plain(value: Number | None) -> float | None:
    return float(value) if value is not None and value < float("inf") else None
