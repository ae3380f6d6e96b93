"""The costs of one layer for one micro-batch.

Times are seconds in multiples of 1 ns, sizes are bytes. A family's layers come from :mod:`weft.models.zoo`; listed
layers have the spec's costs (:func:`explicit_layers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.models.files.limits import MAX_MODEL_BYTES
from weft.models.spec.model_sections import ExplicitModel, LayerSpec
from weft.models.spec.quantities import LONGEST
from weft.models.spec.spec import SpecError

#: Maximum bytes of a parameter with its gradient and optimizer state (a spec's own limits).
_STATE = 96


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one micro-batch.

    The executor assumed by these costs frees tensors needed only by the input gradient after it, and keeps the inputs
    of linear layers and the gradients of their outputs until the weight gradient.
    """

    name: str
    forward: float
    #: The whole backward; 0 in inference.
    backward: float
    #: The two parts of the backward, ``None`` if unknown; they add up to it within 1 ns.
    input_grad: float | None
    weight_grad: float | None
    parameters: int
    #: Kept from the forward for the backward: the layer's input and its saved tensors, not its output (the next
    #: layer's).
    activation_bytes: int
    #: Kept between input gradient and weight gradient.
    weight_grad_bytes: int
    output_bytes: int
    #: Needed beyond kept tensors, only while a block of this layer runs.
    workspace_forward: int = 0
    workspace_backward: int = 0
    workspace_weight_grad: int = 0
    #: The layer's input, kept by recomputation.
    input_bytes: int = 0
    #: Needed while a forward runs that keeps nothing (inference, recomputation), the input included.
    working_set: int = 0
    #: Of ``activation_bytes``, tensors also kept by other layers: names and bytes. A stage with several of them has
    #: each once.
    shared_activations: tuple[tuple[str, int], ...] = ()
    #: Of ``input_bytes``, tensors also read by other layers: names and bytes.
    shared_inputs: tuple[tuple[str, int], ...] = ()
    #: Of ``parameters``, those shared with other layers: names and numbers. A stage with several of them has each once.
    shared_parameters: tuple[tuple[str, int], ...] = ()
    #: Of ``parameters``, copies tied to other layers' parameters: names and numbers.
    copied_parameters: tuple[tuple[str, int], ...] = ()
    #: Gradients kept through the step while others are not: names and bytes. A stage has each once.
    held_gradients: tuple[tuple[str, int], ...] = ()

    @property
    def is_split(self) -> bool:
        """Whether the two parts of its backward are known."""
        return self.input_grad is not None


def require_possible(layers: Sequence[LayerCost], where: str) -> None:
    """Refuse layers that no cluster could hold or run (:class:`~weft.models.spec.spec.SpecError`): sizes that are
    acceptable individually can be excessive together."""
    for what, sizes in (
            ("parameters", [layer.parameters * _STATE for layer in layers]),
            ("activations and workspace", [
                layer.activation_bytes + layer.output_bytes + layer.input_bytes + layer.working_set
                + max(layer.workspace_forward, layer.workspace_backward, layer.workspace_weight_grad)
                for layer in layers])):
        if sum(sizes) > MAX_MODEL_BYTES:
            largest = layers[max(range(len(layers)), key=sizes.__getitem__)]
            raise SpecError(f"{where}: the {what} of the model are beyond {MAX_MODEL_BYTES // 1024**4} TiB, most of it "
                            f"in layer {largest.name!r}; give smaller sizes or a smaller micro_batch_size")
    seconds = [layer.forward + layer.backward for layer in layers]
    if sum(seconds) > LONGEST:
        raise SpecError(f"{where}: one micro-batch takes {sum(seconds):.3g} s, at most {LONGEST:g} s are supported; "
                        "give smaller sizes or times")


def recomputed(layer: LayerCost) -> LayerCost:
    """The same layer keeping only its input, with the forward recomputed in its backward (its input gradient)."""
    return replace(
        layer,
        backward=round(layer.backward + layer.forward, 9),
        input_grad=None if layer.input_grad is None else round(layer.input_grad + layer.forward, 9),
        activation_bytes=layer.input_bytes,
        shared_activations=layer.shared_inputs,
        workspace_forward=max(0, layer.working_set - layer.input_bytes),
        workspace_backward=max(0, layer.working_set - layer.input_bytes,
                               layer.activation_bytes + layer.workspace_backward - layer.input_bytes),
    )


def accumulated(layer: LayerCost, gradient_bytes: int) -> LayerCost:
    """The same layer under AdamA, which frees each gradient as soon as it is complete.

    While a block computes gradients, at most those of one layer exist at once, beside autograd's tensors. A tied
    parameter's gradient is complete when all its layers have run, so it is kept through the step. (See
    ``runtime/train/accumulation.py``.)
    """
    if not layer.backward:
        return layer
    tied = (*layer.shared_parameters, *layer.copied_parameters)
    passing = gradient_bytes * (layer.parameters - sum(count for _, count in tied))
    return replace(
        layer,
        workspace_backward=layer.workspace_backward + passing,
        workspace_weight_grad=layer.workspace_weight_grad + passing,
        held_gradients=tuple((f"gradient of {name}", gradient_bytes * count) for name, count in tied),
    )


def explicit_layers(model: ExplicitModel, parameter_bytes: int, *, training: bool, recompute: bool) -> list[LayerCost]:
    """The layers listed in a spec, with repeats expanded.

    A layer's input is the previous one's output (0 bytes for the first); with ``recompute`` every layer keeps that.
    """
    layers: list[LayerCost] = []
    for entry in model.layers:
        for i in range(entry.repeat):
            name = entry.name if entry.repeat == 1 else f"{entry.name}.{i}"
            before = layers[-1].output_bytes if layers else 0
            layer = _explicit_layer(entry, name, before, parameter_bytes, training)
            layers.append(recomputed(layer) if recompute else layer)
    return layers


def _explicit_layer(entry: LayerSpec, name: str, input_bytes: int, parameter_bytes: int, training: bool) -> LayerCost:
    backward, input_grad, weight_grad = 0.0, None, None
    if training and entry.input_grad is not None and entry.weight_grad is not None:
        input_grad, weight_grad = round(entry.input_grad, 9), round(entry.weight_grad, 9)
        backward = round(input_grad + weight_grad, 9)
    elif training and entry.backward is not None:
        backward = round(entry.backward, 9)
    parameters = entry.parameters or 0
    if entry.weights is not None:
        parameters = math.ceil(entry.weights / parameter_bytes)
    kept = entry.activation_memory
    return LayerCost(
        name, round(entry.forward, 9), backward, input_grad, weight_grad, parameters,
        activation_bytes=kept,
        weight_grad_bytes=kept if entry.weight_grad_memory is None else entry.weight_grad_memory,
        output_bytes=entry.output,
        workspace_forward=entry.workspace, workspace_backward=entry.workspace, workspace_weight_grad=entry.workspace,
        input_bytes=input_bytes, working_set=max(kept, input_bytes) + entry.workspace)
