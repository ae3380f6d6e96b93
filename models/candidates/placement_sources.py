"""Placement problems of a spec, and of an operator graph on named devices.

Both price operators by a spec's ``costs``, or by the roofline of the devices. A placement does not determine which
stages share a machine, so every pair of devices has the same link: for a spec's cluster of several machines the slower
of the two, which is conservative; for named devices, the NVLink of the first kind.

Conversion of an operator graph with times to a placement problem: the costs of every part on each kind of device.

A *part* is a set of operators that stay together: a single operator, or all of a layer. A part's time is that of its
forward and its whole backward; its static memory is its parameters with their gradients and optimizer state, and the
activations of its operators are kept once per micro-batch in flight. A storage counts once in a part, for any number of
its operators that keep it; a storage kept by several parts, and a parameter shared by several parts, counts in each
(correct if they are on different devices; if they are on one, the placement is overcharged). The largest workspace of
any operator is taken off every device's memory.

A tensor that other parts read costs its transfer there and, if it has a gradient, the same again; views count as their
storage.

Stages on several devices (:class:`Replicas`) take the operators' times for their part of a micro-batch: times of a
graph of the same operators for that number of samples.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.gpu_costs import FamilyCosts, device_of, families_by_gpu, family_costs, require_alike
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import ClusterModel, model_cluster
from weft.models.layers.collectives import group_time, point_to_point
from weft.models.layers.layering import in_order
from weft.models.spec.model_sections import ExplicitModel, GraphModel
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, TrainingRun
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import OperatorTime
from weft.models.times.profiles import PROFILES
from weft.models.times.roofline import Roofline
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor

#: Reserve of every device for the framework, as in a spec's cluster by default.
_RESERVE = 1024**3
#: Default bytes of optimizer state of one parameter: mixed-precision Adam.
_OPTIMIZER = 12


def spec_problem(spec: Spec, *, whole_layers: bool = True, replicate: bool = False) -> PlacementProblem:
    """The placement problem of the spec's model on its cluster: parts are layers, or single operators.

    GPUs of equal device, memory and speed are a kind: "gpu", or if there are several, named by their differences ("gpu
    16 GiB", "v100 32 GiB x0.5"). With ``replicate`` a stage may be on 2, 4, 8 ... of them, which share its
    micro-batches evenly and fill machines evenly; they must be of one kind. Raises
    :class:`~weft.models.spec.spec.SpecError` for a model that lists its layers, and the exceptions of costs.
    """
    if isinstance(spec.model, ExplicitModel):
        raise SpecError(f"{spec.where}: model lists layers in a row, placing needs operators; give a family, a config "
                        "or an operator graph, or cut the row with `weft solve`")
    costs = families_by_gpu(spec)
    graph, cluster = costs[0].graph, model_cluster(spec.cluster)
    network = cluster.network
    hardware = _hardware(spec, costs, cluster)
    gradient = spec.run.gradient_bytes if isinstance(spec.run, TrainingRun) else 0
    state = TrainingState(bytes_per_parameter(spec) - spec.run.parameter_bytes, gradient)
    return replace(placement_problem(
        graph, hardware, lambda size: max(tier.seconds(size) for tier in network.tiers),
        parts=by_layer(graph) if whole_layers else by_operator(graph),
        training=state if isinstance(spec.run, TrainingRun) else None, micro_batches=spec.micro_batches,
        replicas=_replicas(spec, graph.parameter_count() * gradient, len(hardware)) if replicate else ()),
        name=spec.name + (", every transfer as between machines" if spec.cluster.machines > 1 else ""))


def _hardware(spec: Spec, costs: Sequence[FamilyCosts], cluster: ClusterModel) -> list[Hardware]:
    """The kinds of GPUs, in the order in which the cluster has them first."""
    counts = Counter((*kind, memory) for kind, memory in zip(spec.cluster.kinds, cluster.memory, strict=True))
    devices, speeds, memories = (len(set(values)) > 1 for values in zip(*counts, strict=True))
    found = []
    for kind, count in counts.items():
        device, speed, memory = kind
        gpu = next(gpu for gpu, own in enumerate(zip(spec.cluster.kinds, cluster.memory, strict=True))
                   if (*own[0], own[1]) == kind)
        name = " ".join(["gpu" if not devices or device is None else device,
                         *([format_bytes(memory)] if memories else []), *([f"x{speed:g}"] if speeds else [])])
        found.append(Hardware(name, count, cluster.available[gpu], _at_speed(costs[gpu].times, speed)))
    return found


def _at_speed(times: Mapping[str, OperatorTime], speed: float) -> Mapping[str, OperatorTime]:
    if speed == 1:
        return times
    return {name: replace(time, forward=time.forward / speed, input_grad=time.input_grad / speed,
                          weight_grad=time.weight_grad / speed) for name, time in times.items()}


def costs_of_one_size(spec: Spec) -> str | None:
    """The source of costs that fixes the micro-batch size of ``spec``: an operator graph, or a file of measured times;
    ``None`` if costs of any size are modelled."""
    if isinstance(spec.model, GraphModel):
        return f"model.graph ({spec.model.graph})"
    named = spec.costs is None or spec.costs in ("roofline", *DEVICES, *PROFILES)
    return None if named else f"costs ({spec.costs})"


def at_size(spec: Spec, size: int, file: str | None = None) -> Spec:
    """``spec`` in micro-batches of ``size`` samples, as many as make its mini-batch. ``file``: its operator graph, or
    its costs, at that size.

    Raises :class:`~weft.models.spec.spec.SpecError` if the size does not divide the mini-batch.
    """
    batch = spec.run.micro_batches * spec.run.micro_batch_size
    if size < 1 or batch % size:
        raise SpecError(f"{spec.where}: {spec.run.micro_batches} micro-batches of {spec.run.micro_batch_size} are a "
                        f"mini-batch of {batch} samples, which micro-batches of {size} do not divide")
    run = spec.run.model_copy(update={"micro_batches": batch // size} | (
        {} if isinstance(spec.model, GraphModel) else {"micro_batch_size": size}))
    changed: dict[str, object] = {"training" if isinstance(run, TrainingRun) else "inference": run}
    if file is not None:
        path = os.path.abspath(file)
        changed |= ({"model": spec.model.model_copy(update={"graph": path})} if isinstance(spec.model, GraphModel) else
                    {"costs": path})
    return spec.model_copy(update=changed)


def _replicas(spec: Spec, gradients: int, kinds: int) -> list[Replicas]:
    """Stages on several of the spec's GPUs. An all-reduce is priced by the byte, at the rate for all ``gradients``."""
    require_alike(spec, "replication of stages")
    if kinds > 1:
        raise SpecError(f"{spec.where}: cluster.memory differs among GPUs, and replicas of a stage are on GPUs alike; "
                        "give one memory, or place without replicas")
    size, gpus, network = spec.run.micro_batch_size, spec.cluster.gpus, model_cluster(spec.cluster).network
    if isinstance(spec.model, GraphModel) or size % 2:
        raise SpecError(f"{spec.where}: " + (
            "model.graph is of one size of micro-batch, and replicas of a stage share each micro-batch; give a family "
            "or a config" if isinstance(spec.model, GraphModel) else
            f"micro_batch_size is {size}, and replicas of a stage share each micro-batch; give one that 2 divides"))
    found = []
    for devices in (2**k for k in range(1, gpus.bit_length())):
        if size % devices or any(tier.size < devices and devices % tier.size for tier in network.tiers[:-1]):
            continue
        run = spec.run.model_copy(update={"micro_batch_size": size // devices})
        part = spec.model_copy(update={"training" if isinstance(run, TrainingRun) else "inference": run})
        found.append(Replicas(devices, [family_costs(part).times],
                              all_reduce_seconds(spec, gradients, devices) / gradients if gradients else 0.0))
    return found


def all_reduce_seconds(spec: Spec, size: int, devices: int) -> float:
    """Seconds to all-reduce ``size`` bytes: on the spec's device, or by rings over the cluster's links."""
    name = device_of(spec)
    return group_time("all_reduce", size, range(devices), model_cluster(spec.cluster).network,
                      None if name is None else DEVICES[name]).seconds


def graph_problem(graph: OperatorGraph, devices: Mapping[str, tuple[int, float | None]], *,
                  whole_layers: bool = True) -> PlacementProblem:
    """The placement problem of ``graph`` on ``devices``: by type of device the number, and the memory of each
    (``None``: the type's memory, less 1 GiB for the framework). Adam's state is included if operators have a backward.

    Raises :class:`~weft.solver.placement.problem.PlacementError` for an unknown type of device.
    """
    for name in devices:
        if name not in DEVICES:
            raise PlacementError(f"devices: there is no device type {name!r}, there are {', '.join(DEVICES)}")
    if not devices:
        raise PlacementError(f"{graph.name} says nothing of devices, name some: --devices a100-80gb=4 (there are "
                             f"{', '.join(DEVICES)})")
    graph = in_order(graph)
    first = DEVICES[next(iter(devices))]
    hardware = []
    for name, (count, memory) in devices.items():
        device = DEVICES[name]
        limit = device.memory - _RESERVE if memory is None else int(memory)
        hardware.append(Hardware(name, count, limit, Roofline(device).times(graph), first.link / device.link))
    stored = round(graph.parameter_bytes() / max(1, graph.parameter_count()))
    trains = any(operator.input_grad or operator.weight_grad for operator in graph.operators)
    return placement_problem(
        graph, hardware, lambda size: point_to_point(size, first).seconds,
        parts=by_layer(graph) if whole_layers else by_operator(graph),
        training=TrainingState(stored + _OPTIMIZER) if trains else None)


#: Parts by name: the names of their operators.
Parts = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Hardware:
    """``count`` devices of a kind, ``memory`` bytes each (``None``: unlimited), on which operators take ``times``."""

    kind: str
    count: int
    memory: int | None
    times: Mapping[str, OperatorTime]
    transfer_factor: float = 1.0


@dataclass(frozen=True)
class Replicas:
    """A stage may be on this number of ``devices``. ``times``: per hardware, of operators on their part of a
    micro-batch. ``all_reduce``: seconds a byte of gradient."""

    devices: int
    times: Sequence[Mapping[str, OperatorTime]]
    all_reduce: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Training memory in bytes for one parameter besides the parameter itself: gradient and optimizer state (``held``),
    and of these the ``gradient``, which replicas of a stage all-reduce."""

    held: int = 0
    gradient: int = 0


_NO_STATE = TrainingState()


def by_operator(graph: OperatorGraph) -> dict[str, tuple[str, ...]]:
    """Every operator separately."""
    return {operator.name: (operator.name,) for operator in graph.operators}


def by_layer(graph: OperatorGraph) -> dict[str, tuple[str, ...]]:
    """All operators of a layer together; an operator without a layer separately."""
    layers: dict[str, list[str]] = {}
    for operator in graph.operators:
        layers.setdefault(operator.layer or operator.name, []).append(operator.name)
    return {name: tuple(operators) for name, operators in layers.items()}


def placement_problem(graph: OperatorGraph, hardware: Sequence[Hardware], seconds: Callable[[int], float], *,
                      parts: Parts | None = None, training: TrainingState | None = _NO_STATE,
                      micro_batches: int | None = None, replicas: Sequence[Replicas] = ()) -> PlacementProblem:
    """The placement problem of one micro-batch of ``graph``; times in seconds, memory in bytes.

    ``seconds(n)``: the transfer time of n bytes between two devices. ``parts`` (default: by operator) contain every
    operator once. ``training``: its memory (``None``: inference, which keeps nothing).

    Raises :class:`~weft.solver.placement.problem.PlacementError` for parts that omit an operator or name it twice, for
    parts with cyclic waits, an operator without a time, or one that no kind of device runs.
    """
    parts = by_operator(graph) if parts is None else parts
    part_of = _part_of(graph, parts)
    workspace = max((operator.workspace for operator in graph.operators), default=0)
    kinds = tuple(DeviceKind(hard.kind, hard.count, None if hard.memory is None else max(0, hard.memory - workspace),
                             hard.transfer_factor) for hard in hardware)
    nodes = []
    for name, operators in parts.items():
        classes = {graph.by_name[operator].colocate for operator in operators} - {None}
        if len(classes) > 1:
            raise PlacementError(f"part {name!r} has operators of several colocation classes "
                                 f"({', '.join(sorted(map(str, classes)))}); make them one, or cut the part")
        resident = (graph.parameter_bytes(operators) + graph.constant_bytes(operators)
                    + graph.parameter_count(operators) * (0 if training is None else training.held))
        nodes.append(Node(
            name, tuple(_time(graph, operators, hard) for hard in hardware), resident,
            0 if training is None else graph.saved_bytes(operators), next(iter(classes), None),
            gradient=0 if training is None else graph.parameter_count(operators) * training.gradient,
            forward=1.0 if training is None else _forward(operators, hardware[0].times),
            parameters=tuple({parameter.name: parameter.count for operator in operators
                              for parameter in graph.by_name[operator].parameters}.items())))
    degrees = tuple(Degree(some.devices, tuple(
        tuple(_time(graph, operators, replace(hard, times=times))
              for hard, times in zip(hardware, some.times, strict=True)) for operators in parts.values()),
        some.all_reduce) for some in replicas)
    return PlacementProblem(graph.name, kinds, tuple(nodes), tuple(_tensors(graph, list(parts), part_of, seconds)),
                            micro_batches, time_unit="s", degrees=degrees)


def _part_of(graph: OperatorGraph, parts: Parts) -> dict[str, str]:
    part_of: dict[str, str] = {}
    for name, operators in parts.items():
        if not operators:
            raise PlacementError(f"part {name!r} has no operators, leave it out")
        for operator in operators:
            if operator not in graph.by_name:
                raise PlacementError(f"part {name!r} names operator {operator!r}, which {graph.name} has not")
            if operator in part_of:
                raise PlacementError(f"operator {operator!r} is in parts {part_of[operator]!r} and {name!r}, it must "
                                     "be in one")
            part_of[operator] = name
    missing = [operator.name for operator in graph.operators if operator.name not in part_of]
    if missing:
        raise PlacementError(f"operator {missing[0]!r} is in no part, every operator must be in one")
    return part_of


def _time(graph: OperatorGraph, operators: Sequence[str], hard: Hardware) -> float | None:
    """Seconds of a micro-batch in all passes, or ``None`` where this kind does not run one of the operators."""
    total = 0.0
    for name in operators:
        allowed = graph.by_name[name].devices
        if allowed is not None and hard.kind not in allowed:
            return None
        if name not in hard.times:
            raise PlacementError(f"operator {name!r} has no time on {hard.kind}, give it one")
        time = hard.times[name]
        total += time.forward + time.input_grad + time.weight_grad
    return total


def _forward(operators: Sequence[str], times: Mapping[str, OperatorTime]) -> float:
    """The forward's share of a part's time; where it takes none, as if its backward were two forwards."""
    ahead = sum(times[name].forward for name in operators)
    total = ahead + sum(times[name].input_grad + times[name].weight_grad for name in operators)
    return ahead / total if total else 1 / 3


def _tensors(graph: OperatorGraph, names: Sequence[str], part_of: Mapping[str, str],
             seconds: Callable[[int], float]) -> list[PlacementTensor]:
    number = {name: i for i, name in enumerate(names)}
    sent: dict[tuple[int, str], tuple[dict[int, None], list[bool]]] = {}
    for tensor, producer in graph.producer.items():
        source = number[part_of[producer]]
        for reader in graph.readers[tensor]:
            target = number[part_of[reader]]
            if target != source:
                targets, returned = sent.setdefault((source, graph.storage(tensor)), ({}, []))
                targets[target] = None
                returned.append(graph.by_name[reader].input_grad is not None
                                and "float" in (graph.tensors[tensor].dtype or "float"))
    return [PlacementTensor(source, tuple(targets), seconds(graph.tensors[storage].bytes) * (1 + any(returned)))
            for (source, storage), (targets, returned) in sent.items()]
