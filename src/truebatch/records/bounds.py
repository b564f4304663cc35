"""What the same noise would have to claim under every sampler: the table beside a run's own claim."""

from typing import Any

from truebatch import accounting
from truebatch.accounting import Bound
from truebatch.errors import TruebatchError
from truebatch.records.plan import RunPlan
from truebatch.specs import SAMPLERS, nearest_multiple
from truebatch.training.privacy import Privacy


def comparison(plan: RunPlan) -> list[dict[str, Any]]:
    """For each sampler, epsilon at the run's sigma and delta: both ends, and what each rests on.

    Samplers of whole epochs are taken at the nearest number of examples that the batch size divides.
    """
    privacy = plan.claim.privacy
    if not isinstance(privacy, Privacy) or plan.claim.sigma == 0:
        return []
    return [_row(plan, privacy, name) for name in SAMPLERS]


def _row(plan: RunPlan, privacy: Privacy, name: str) -> dict[str, Any]:
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
        found = accounting.epsilon(
            other, sigma=plan.claim.sigma, delta=privacy.delta, adjacency=privacy.adjacency
        )
    except TruebatchError as error:
        return {**base, "lower": None, "upper": None, "why": error.message}
    ends = {"lower": _plain(found.lower), "upper": _plain(found.upper)}
    return {**base, **ends, "source": {"lower": found.lower.source, "upper": found.upper.source}}


def _plain(bound: Bound) -> float | None:
    value = None if bound.value is None else float(bound.value)
    return value if value is not None and value < float("inf") else None
