"""What may be decided of a graph neural network's pass, as placements of one case: each a block problem.

The least number of chunks is that with which the steps fit one after the other. With one chunk fewer some computation
needs more than there is with what it must be given, in any order, where :class:`Planned` says so. Candidates are that
number and the next few, each plain, with loads of used sources alone, with fused layers, and with as many resident
source chunks as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.app.graph_network.sizes import grids_of, layer_sizes
from weft.app.lib.placements import Placement
from weft.models.graph_network.files import load_graph
from weft.models.graph_network.graph import Graph, GraphError, drawn_graph
from weft.models.graph_network.grid import Grid
from weft.models.graph_network.layers import LayerShape
from weft.models.graph_network.steps import Choice, LayerSize, Pass, Step
from weft.models.hardware.devices import DEVICES
from weft.models.spec.graph_network import DrawnGraph
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.spec import SpecError, named_file
from weft.solver.feasibility.infeasible import Infeasible

if TYPE_CHECKING:
    from weft.models.spec.spec import Spec
    from weft.runtime.graph_network.layers import Network

__all__ = ["Planned", "graph_placements", "passes", "roofline", "spec_passes"]

#: So many numbers of chunks are tried from the least on, and at most so many along a side are looked at.
_NEXT, _MOST_CHUNKS = 3, 64
#: A backward computes its forward anew and two products for each of it.
_BACKWARD = 3


@dataclass(frozen=True)
class Planned:
    """Passes that fit, those with fewest chunks first; ``least_proven``: whether one chunk fewer fits in no order."""

    passes: tuple[Pass, ...]
    static: int
    least_proven: bool


def passes(sizes: Sequence[LayerSize], grids: Callable[[int], dict[bool, Grid]], budget: int | None, static: int, *,
           vertices: int, itemsize: int = 4, training: bool = True, ranks: int = 1,
           chunks: Sequence[int] | None = None) -> Planned:
    """The passes to choose from under ``budget`` bytes a device, ``static`` of them held all the time.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible`, with the least memory there is, where none fits.
    """
    room = None if budget is None else budget - static
    found: list[Pass] = []
    counts, least, proven, asked = chunks or range(min(ranks, vertices), min(_MOST_CHUNKS, vertices) + 1), None, True, 0
    for count in counts:
        made = Pass(sizes, grids(count), Choice(count, ranks=ranks), itemsize, training)
        need = made.least_memory
        asked = min(asked or need, need)
        if room is not None and need > room:
            proven = made.unavoidable_memory > room
            continue
        least = count if least is None else least
        found += _variants(made, room)
        if chunks is None and count >= least + _NEXT:
            break
    if not found:
        raise Infeasible(f"the memory of {budget} bytes is below one chunk of one column: with up to {max(counts)} x "
                         f"{max(counts)} chunks at least {asked + static} bytes are needed")
    return Planned(tuple(found), static, proven)


def _variants(plain: Pass, room: int | None) -> Iterator[Pass]:
    yield plain

    def other(choice: Choice) -> Pass | None:
        made = Pass(plain.layers, plain.grids, choice, plain.itemsize, plain.training)
        return made if room is None or made.least_memory <= room else None

    count, ranks = plain.choice.chunks, plain.choice.ranks
    fuses = any(size.fuses for size in plain.layers)
    selective = other(Choice(count, selective=True, ranks=ranks))
    if selective is not None and any(selective.selected(number, i, j) for number in range(len(plain.layers))
                                     for i in plain.chunks for j in plain.chunks):
        yield selective
    if fuses and (fused := other(Choice(count, fused=True, ranks=ranks))) is not None:
        yield fused
    for resident in (count, count // 2):
        if count > 1 and resident and (made := other(Choice(count, resident, fused=fuses, ranks=ranks))) is not None:
            yield made
            return


def roofline(shapes: Sequence[LayerShape], device: str, host_bandwidth: float, itemsize: int,
             fused: bool) -> Callable[[Step], float]:
    """Seconds of a step: copies by ``host_bandwidth`` (exchanges by the device's link), computations by the closed
    forms of the layers' stages at the peaks of ``device``."""
    known = DEVICES[device]
    peak = known.flops["float64" if itemsize == 8 else "float32"]

    def seconds(step: Step) -> float:
        if step.lane != "compute":
            return step.moved / (known.link if step.lane == "network" else host_bandwidth)
        shape = shapes[step.layer]
        counts = shape.counts(step.targets, step.edges, itemsize)
        if step.kind in ("gather", "gather_back"):
            work = (shape.fused(step.targets, step.edges, itemsize) if fused and shape.fuses
                    else counts["scatter"] + counts["apply_edge"] + counts["gather"])
        else:
            work = counts["apply_vertex"]
        factor = _BACKWARD if step.kind.endswith("_back") else 1
        return known.launch["forward"] + factor * max(work.flops / peak, work.bytes / known.bandwidth)
    return seconds


def spec_passes(spec: Spec) -> tuple[Planned, Graph, Network, list[LayerShape]]:
    """The passes of a graph network's spec, with its graph and its layers. Raises
    :class:`~weft.models.spec.spec.SpecError` and :class:`~weft.solver.feasibility.infeasible.Infeasible`."""
    import torch

    from weft.runtime.graph_network.layers import Network, ready
    from weft.runtime.graph_network.training import static_bytes

    model = spec.model
    assert isinstance(model, GraphNetworkModel)
    graph = _graph(spec, model)
    widths = [(model.features or 0) if graph.features is None else graph.features.shape[1],
              *(layer.width for layer in model.layers)]
    if not widths[0]:
        raise SpecError(f"{spec.where}: model.features is missing: the graph has none; say how many columns they have")
    shapes = [LayerShape(layer.layer, inputs, layer.width, layer.heads)
              for layer, inputs in zip(model.layers, widths, strict=False)]
    network = Network(tuple(ready(shape.kind, shape.inputs, shape.outputs, shape.heads) for shape in shapes), widths[0])
    itemsize, training = spec.run.parameter_bytes, spec.training is not None
    parameters = network.initial(dtype=torch.float64 if itemsize == 8 else torch.float32)
    static = static_bytes(parameters) if training else sum(v.nbytes for own in parameters for v in own.values())
    try:
        planned = passes(
            layer_sizes(network, parameters, training), lambda chunks: grids_of(network, graph, chunks),
            spec.cluster.memory[0] - spec.cluster.reserve, static, vertices=graph.vertices, itemsize=itemsize,
            training=training, ranks=spec.cluster.gpus, chunks=model.chunks)
    except Infeasible as error:
        raise Infeasible(f"{spec.name}: {error}, with {spec.cluster.reserve} in reserve") from None
    return planned, graph, network, shapes


def _graph(spec: Spec, model: GraphNetworkModel) -> Graph:
    if isinstance(model.graph, DrawnGraph):
        drawn = model.graph
        return drawn_graph(drawn.vertices, drawn.edges, skewed=drawn.skewed, seed=drawn.seed)
    try:
        return load_graph(named_file(spec, "model.graph", model.graph))
    except GraphError as error:
        raise SpecError(f"{spec.where}: model.graph: {error}") from None


def graph_placements(spec: Spec) -> tuple[Placement, ...]:
    """What ``weft solve`` searches of a graph network's spec."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise SpecError(f"{spec.where}: a graph-network's memory is measured with torch, which is not installed: "
                        "pip install 'weft[torch]'")
    planned, graph, _, shapes = spec_passes(spec)
    capacity = spec.cluster.memory[0] - spec.cluster.reserve
    device, bandwidth = spec.cluster.devices[0], spec.cluster.host_bandwidth
    assert device is not None and bandwidth is not None
    found = []
    for entry in planned.passes:
        problem = entry.problem(spec.name, capacity, planned.static,
                                roofline(shapes, device, bandwidth, entry.itemsize, entry.choice.fused))
        devices = range(len(problem.devices))
        details: dict[str, Any] = {
            "placement": entry.choice.title,
            "static_memory": [problem.devices[d].static for d in devices],
            "graph_network": {"chunks": entry.choice.chunks, "resident": entry.choice.resident,
                              "fused": entry.choice.fused, "selective": entry.choice.selective,
                              "ranks": entry.choice.ranks, "owners": list(entry.owner),
                              "least_chunks": planned.passes[0].choice.chunks,
                              "least_chunks_proven": planned.least_proven},
            "notes": [f"{graph.name}; {planned.passes[0].choice.chunks} x {planned.passes[0].choice.chunks} chunks are "
                      f"the fewest {'that fit in any order' if planned.least_proven else 'found to fit'}; times are "
                      f"modelled for {device}"]}
        found.append(Placement(entry.choice.title, problem, details))
    return tuple(found)
