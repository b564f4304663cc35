"""What a run will do, known before it does it: rows, sampler, noise, memory."""

from dataclasses import dataclass
from typing import Any

import jax

from truebatch.batching.plan import available_memory
from truebatch.data import Features, Layout, RowRange, Source
from truebatch.errors import InvalidData
from truebatch.records.config import RunConfig, Split
from truebatch.specs import Sampler
from truebatch.training.claim import Claim
from truebatch.training.models import Model, click_model, linear_model
from truebatch.training.privacy import NoPrivacy, Privacy

# Parameters, two moments, gradient and noise words of a step, in bytes a parameter.
_BYTES_A_PARAMETER = 24
_CACHE_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """The parts of a run, by what its config and source say."""

    config: RunConfig
    features: Features
    train: RowRange
    valid: RowRange | None
    test: RowRange | None
    spec: Sampler
    model: Model
    claim: Claim
    gathers: bool

    @classmethod
    def of(cls, source: Source, features: Features, config: RunConfig, split: Split) -> "RunPlan":
        """Everything that can be wrong with a request is found here."""
        features.require(source.schema)
        N = source.num_rows
        a, v = split.edges(N)
        if a == 0:
            raise InvalidData(
                f"a split must leave rows for training; got {N} rows and train={split.train:g}.",
                hint="use more rows, or a larger train share.",
            )
        spec = config.spec(a)
        model = model_of(config, features)
        return cls(
            config=config,
            features=features,
            train=RowRange(source, 0, spec.num_examples),
            valid=RowRange(source, a, v) if a < v else None,
            test=RowRange(source, v, N) if v < N else None,
            spec=spec,
            model=model,
            claim=Claim.of(privacy_of(config, a), spec, num_parameters=num_parameters(model)),
            gathers=_fits(spec.num_examples * Layout.of(features.schema).width),
        )

    def as_dict(self) -> dict[str, Any]:
        """What is asked for and of which data, as plain JSON values: what must not change between runs."""
        return {
            "config": self.config.as_dict(),
            "features": self.features.as_dict(),
            "claim": self.claim.as_dict(),
            "data": {
                "train": self.train.identity(),
                "valid": None if self.valid is None else self.valid.identity(),
                "test": None if self.test is None else self.test.identity(),
            },
        }

    @property
    def memory_bytes(self) -> int:
        """About what a step holds: the state of the model, and a batch."""
        row = Layout.of(self.features.schema).width
        return self.claim.num_parameters * _BYTES_A_PARAMETER + 4 * self.spec.batch_size * row


def privacy_of(config: RunConfig, num_rows: int) -> Privacy | NoPrivacy:
    """The goal of a config, for the sampler that it is accounted as."""
    if not config.private or config.delta is None:
        return NoPrivacy()
    return Privacy(
        spec=config.spec(num_rows, sampler=config.accounted_as),
        clip_norm=config.clip_norm,
        delta=config.delta,
        epsilon=config.epsilon,
        sigma=config.sigma,
    )


def model_of(config: RunConfig, features: Features) -> Model:
    """The model of a config, for these features."""
    if config.model == "linear":
        return linear_model(buckets=features.num_buckets, num_numeric=len(features.numeric))
    return click_model(
        buckets=features.num_buckets,
        num_numeric=len(features.numeric),
        dimension=config.dimension,
        hidden=config.hidden,
    )


def num_parameters(model: Model) -> int:
    """How many numbers a model has, without making them."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: model.init(0))))


def _fits(num_bytes: int) -> bool:
    return num_bytes <= _CACHE_SHARE * available_memory()
