"""What each layer costs on each GPU of a spec.

Modelled costs are of each GPU's device (``cluster.device`` may list one for each); listed layers and measured costs are
of one kind of GPU, and ``cluster.speed`` says how fast each GPU is relative to that. Layers differ from GPU to GPU in
their times alone: what they keep and send is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from weft.models.candidates.family_costs import FamilyCosts, family_costs, uses_measured_gpt
from weft.models.layers.costs import LayerCost, accumulated, explicit_layers, require_possible
from weft.models.layers.measured_gpt import gpt_layers
from weft.models.spec.model_sections import ExplicitModel
from weft.models.spec.sections import Spec, Training
from weft.models.spec.spec import SpecError

__all__ = ["GpuCosts", "families_by_gpu", "gpu_costs", "layer_costs", "layer_costs_by_gpu", "on_one_kind",
           "require_alike", "under_optimizer"]


def layer_costs(spec: Spec) -> list[LayerCost]:
    """The spec's layers, first to last, where all GPUs are of one kind.

    Raises :class:`~weft.models.spec.spec.SpecError` where they are not (see :func:`layer_costs_by_gpu`), that or
    :class:`~weft.models.times.profiles.ProfileError` if there are no costs for them, and what reading a config.json
    raises.
    """
    by_gpu = layer_costs_by_gpu(spec)
    if len({id(layers) for layers in by_gpu}) > 1:
        require_alike(spec, "one list of layers")
    return by_gpu[0]


def layer_costs_by_gpu(spec: Spec) -> tuple[list[LayerCost], ...]:
    """For each GPU the spec's layers, first to last, with their times on it; one object for GPUs of one kind.

    Raises what :func:`layer_costs` raises where there are no costs.
    """
    return gpu_costs(spec).layers


@dataclass(frozen=True)
class GpuCosts:
    """``layers``: those of :func:`layer_costs_by_gpu`. ``notes``: what a reader should know of them. ``families``: for
    each GPU the operators they are of, where costs are by operator; their times are at speed 1."""

    layers: tuple[list[LayerCost], ...]
    notes: tuple[str, ...]
    families: tuple[FamilyCosts, ...] | None


def gpu_costs(spec: Spec) -> GpuCosts:
    """The layers of ``spec`` on each of its GPUs. Raises what :func:`layer_costs` raises where there are no costs."""
    families = None if isinstance(spec.model, ExplicitModel) or uses_measured_gpt(spec) else families_by_gpu(spec)
    found: dict[tuple[str | None, float], list[LayerCost]] = {}
    notes: dict[str, None] = {}
    for gpu, (device, speed) in enumerate(spec.cluster.kinds):
        if (device, speed) in found:
            continue
        if families is None:
            layers = _listed_or_measured(spec)
        else:
            layers = families[gpu].layers
            notes |= dict.fromkeys(families[gpu].notes)
        if speed != 1:
            layers = [_faster(layer, speed) for layer in layers]
            notes["times of layers are divided by each GPU's cluster.speed"] = None
        require_possible(layers, spec.where)
        found[device, speed] = under_optimizer(spec, layers)
    if len(found) > 1:
        notes["stages pass unequal GPUs in the order in which cluster lists them; other orders, and groups of GPUs "
              "that compute layers together, are not tried"] = None
    return GpuCosts(tuple(found[kind] for kind in spec.cluster.kinds), tuple(notes), families)


def families_by_gpu(spec: Spec) -> tuple[FamilyCosts, ...]:
    """For each GPU what :func:`~weft.models.candidates.family_costs.family_costs` says of its device; one object for
    GPUs of one device. Speeds are not in it. Raises what that function raises."""
    found = {device: family_costs(on_one_kind(spec, device)) for device in dict.fromkeys(spec.cluster.devices)}
    return tuple(found[device] for device in spec.cluster.devices)


def on_one_kind(spec: Spec, device: str | None) -> Spec:
    """``spec`` as if all its GPUs were of ``device`` and of speed 1."""
    if spec.cluster.is_plain:
        return spec
    # pydantic does not check a copy, and need not: the whole spec was checked.
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"device": device, "speed": None})})


def require_alike(spec: Spec, what: str) -> None:
    """Refuse a spec whose GPUs are not alike, or of a speed other than 1
    (:class:`~weft.models.spec.spec.SpecError`). ``what``: for which this is needed, the start of a sentence."""
    if not spec.cluster.is_plain:
        entry = "device" if len(set(spec.cluster.devices)) > 1 else "speed"
        raise SpecError(f"{spec.where}: {what} needs GPUs of one kind, but cluster.{entry} says that they differ from "
                        f"each other or from what the costs are of; give one device, and no speed")


def under_optimizer(spec: Spec, layers: Iterable[LayerCost]) -> list[LayerCost]:
    """``layers`` with what their gradients take under the spec's optimizer, beyond
    :func:`~weft.models.candidates.build.bytes_per_parameter`."""
    run = spec.run
    if not isinstance(run, Training) or run.optimizer == "adam":
        return list(layers)
    return [accumulated(layer, run.gradient_bytes) for layer in layers]


def _listed_or_measured(spec: Spec) -> Sequence[LayerCost]:
    """The layers of a spec that lists them, or of a GPT whose costs are measured throughout."""
    if not isinstance(spec.model, ExplicitModel):
        return gpt_layers(spec)
    run = spec.run
    return explicit_layers(spec.model, run.parameter_bytes, training=isinstance(run, Training),
                           recompute=isinstance(run, Training) and run.recompute)


def _faster(layer: LayerCost, speed: float) -> LayerCost:
    """``layer`` on a GPU ``speed`` times as fast; what takes time still takes a nanosecond."""
    def seconds(time: float) -> float:
        return max(round(time / speed, 9), 1e-9) if time else 0.0

    if layer.input_grad is None or layer.weight_grad is None:
        return replace(layer, forward=seconds(layer.forward), backward=seconds(layer.backward))
    input_grad, weight_grad = seconds(layer.input_grad), seconds(layer.weight_grad)
    return replace(layer, forward=seconds(layer.forward), backward=round(input_grad + weight_grad, 9),
                   input_grad=input_grad, weight_grad=weight_grad)
