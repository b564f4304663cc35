"""What a run will do, known before it does it: rows, sampler, noise, memory."""

from dataclasses import dataclass
from typing import Any

import jax

from truebatch.batching import batch_rows
from truebatch.batching.plan import available_memory
from truebatch.data import Features, Layout, RowRange, Source
from truebatch.records.config import RunConfig
from truebatch.records.split import Split, SplitBy, split_as_dict
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
    split: Split | SplitBy
    train: RowRange
    valid: RowRange | None
    test: RowRange | None
    spec: Sampler
    model: Model
    claim: Claim
    gathers: bool

    @classmethod
    def of(cls, source: Source, features: Features, config: RunConfig, split: Split | SplitBy) -> "RunPlan":
        """Everything that can be wrong with a request is found here."""
        features.require(source.schema)
        (first, last), valid, test = split.parts(source)
        spec = config.spec(last - first)
        batch_rows(spec)
        model = model_of(config, features)
        return cls(
            config=config,
            features=features,
            split=split,
            train=RowRange(source, first, first + spec.num_examples),
            valid=None if valid is None else RowRange(source, *valid),
            test=None if test is None else RowRange(source, *test),
            spec=spec,
            model=model,
            claim=Claim.of(privacy_of(config, last - first), spec, num_parameters=num_parameters(model)),
            gathers=_fits(spec.num_examples * Layout.of(features.schema).width),
        )

    def as_dict(self) -> dict[str, Any]:
        """What is asked for and of which data, as plain JSON values: what must not change between runs."""
        return {
            "config": self.config.as_dict(),
            "features": self.features.as_dict(),
            "split": split_as_dict(self.split),
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
        num_runs=config.tuning_runs,
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
