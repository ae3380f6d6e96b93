"""Placement problems of a spec, and of an operator graph on devices that are named.

Both cost operators as a spec's ``costs`` do, or by the roofline of the devices; :mod:`weft.models.candidates.placing`
says what a part holds. A placement does not say which stages share a machine, so every pair of devices is joined by the
same link: of a spec's cluster of several machines the slower of the two, which is on the safe side; of devices that are
named, the NVLink of the first kind.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.models.candidates.build import bytes_per_parameter
from weft.models.candidates.family_costs import FamilyCosts, device_of, family_costs
from weft.models.candidates.gpu_costs import families_by_gpu, require_alike
from weft.models.candidates.placing import Hardware, Replicas, TrainingState, by_layer, by_operator, placement_problem
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import ClusterModel, model_cluster
from weft.models.layers.collectives import group_time, point_to_point
from weft.models.layers.layering import in_order
from weft.models.spec.model_sections import ExplicitModel, GraphModel
from weft.models.spec.quantities import format_bytes
from weft.models.spec.sections import Spec, Training
from weft.models.spec.spec import SpecError
from weft.models.times.operator_times import OperatorTime
from weft.models.times.profiles import PROFILES
from weft.models.times.roofline import Roofline
from weft.solver.placement.problem import PlacementError, PlacementProblem

__all__ = ["all_reduce_seconds", "at_size", "costs_of_one_size", "graph_problem", "spec_problem"]

#: Kept free on every device for the framework, as a spec's cluster does by default.
_RESERVE = 1024**3
#: Bytes of optimizer state of one parameter where no spec says so: mixed-precision Adam.
_OPTIMIZER = 12


def spec_problem(spec: Spec, *, whole_layers: bool = True, replicate: bool = False) -> PlacementProblem:
    """The placement problem of the spec's model on its cluster: parts are layers, or single operators.

    GPUs of equal device, memory and speed are a kind: "gpu", or where they differ named by what differs ("gpu 16 GiB",
    "v100 32 GiB x0.5"). With ``replicate`` a stage may be on 2, 4, 8 ... of them, which share its micro-batches evenly
    and fill machines evenly; they must be of one kind. Raises :class:`~weft.models.spec.spec.SpecError` for a model
    that lists its layers, and what costs raise.
    """
    if isinstance(spec.model, ExplicitModel):
        raise SpecError(f"{spec.where}: model lists layers in a row, placing needs operators; give a family, a config "
                        "or an operator graph, or cut the row with `weft solve`")
    costs = families_by_gpu(spec)
    graph, cluster = costs[0].graph, model_cluster(spec.cluster)
    network = cluster.network
    hardware = _hardware(spec, costs, cluster)
    gradient = spec.run.gradient_bytes if isinstance(spec.run, Training) else 0
    state = TrainingState(bytes_per_parameter(spec) - spec.run.parameter_bytes, gradient)
    return replace(placement_problem(
        graph, hardware, lambda size: max(tier.seconds(size) for tier in network.tiers),
        parts=by_layer(graph) if whole_layers else by_operator(graph),
        training=state if isinstance(spec.run, Training) else None, micro_batches=spec.micro_batches,
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
    """What says the costs of ``spec`` at its own size of micro-batch only: an operator graph, or a file of measured
    times; ``None`` where costs of any size are modelled."""
    if isinstance(spec.model, GraphModel):
        return f"model.graph ({spec.model.graph})"
    named = spec.costs is None or spec.costs in ("roofline", *DEVICES, *PROFILES)
    return None if named else f"costs ({spec.costs})"


def at_size(spec: Spec, size: int, file: str | None = None) -> Spec:
    """``spec`` in micro-batches of ``size`` samples, as many as make its mini-batch. ``file``: its operator graph, or
    its costs, at that size.

    Raises :class:`~weft.models.spec.spec.SpecError` where the size does not divide the mini-batch.
    """
    batch = spec.run.micro_batches * spec.run.micro_batch_size
    if size < 1 or batch % size:
        raise SpecError(f"{spec.where}: {spec.run.micro_batches} micro-batches of {spec.run.micro_batch_size} are a "
                        f"mini-batch of {batch} samples, which micro-batches of {size} do not divide")
    run = spec.run.model_copy(update={"micro_batches": batch // size} | (
        {} if isinstance(spec.model, GraphModel) else {"micro_batch_size": size}))
    changed: dict[str, object] = {"training" if isinstance(run, Training) else "inference": run}
    if file is not None:
        path = os.path.abspath(file)
        changed |= ({"model": spec.model.model_copy(update={"graph": path})} if isinstance(spec.model, GraphModel) else
                    {"costs": path})
    return spec.model_copy(update=changed)


def _replicas(spec: Spec, gradients: int, kinds: int) -> list[Replicas]:
    """Stages on several of the spec's GPUs. An all-reduce is charged by the byte, at the rate for all ``gradients``."""
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
        part = spec.model_copy(update={"training" if isinstance(run, Training) else "inference": run})
        found.append(Replicas(devices, [family_costs(part).times],
                              all_reduce_seconds(spec, gradients, devices) / gradients if gradients else 0.0))
    return found


def all_reduce_seconds(spec: Spec, size: int, devices: int) -> float:
    """Seconds to add up ``size`` bytes: as the spec's device does, or rings over the cluster's links."""
    name = device_of(spec)
    return group_time("all_reduce", size, range(devices), model_cluster(spec.cluster).network,
                      None if name is None else DEVICES[name]).seconds


def graph_problem(graph: OperatorGraph, devices: Mapping[str, tuple[int, float | None]], *,
                  whole_layers: bool = True) -> PlacementProblem:
    """The placement problem of ``graph`` on ``devices``: by type of device how many, and how much memory each
    (``None``: what that type has, less 1 GiB for the framework). Adam's state is held where operators have a backward.

    Raises :class:`~weft.solver.placement.problem.PlacementError` for a type of device that is not known.
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
