"""The possible decisions for a graph neural network's pass, as placements of one case: each a block problem.

The least number of chunks is the one with which the steps fit sequentially. If :class:`PlannedPasses` says so, it is
proven that with one chunk fewer some computation and its inputs exceed the memory in any order. Candidates are that
number and the next few, each plain, with loads of used sources only, with fused layers, and with as many resident
source chunks as fit.

A network's layers as the planner sees them: columns, and the measured memory of computations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from weft.app.lib.placements import CasePlacement
from weft.app.lib.sources import PathLike
from weft.models.graph_network.files import load_graph
from weft.models.graph_network.graph import ChunkGrid, Graph, GraphError, drawn_graph
from weft.models.graph_network.layers import LayerShape
from weft.models.graph_network.steps import Choice, LayerSize, Need, Pass, StreamStep
from weft.models.hardware.devices import DEVICES
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.spec import SpecError, named_file
from weft.solver.feasibility.infeasible import Infeasible
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule

if TYPE_CHECKING:
    from torch import Tensor

    from weft.models.spec.spec import Spec
    from weft.runtime.graph_network.layers import GraphNetwork


#: How many numbers of chunks are tried from the least on, and the maximum along a side.
_NEXT, _MOST_CHUNKS = 3, 64
#: A backward recomputes its forward and has two products for each of the forward's.
_BACKWARD = 3


@dataclass(frozen=True)
class PlannedPasses:
    """Passes that fit, fewest chunks first; ``least_proven``: whether it is proven that one chunk fewer fits in no
    order."""

    passes: tuple[Pass, ...]
    static: int
    least_proven: bool


def passes(pass_of: Callable[[Choice], Pass], budget: int | None, static: int, *, vertices: int, ranks: int = 1,
           chunks: Sequence[int] | None = None) -> PlannedPasses:
    """The candidate passes under ``budget`` bytes a device, including ``static`` bytes; ``pass_of``: the pass for a
    choice of chunks and ranks.

    Raises :class:`~weft.solver.feasibility.infeasible.Infeasible`, with the least sufficient memory, if none fits.
    """
    room = None if budget is None else budget - static
    last = min(_MOST_CHUNKS, vertices)
    tried: dict[int, Pass] = {}

    def made(count: int) -> Pass:
        if count not in tried:
            tried[count] = pass_of(Choice(count, ranks=ranks))
        return tried[count]

    def fits(count: int) -> bool:
        return room is None or made(count).least_memory <= room

    chunks = chunks or range(least := _least(fits, min(ranks, vertices), last), min(least + _NEXT, last) + 1)
    fitting = [count for count in chunks if fits(count)]
    if not fitting:
        asked = min(each.least_memory for each in tried.values()) + static
        raise Infeasible(f"the memory of {budget} bytes is below one chunk of one column: with up to {max(tried)} x "
                         f"{max(tried)} chunks at least {asked} bytes are needed")
    before = max((count for count in tried if count < fitting[0]), default=None)
    return PlannedPasses(tuple(variant for count in fitting for variant in _variants(made(count), room)), static,
                         before is None or room is None or made(before).unavoidable_memory > room)


def _least(fits: Callable[[int], bool], first: int, last: int) -> int:
    """A number of chunks from ``first`` to ``last`` that fits while one fewer does not, searched between successive
    doubles of ``first``, each of which divides the previous chunks; ``last`` if no double fits."""
    fewer, found = first - 1, first
    while found < last and not fits(found):
        fewer, found = found, min(2 * found, last)
    while fits(found) and found - fewer > 1:
        middle = (fewer + found) // 2
        fewer, found = (fewer, middle) if fits(middle) else (middle, found)
    return found


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
             fused: bool) -> Callable[[StreamStep], float]:
    """Seconds of a step: copies by ``host_bandwidth`` (exchanges by the device's link), computations by the closed
    forms of the layers' stages at the peaks of ``device``."""
    known = DEVICES[device]
    peak = known.flops["float64" if itemsize == 8 else "float32"]

    def seconds(step: StreamStep) -> float:
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


def spec_passes(spec: Spec) -> tuple[PlannedPasses, Graph, GraphNetwork, list[LayerShape]]:
    """The passes of a graph network's spec, with its graph and its layers. Raises
    :class:`~weft.models.spec.spec.SpecError` and :class:`~weft.solver.feasibility.infeasible.Infeasible`."""
    from weft.runtime.graph_network.training import static_bytes

    model = spec.model
    assert isinstance(model, GraphNetworkModel)
    graph, network, shapes = spec_network(spec)
    itemsize, training = spec.run.parameter_bytes, spec.training is not None
    parameters = _initial(spec, network)
    static = static_bytes(parameters) if training else sum(v.nbytes for own in parameters for v in own.values())
    sizes = layer_sizes(network, parameters, training)
    try:
        planned = passes(
            lambda choice: Pass(sizes, grids_of(network, graph, choice.chunks), choice, itemsize, training),
            budget_of(spec), static, vertices=graph.vertices, ranks=spec.cluster.gpus, chunks=model.chunks)
    except Infeasible as error:
        raise Infeasible(f"{spec.name}: {error}, with {spec.cluster.reserve} in reserve") from None
    return planned, graph, network, shapes


def spec_pass(spec: Spec, schedule: Schedule, where: PathLike
              ) -> tuple[Pass, Graph, GraphNetwork, list[dict[str, Tensor]]]:
    """The pass of ``schedule``, from the file ``where``, with the graph, the layers and their initial parameters; a
    random graph has random features and labels. Raises :class:`~weft.models.spec.spec.SpecError` if it belongs to
    another spec."""
    graph, network, _ = spec_network(spec, with_values=True)
    training = spec.training is not None
    for name in ("features", "labels"):
        if training and getattr(graph, name) is None:
            raise SpecError(f"{spec.where}: model.graph: {graph.name} has no {name} to train with; give a .npz with "
                            "them" + (", or model.features an .npy file" if name == "features" else ""))
    choice, itemsize = schedule.solver.get("graph_network"), spec.run.parameter_bytes
    parameters = _initial(spec, network)
    steps = None if choice is None else Pass(
        layer_sizes(network, parameters, training), grids_of(network, graph, choice["chunks"]),
        Choice(**{field.name: choice[field.name] for field in fields(Choice)}), itemsize, training)
    if steps is None or _memory_of(schedule.problem) != _memory_of(steps.problem("", None, 0, lambda step: 0.0)):
        raise SpecError(f"{spec.where}: {where} is a schedule of something else; solve this spec again (weft solve)")
    return steps, graph, network, parameters


def _initial(spec: Spec, network: GraphNetwork) -> list[dict[str, Tensor]]:
    import torch

    return network.initial(dtype=torch.float64 if spec.run.parameter_bytes == 8 else torch.float32)


def _memory_of(problem: Problem) -> dict[str, object]:
    """The blocks, and the memory of each."""
    return {block.name: (block.devices, block.memory, block.workspace) for block in problem.blocks}


def spec_network(spec: Spec, *, with_values: bool = False) -> tuple[Graph, GraphNetwork, list[LayerShape]]:
    """The graph of a graph network's spec (a random one ``with_values``, or with edges only), and its layers. Raises
    :class:`~weft.models.spec.spec.SpecError`."""
    from weft.runtime.graph_network.layers import GraphNetwork, ready

    model = spec.model
    assert isinstance(model, GraphNetworkModel)
    graph = graph_of(spec, model, with_values=with_values)
    shapes = shapes_of(spec, model, graph)
    return graph, GraphNetwork(tuple(ready(shape.kind, shape.inputs, shape.outputs, shape.heads) for shape in shapes),
                          shapes[0].inputs, model.dropout), shapes


def _columns(model: GraphNetworkModel) -> int:
    """The number of feature columns in the spec; 0 if not given."""
    return model.features if isinstance(model.features, int) else 0


def budget_of(spec: Spec) -> int:
    """The memory budget of a pass on each device in bytes."""
    return spec.cluster.memory[0] - spec.cluster.reserve


def shapes_of(spec: Spec, model: GraphNetworkModel, graph: Graph) -> list[LayerShape]:
    """The layers of a spec on ``graph``. Raises :class:`~weft.models.spec.spec.SpecError`."""
    columns = _columns(model) if graph.features is None else graph.features.shape[1]
    widths = [columns, *(layer.width for layer in model.layers)]
    if not widths[0]:
        raise SpecError(f"{spec.where}: model.features is missing: the graph has none; say how many columns they have")
    return [LayerShape(layer.layer, inputs, layer.width, layer.heads)
            for layer, inputs in zip(model.layers, widths, strict=False)]


def graph_of(spec: Spec, model: GraphNetworkModel, *, with_values: bool = False) -> Graph:
    """The graph of a spec; ``with_values``: a random one has random features and labels. Raises
    :class:`~weft.models.spec.spec.SpecError`."""
    file = model.features if isinstance(model.features, str) else None
    try:
        if isinstance(model.graph, str):
            return load_graph(named_file(spec, "model.graph", model.graph),
                              None if file is None else named_file(spec, "model.features", file))
        if file is not None:
            raise GraphError("a drawn graph has drawn features: give features as a number of columns")
    except GraphError as error:
        raise SpecError(f"{spec.where}: model.graph: {error}") from None
    drawn = model.graph
    return drawn_graph(drawn.vertices, drawn.edges, skewed=drawn.skewed, seed=drawn.seed,
                       features=_columns(model) if with_values else 0,
                       classes=model.layers[-1].width if with_values else 0)


def graph_placements(spec: Spec) -> tuple[CasePlacement, ...]:
    """The placements that ``weft solve`` searches for a graph network's spec."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise SpecError(f"{spec.where}: a graph-network's memory is measured with torch, which is not installed: "
                        "pip install 'weft[torch]'")
    planned, graph, _, shapes = spec_passes(spec)
    capacity = budget_of(spec)
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
            "graph_network": {**asdict(entry.choice), "owners": list(entry.owner),
                              "least_chunks": planned.passes[0].choice.chunks,
                              "least_chunks_proven": planned.least_proven},
            "notes": [f"{graph.name}; {planned.passes[0].choice.chunks} x {planned.passes[0].choice.chunks} chunks are "
                      f"the fewest {'that fit in any order' if planned.least_proven else 'found to fit'}; times are "
                      f"modelled for {device}"]}
        found.append(CasePlacement(entry.choice.title, problem, details))
    return tuple(found)


def layer_sizes(network: GraphNetwork, parameters: Sequence[Mapping[str, Tensor]], training: bool = True
                ) -> tuple[LayerSize, ...]:
    """The layer sizes of ``network``. Raises ``ValueError`` for layers with incompatible functions."""
    from weft.runtime.graph_network.kernels import LayerInput, network_widths
    from weft.runtime.graph_network.needs import needs

    return tuple(
        LayerSize(wide.inputs, wide.outputs, wide.source, wide.target, sum(wide.state(layer.gather, training)),
                  sum(wide.back(layer.gather)),
                  {kind: Need(*need) for kind, need in needs(layer, p, wide, LayerInput(network.dropout)).items()},
                  layer.loops, layer.fuses)
        for layer, p, wide in zip(network.layers, parameters, network_widths(network, parameters), strict=True))


def grids_of(network: GraphNetwork, graph: Graph, chunks: int) -> dict[bool, ChunkGrid]:
    """The grids for the layers of ``network``, with and without self-loops."""
    return {loops: ChunkGrid(graph.with_loops() if loops else graph, chunks)
            for loops in sorted({layer.loops for layer in network.layers})}
