"""Batches to a model: clip, noise, optimize, checkpoint, evaluate."""

from truebatch.errors import MissingExtra

try:
    import jax as _jax
    import optax as _optax
except ImportError as error:
    raise MissingExtra("training needs JAX and Optax.", hint="pip install 'truebatch[train]'") from error

from truebatch.training import metrics, optimizers
from truebatch.training.claim import Claim
from truebatch.training.layers import Affine, Dense, Embedding, Layer, Use
from truebatch.training.models import Model, click_model, linear_model
from truebatch.training.noise import Noise
from truebatch.training.privacy import NoPrivacy, Privacy
from truebatch.training.progress import show_progress
from truebatch.training.train import Progress, Trained, train

del _jax, _optax

__all__ = [
    "Affine",
    "Claim",
    "Dense",
    "Embedding",
    "Layer",
    "Model",
    "NoPrivacy",
    "Noise",
    "Privacy",
    "Progress",
    "Trained",
    "Use",
    "click_model",
    "linear_model",
    "metrics",
    "optimizers",
    "show_progress",
    "train",
]
