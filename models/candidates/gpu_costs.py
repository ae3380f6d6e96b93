"""The costs of each layer on each GPU of a spec.

Modelled costs are those of each GPU's device (``cluster.device`` may list one for each); listed layers and measured
costs refer to one kind of GPU, and ``cluster.speed`` gives the relative speed of each GPU. Only the times of layers
differ between GPUs: their memory and messages are the same everywhere.

The layers of a family or of an operator graph with their costs: the spec's source of times, and its coverage.

``costs`` in a spec names a device to model, ``roofline`` for the cluster's device, a shipped profile or a profile file
(Aceso's CSV, or measured operators in ``weft.operator-times/1``). A profile gives the operators of its own sizes; the
rest is modelled for the profile's device, or interpolated from measurements, and named in the notes. GPT-1.3B in the
sizes of its profile has separate costs (:mod:`weft.models.layers.measured_gpt`), all measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

from weft.models.graph.operator_files import load_graph
from weft.models.graph.operators import OperatorError, OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.costs import LayerCost, accumulated, explicit_layers, require_possible
from weft.models.layers.layering import in_order, is_chain, layers_of
from weft.models.layers.measured_gpt import gpt_layers
from weft.models.spec.base import Section
from weft.models.spec.families import GptModel
from weft.models.spec.huggingface import UnknownType, read_config
from weft.models.spec.model_sections import ConfigModel, ExplicitModel, GraphModel, GraphNetworkModel
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError, named_file, path_in
from weft.models.times.measured_times import load_times
from weft.models.times.operator_times import OperatorTime, OperatorTimes
from weft.models.times.profile_times import ProfileTimes, rows_of
from weft.models.times.profiles import DEGREES, PROFILES, ProfileError, load_profile, profiles_beside, shipped_profile
from weft.models.times.roofline import Roofline


def layer_costs(spec: Spec) -> list[LayerCost]:
    """The spec's layers, first to last, if all GPUs are of one kind.

    Raises :class:`~weft.models.spec.spec.SpecError` if they are not (see :func:`layer_costs_by_gpu`), that or
    :class:`~weft.models.times.profiles.ProfileError` if there are no costs for them, and the exceptions of reading a
    config.json.
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
    """``layers``: those of :func:`layer_costs_by_gpu`. ``notes``: remarks on them. ``families``: for each GPU the
    operators of the layers, if costs are by operator; their times are at speed 1."""

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
    """For each GPU the :func:`~weft.models.candidates.gpu_costs.family_costs` of its device; one object for GPUs of one
    device. Speeds are not included. Raises the exceptions of that function."""
    found = {device: family_costs(on_one_kind(spec, device)) for device in dict.fromkeys(spec.cluster.devices)}
    return tuple(found[device] for device in spec.cluster.devices)


def on_one_kind(spec: Spec, device: str | None) -> Spec:
    """``spec`` with all GPUs of ``device`` and of speed 1."""
    if spec.cluster.is_plain:
        return spec
    # pydantic does not check a copy, and need not: the spec was checked.
    return spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"device": device, "speed": None})})


def require_alike(spec: Spec, what: str) -> None:
    """Refuse a spec whose GPUs are not alike, or of a speed other than 1
    (:class:`~weft.models.spec.spec.SpecError`). ``what``: the feature that requires this, the start of a sentence."""
    if not spec.cluster.is_plain:
        entry = "device" if len(set(spec.cluster.devices)) > 1 else "speed"
        raise SpecError(f"{spec.where}: {what} needs GPUs of one kind, but cluster.{entry} says that they differ from "
                        f"each other or from what the costs are of; give one device, and no speed")


def under_optimizer(spec: Spec, layers: Iterable[LayerCost]) -> list[LayerCost]:
    """``layers`` with the memory of their gradients under the spec's optimizer, beyond
    :func:`~weft.models.candidates.build.bytes_per_parameter`."""
    run = spec.run
    if not isinstance(run, TrainingRun) or run.optimizer == "adam":
        return list(layers)
    return [accumulated(layer, run.gradient_bytes) for layer in layers]


def _listed_or_measured(spec: Spec) -> Sequence[LayerCost]:
    """The layers of a spec that lists them, or of a GPT whose costs are all measured."""
    if not isinstance(spec.model, ExplicitModel):
        return gpt_layers(spec)
    run = spec.run
    return explicit_layers(spec.model, run.parameter_bytes, training=isinstance(run, TrainingRun),
                           recompute=isinstance(run, TrainingRun) and run.recompute)


def _faster(layer: LayerCost, speed: float) -> LayerCost:
    """``layer`` on a GPU ``speed`` times as fast; nonzero times remain at least a nanosecond."""
    def seconds(time: float) -> float:
        return max(round(time / speed, 9), 1e-9) if time else 0.0

    if layer.input_grad is None or layer.weight_grad is None:
        return replace(layer, forward=seconds(layer.forward), backward=seconds(layer.backward))
    input_grad, weight_grad = seconds(layer.input_grad), seconds(layer.weight_grad)
    return replace(layer, forward=seconds(layer.forward), backward=round(input_grad + weight_grad, 9),
                   input_grad=input_grad, weight_grad=weight_grad)


_DTYPES = {2: "float16", 4: "float32", 8: "float64"}
#: The device of each shipped profile.
_PROFILED = {"gpt-1.3b-v100": "v100", "t5-770m-v100": "v100"}


@dataclass(frozen=True)
class FamilyCosts:
    """A model's operator graph with the time of every operator, its layers, and remarks."""

    graph: OperatorGraph
    times: Mapping[str, OperatorTime]
    layers: tuple[LayerCost, ...]
    notes: tuple[str, ...]
    #: The profile from which the times come, if any.
    profile: ProfileTimes | None = None


def family_model(spec: Spec) -> Section:
    """The family and sizes of the spec's model; a config.json is read. Raises ``ConfigError``, and
    :class:`~weft.models.spec.spec.SpecError` if there is no such file."""
    model = spec.model
    if isinstance(model, ConfigModel):
        return read_config(named_file(spec, "model.config", model.config), sequence=model.sequence)
    assert not isinstance(model, ExplicitModel | GraphModel)
    refuse_graph_network(spec)
    return model


def refuse_graph_network(spec: Spec) -> None:
    """Raise :class:`~weft.models.spec.spec.SpecError` for a graph network, which is not cut into stages."""
    if isinstance(spec.model, GraphNetworkModel):
        raise SpecError(f"{spec.where}: model.family is graph-network, which is streamed in chunks and has no stages: "
                        "weft solve, compare, explain and train take it")


def decoder_model(spec: Spec, wrong: str) -> GptModel:
    """The spec's decoder model: its tokens attend only to earlier ones. Raises
    :class:`~weft.models.spec.spec.SpecError`, whose sentence begins with ``wrong``, for another one."""
    if isinstance(spec.model, ExplicitModel | GraphModel):
        raise SpecError(f"{wrong}, but the model is given by its layers or operators; leave it out")
    model = family_model(spec)
    if not isinstance(model, GptModel):
        raise SpecError(f"{wrong}, not {getattr(model, 'family', 'this one')}; leave it out")
    return model


def spec_graph(spec: Spec) -> OperatorGraph:
    """The graph of one micro-batch of the spec's model; for an unsupported config.json the one captured from
    transformers, if installed."""
    run, model = spec.run, spec.model
    if isinstance(model, GraphModel):
        graph = in_order(load_graph(named_file(spec, "model.graph", model.graph)))
        stored = round(graph.parameter_bytes() / max(1, graph.parameter_count()))
        if stored and run.parameter_bytes != stored:
            raise SpecError(f"{spec.where}: parameter_bytes is {run.parameter_bytes}, but the parameters in "
                            f"{model.graph} have {stored}; give parameter_bytes: {stored}")
        if run.micro_batch_size != 1:
            raise SpecError(f"{spec.where}: micro_batch_size is {run.micro_batch_size}, but {model.graph} is one "
                            "micro-batch of the size it was made for; leave it out")
        return graph
    dtype = _DTYPES.get(run.parameter_bytes)
    if dtype is None:
        raise SpecError(f"{spec.where}: parameter_bytes is {run.parameter_bytes}, but a family's layers compute with 2 "
                        "(fp16), 4 (fp32) or 8 (fp64)")
    training = isinstance(run, TrainingRun)
    try:
        family = family_model(spec)
    except UnknownType:
        if not (isinstance(model, ConfigModel) and find_spec("torch") and find_spec("transformers")):
            raise
        from weft.models.capture.capture import capture_config

        return in_order(capture_config(named_file(spec, "model.config", model.config), run.micro_batch_size,
                                       model.sequence, dtype, training))
    from weft.models.zoo.graphs import model_graph

    return model_graph(family, run.micro_batch_size, dtype=dtype, training=training)


def uses_measured_gpt(spec: Spec) -> bool:
    """Whether the model is a plain GPT whose costs, memory included, are a profile's
    (:func:`weft.models.layers.measured_gpt.gpt_layers`).

    If a device is named, GPUs may compute together, and the memory of all placements is counted in the same way.
    """
    model = spec.model
    if type(model) is not GptModel or spec.cluster.device is not None:
        return False
    plain = GptModel(family="gpt", layers=model.layers, hidden=model.hidden, heads=model.heads,
                     vocabulary=model.vocabulary, sequence=model.sequence)
    return model == plain and spec.costs != "roofline" and spec.costs not in DEVICES


def may_be_together(spec: Spec) -> bool:
    """Whether GPUs may compute layers together: there are several, of one kind, and operators have separate costs."""
    return (spec.cluster.gpus > 1 and spec.cluster.is_plain and not isinstance(spec.model, ExplicitModel)
            and not uses_measured_gpt(spec))


def family_costs(spec: Spec) -> FamilyCosts:
    """The layers of the spec's model, with costs from the spec's source, at ``cluster.speed`` 1. For GPUs of several
    kinds :func:`~weft.models.candidates.gpu_costs.families_by_gpu` has one for each.

    Raises :class:`~weft.models.spec.spec.SpecError` if that source is unknown or has no number for this model, and the
    exceptions of reading a config or profile.
    """
    run, graph = spec.run, spec_graph(spec)
    source = _source(spec, graph)
    times = _times(spec, source, graph)
    layers = layers_of(graph, times, training=isinstance(run, TrainingRun),
                       recompute=isinstance(run, TrainingRun) and run.recompute)
    require_possible(layers, spec.where)
    notes = [*graph.notes, *source.notes(graph)]
    if graph.constants:
        notes.append(f"{format_bytes(graph.constant_bytes())} of buffers that nobody trains are not counted")
    if not is_chain(graph):
        notes.append("the model is no chain: its layers run one after another here, and what a later layer reads "
                     "travels through the stages in between")
    return FamilyCosts(graph, times, tuple(layers), tuple(notes), source if isinstance(source, ProfileTimes) else None)


def _times(spec: Spec, source: OperatorTimes, graph: OperatorGraph) -> dict[str, OperatorTime]:
    try:
        return source.times(graph)
    except OperatorError as error:
        raise SpecError(f"{spec.where}: costs is {spec.costs}: {error}") from None


def _source(spec: Spec, graph: OperatorGraph) -> OperatorTimes:
    name = spec.costs or "roofline"
    if name in DEVICES:
        return Roofline(DEVICES[name])
    if name == "roofline":
        return Roofline(DEVICES[_device(spec)])
    batch = spec.run.micro_batch_size
    if name.endswith(".json"):
        return load_times(named_file(spec, "costs", name))
    if name in PROFILES:
        tables = {size: shipped_profile(name, size) for size in PROFILES[name]}
        source = ProfileTimes(tables, batch, Roofline(DEVICES[_PROFILED[name]]), f"the profile {name}", {
            degree: {size: shipped_profile(name, size, degree) for size in PROFILES[name]} for degree in DEGREES})
    else:
        if not name.endswith(".csv") and not path_in(spec, name).exists():
            raise SpecError(f"{spec.where}: costs is {name!r}, it must be a shipped profile ({', '.join(PROFILES)}) or "
                            f"the path of a profile CSV, or roofline or a device ({', '.join(DEVICES)}) to model")
        path = named_file(spec, "costs", name)
        source = ProfileTimes({batch: load_profile(path, str(path))}, batch, Roofline(DEVICES[_device(spec)]),
                              f"the profile {path}", {degree: {batch: load_profile(other, str(other))}
                                                      for degree, other in profiles_beside(path).items()})
    if not rows_of(graph):
        raise SpecError(f"{spec.where}: costs is {name}, but profiles are for the families gpt and t5; for "
                        f"{graph.name} give roofline or a device ({', '.join(DEVICES)})")
    if not source.covers(graph):
        raise ProfileError(f"{spec.where}: costs is {name}, but no row of it is of this model's sizes at a micro-batch "
                           f"of {batch}; give roofline or a device ({', '.join(DEVICES)})")
    return source


def device_of(spec: Spec) -> str | None:
    """The GPUs' device as given by the spec: its device, that of its costs, or V100s if the links are theirs. ``None``
    if they are of several kinds."""
    devices = set(spec.cluster.devices)
    if len(devices) > 1:
        return None
    named = spec.costs if spec.costs in DEVICES else _PROFILED.get(spec.costs or "")
    return devices.pop() or named or ("v100" if spec.cluster.links is not None else None)


def _device(spec: Spec) -> str:
    devices = dict.fromkeys(device for device in spec.cluster.devices if device is not None)
    if len(devices) > 1:
        raise SpecError(f"{spec.where}: cluster.device lists {' and '.join(devices)}, but this needs GPUs of one kind; "
                        "give one device")
    if devices:
        return next(iter(devices))
    if spec.cluster.links is not None:  # measured between V100s
        return "v100"
    raise SpecError(f"{spec.where}: cluster.device is missing: modelled costs need it ({', '.join(DEVICES)})")
