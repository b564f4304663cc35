"""Activations and deltas of every layer, from one example's loss, whatever it does between layers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from truebatch.training.layers import Layer, Use

# A pytree of float32 arrays and layers; one example, by column name, without the batch axis.
Params = Any
Example = Mapping[str, Array]
Loss = Callable[[Params, Any], Array]


class NotOnTape(Exception):
    """A loss uses its layers in a way that leaves activations and deltas unknown; the message says how."""


@dataclass(frozen=True)
class _Tapped:
    """Stands for a layer while a loss is traced: calls are recorded, and nothing else can be asked of it."""

    layer: Layer
    index: int
    tape: "_Tape"

    def __call__(self, *inputs: Any) -> Array:
        arrays = tuple(jnp.asarray(x) for x in inputs)
        return self.tape.record(self.index, arrays, self.layer(*arrays))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(self.layer, name):
            raise AttributeError(name)
        raise NotOnTape(f"the loss reads {name!r} of a layer instead of calling the layer")


class _Tape:
    """Calls in order. Zeros that are added to outputs stand where deltas are taken."""

    def __init__(self, zeros: Sequence[Array] | None) -> None:
        self.zeros = zeros
        self.calls: list[tuple[int, tuple[Array, ...]]] = []
        self.outputs: list[Array] = []

    def record(self, index: int, inputs: tuple[Array, ...], output: Array) -> Array:
        if self.zeros is not None:
            output = output + self.zeros[len(self.calls)]
        self.calls.append((index, inputs))
        self.outputs.append(output)
        return output


def layers_of(params: Params) -> list[Layer]:
    """The layers of a model; NotOnTape when an array belongs to none."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params, is_leaf=_is_layer)[0]:
        if not _is_layer(leaf):
            raise NotOnTape(f"params{jax.tree_util.keystr(path)} belongs to no layer")
        found.append(leaf)
    return found


def replace_layers(params: Params, layers: Sequence[Any]) -> Params:
    """The same model with other layers."""
    return jax.tree.unflatten(jax.tree.structure(params, is_leaf=_is_layer), layers)


def uses_of_layers(loss: Loss, params: Params, examples: Example) -> tuple[Array, list[list[Use]]]:
    """Losses of the examples, and the uses of each layer in the order of `layers_of(params)`.

    One forward pass and one backward pass, which computes deltas and nothing of the size of the layers.
    Raises NotOnTape, or what the loss raises, when it cannot be followed.
    """
    layers = layers_of(params)

    def one(zeros: Sequence[Array] | None, example: Example) -> tuple[Array, _Tape]:
        tape = _Tape(zeros)
        tapped = replace_layers(params, [_Tapped(layer, i, tape) for i, layer in enumerate(layers)])
        return loss(tapped, example), tape

    owners: list[int] = []

    def discover(example: Example) -> tuple[list[Array], list[tuple[Array, ...]]]:
        _, tape = one(None, example)
        owners[:] = [index for index, _ in tape.calls]
        return tape.outputs, [inputs for _, inputs in tape.calls]

    shapes, _ = jax.eval_shape(lambda batch: discover(jax.tree.map(lambda x: x[0], batch)), examples)

    def with_inputs(zeros: Sequence[Array], example: Example) -> tuple[Array, list[tuple[Array, ...]]]:
        value, tape = one(zeros, example)
        return value, [inputs for _, inputs in tape.calls]

    zeros = [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
    per_example = jax.vmap(jax.value_and_grad(with_inputs, has_aux=True), in_axes=(None, 0))
    (losses, inputs), deltas = per_example(zeros, examples)
    uses: list[list[Use]] = [[] for _ in layers]
    for index, given, delta in zip(owners, inputs, deltas, strict=True):
        uses[index].append(Use(given, delta))
    return losses, uses


def _is_layer(leaf: Any) -> bool:
    return isinstance(leaf, Layer)
