"""Placement problems of a spec, and of an operator graph on devices that are named.

Both cost operators as a spec's ``costs`` do, or by the roofline of the devices; :mod:`models.placing` says what a part
holds. Every pair of devices is joined by the same link: the cluster's, or the NVLink of the first kind named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from models.build import bytes_per_parameter
from models.cluster import model_cluster
from models.collectives import point_to_point
from models.devices import DEVICES
from models.family_costs import family_costs
from models.layering import in_order
from models.placing import Hardware, by_layer, by_operator, placement_problem
from models.quantities import format_bytes
from models.roofline import Roofline
from models.sections import ExplicitModel, Spec, Training
from models.spec import SpecError
from solver.operators import OperatorGraph
from solver.placement.problem import PlacementError, PlacementProblem

__all__ = ["graph_problem", "spec_problem"]

#: Kept free on every device for the framework, as a spec's cluster does by default.
_RESERVE = 1024**3
#: Bytes of optimizer state of one parameter where no spec says so: mixed-precision Adam.
_OPTIMIZER = 12


def spec_problem(spec: Spec, *, whole_layers: bool = True) -> PlacementProblem:
    """The placement problem of the spec's model on its cluster: parts are layers, or single operators.

    GPUs of equal memory are a kind ("gpu", or "gpu 16 GiB" where they differ). Raises
    :class:`~models.spec.SpecError` for a model that lists its layers, and what costs raise.
    """
    if isinstance(spec.model, ExplicitModel):
        raise SpecError(f"{spec.where}: model lists layers in a row, placing needs operators; give a family, a config "
                        "or an operator graph, or cut the row with `weft solve`")
    costs = family_costs(spec)
    cluster = model_cluster(spec.cluster)
    kinds = Counter(zip(cluster.memory, cluster.available, strict=True))
    hardware = [Hardware("gpu" if len(kinds) == 1 else f"gpu {format_bytes(memory)}", count, available, costs.times)
                for (memory, available), count in kinds.items()]
    training = isinstance(spec.run, Training)
    return placement_problem(
        costs.graph, hardware, cluster.link.seconds,
        parts=by_layer(costs.graph) if whole_layers else by_operator(costs.graph),
        state_per_parameter=bytes_per_parameter(spec) - spec.run.parameter_bytes, micro_batches=spec.micro_batches,
        training=training)


def graph_problem(graph: OperatorGraph, devices: Mapping[str, tuple[int, float | None]], *,
                  whole_layers: bool = True) -> PlacementProblem:
    """The placement problem of ``graph`` on ``devices``: by type of device how many, and how much memory each
    (``None``: what that type has, less 1 GiB for the framework). Adam's state is held where operators have a backward.

    Raises :class:`~solver.placement.problem.PlacementError` for a type of device that is not known.
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
    return placement_problem(
        graph, hardware, lambda size: point_to_point(size, first).seconds,
        parts=by_layer(graph) if whole_layers else by_operator(graph), state_per_parameter=stored + _OPTIMIZER,
        training=any(operator.input_grad or operator.weight_grad for operator in graph.operators))
