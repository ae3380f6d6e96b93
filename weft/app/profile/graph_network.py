"""``weft profile --graph-network``: the FLOPs, bytes and time of each stage of a graph neural network's layers here.

Counts are the layers' closed forms (:mod:`weft.models.graph_network.layers`), times medians of runs of each stage
alone. A stage is memory-bound if its FLOPs a byte are fewer than the device computes in the time to move one byte; both
rates are measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.app.graph_network.planning import graph_of, shapes_of
from weft.app.lib.results import SavedResult
from weft.app.lib.sources import PathLike
from weft.app.profile.targets import ProfileFault, device_name, device_of
from weft.models.graph_network.files import load_graph
from weft.models.graph_network.graph import Graph
from weft.models.graph_network.layers import KINDS, STAGES, LayerShape, WorkCounts
from weft.models.spec.model_sections import GraphNetworkModel
from weft.models.spec.spec import load_spec
from weft.runtime.graph_network import kernels
from weft.runtime.graph_network.kernels import Edges
from weft.runtime.graph_network.layers import GraphNetwork, Layer, Parameters, ready
from weft.runtime.measure.measure import Sample, Timer, single_threaded
from weft.text.tables import table_of
from weft.text.units import bytes_text

GRAPH_STAGES_FORMAT = "weft.graph-network-stages/1"
#: Scatter, ApplyEdge and Gather as one sparse product.
FUSED = "fused"
#: Width of the hidden layer, and of features and classes missing in a graph.
_WIDTH = 16
#: Rows and columns of the product, and elements of the copy, that measure the device's rates.
_PRODUCT, _COPY = 1024, 1 << 24


@dataclass(frozen=True)
class StageFigures:
    """One stage of layer ``layer``: counts, median seconds and the range of the middle half of runs over it; FLOPs a
    byte, and its bound, ``memory``, ``compute`` or ``nothing`` for an empty stage."""

    layer: int
    kind: str
    stage: str
    flops: int
    bytes: int
    seconds: float
    spread: float
    intensity: float
    bound: str


@dataclass(frozen=True)
class GraphNetworkStages(SavedResult):
    """The result of :func:`profile_graph_network`; ``str()`` is a table. ``flops`` and ``bandwidth``: peak rates per
    second.
    """

    graph: str
    vertices: int
    edges: int
    device: str
    torch: str
    flops: float
    bandwidth: float
    stages: tuple[StageFigures, ...]

    def seconds(self, *, fused: bool) -> dict[str, float]:
        """Of each stage in all layers; ``fused``: with the sparse product if a layer has one."""
        replaced = {one.layer for one in self.stages if fused and one.stage == FUSED}
        found = dict.fromkeys((*STAGES, FUSED), 0.0)
        for one in self.stages:
            if (one.layer not in replaced or one.stage == "apply_vertex") if one.stage != FUSED else fused:
                found[one.stage] += one.seconds
        return found

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data, of format ``weft.graph-network-stages/1``."""
        return {"format": GRAPH_STAGES_FORMAT, **asdict(self)}

    def draw(self, path: PathLike, title: str | None) -> None:
        from weft.figures.results import draw_stages

        draw_stages([(f"layer {one.layer}: {one.kind}", one.stage, one.seconds, one.bound) for one in self.stages],
                    path, title or f"{self.graph}: time of each stage")

    def table(self) -> Any:
        """Every stage of every layer, and their totals."""
        table = table_of(f"{self.graph}: {self.vertices} vertices, {self.edges} edges", (
            "layer", "stage", "FLOPs", "bytes", "time", "spread", "FLOPs/byte", "bound by"),
                         ("layer", "stage", "bound by"), self._caption())
        for one in self.stages:
            table.add_row(f"{one.layer} {one.kind}", one.stage.replace("_", " "), f"{one.flops:,}",
                          bytes_text(one.bytes), f"{one.seconds * 1e3:.3f} ms", f"{one.spread:.0%}",
                          f"{one.intensity:.3g}", one.bound)
        return table

    def _caption(self) -> str:
        plain, fused = self.seconds(fused=False), self.seconds(fused=True)
        most = max(plain, key=plain.__getitem__)
        rates = (f"{self.device}: {self.flops / 1e9:.3g} GFLOP/s and {self.bandwidth / 1e9:.3g} GB/s at most, so "
                 f"{self.flops / self.bandwidth:.3g} FLOPs a byte. {most.replace('_', ' ')} takes "
                 f"{plain[most] / sum(plain.values()):.0%} of the time.")
        gain = sum(plain.values()) / sum(fused.values())
        return rates + (f" Fused, all is {gain:.3g} times as fast." if fused[FUSED] else " No layer can be fused.")


def profile_graph_network(model: str | os.PathLike[str], graph: str | os.PathLike[str] | Graph | None = None, *,
                          repeats: int = 7, device: str | None = None) -> GraphNetworkStages:
    """The stages of ``model``, a ready layer's name (two layers, 16 wide inside) or a spec with ``model: {family:
    graph-network}``, on ``graph`` (default: the spec's).

    Raises :class:`~weft.app.profile.targets.ProfileFault`, and the exceptions of specs and graphs.
    """
    where, name = device_of(device), os.fspath(model)
    given = load_graph(graph) if isinstance(graph, (str, os.PathLike)) else graph
    if name in KINDS:
        if given is None:
            raise ProfileFault(f"--graph-network {name} needs a graph: a file .npz, .mtx, or with an edge a line")
        inputs = _WIDTH if given.features is None else given.features.shape[1]
        classes = _WIDTH if given.labels is None else int(given.labels.max(initial=0)) + 1
        shapes = [LayerShape(kind, wide, out) for kind in KINDS if kind == name
                  for wide, out in ((inputs, _WIDTH), (_WIDTH, classes))]
    elif Path(name).suffix.lower() not in (".yaml", ".yml"):
        raise ProfileFault(f"--graph-network is {name!r}, it must be {', '.join(KINDS)} or a spec (.yaml)")
    else:
        spec = load_spec(name)
        if not isinstance(spec.model, GraphNetworkModel):
            raise ProfileFault(f"{name}: model is no graph-network; it has no stages on a graph")
        given = graph_of(spec, spec.model) if given is None else given
        shapes = shapes_of(spec, spec.model, given)
    flops, bandwidth = _rates(where)
    stages = tuple(_measured(shapes, given, where, repeats, flops / bandwidth))
    return GraphNetworkStages(given.name, given.vertices, given.edges, device_name(where), torch.__version__, flops,
                              bandwidth, stages)


def _rates(device: torch.device) -> tuple[float, float]:
    """FLOPs and bytes a second of ``device`` in a large product and a large copy."""
    timer = Timer.of_work(device)
    square, line = (torch.ones(shape, device=device) for shape in ((_PRODUCT, _PRODUCT), (_COPY,)))
    other = torch.empty_like(line)
    with single_threaded():
        return (2 * _PRODUCT**3 / timer.sample(lambda: square @ square, 5).seconds,
                2 * line.nbytes / timer.sample(lambda: other.copy_(line), 5).seconds)


def _measured(shapes: Sequence[LayerShape], graph: Graph, device: torch.device, repeats: int, ridge: float
              ) -> Iterator[StageFigures]:
    network = GraphNetwork(tuple(ready(one.kind, one.inputs, one.outputs, one.heads) for one in shapes),
                           shapes[0].inputs)
    timer = Timer.of_work(device)
    x = (torch.rand(graph.vertices, shapes[0].inputs, generator=torch.Generator().manual_seed(0))
         if graph.features is None else torch.from_numpy(graph.features)).to(device, torch.float32)
    with single_threaded(), torch.no_grad():
        for number, (shape, layer, own) in enumerate(zip(shapes, network.layers, network.initial(), strict=True)):
            own = {name: value.to(device) for name, value in own.items()}
            looped = graph.with_loops() if layer.loops else graph
            state, runs = stage_runs(layer, own, x, looped)
            counts: dict[str, WorkCounts] = dict(shape.counts(graph.vertices, looped.edges).items())
            if shape.fuses:
                counts[FUSED] = shape.fused(graph.vertices, looped.edges)
            for stage, count in counts.items():
                laps = [timer.lap(partial(runs[stage], state()))[1] for _ in range(repeats + 1)]
                sample = Sample.of(laps[1:]) if count != WorkCounts() else Sample(0.0, 0.0, repeats)
                bound = "compute" if count.intensity >= ridge else "memory" if count.bytes else "nothing"
                yield StageFigures(number, shape.kind, stage, count.flops, count.bytes, sample.seconds, sample.spread,
                                   count.intensity, bound)
            x = runs["apply_vertex"](state()).relu()


def stage_runs(layer: Layer, p: Parameters, x: Tensor, graph: Graph) -> tuple[
        Callable[[], list[Tensor]], Mapping[str, Callable[[list[Tensor]], Any]]]:
    """A function that makes a new accumulator, and for each stage a function that runs it with one. ``graph``: with the
    self-loops required by the layer."""
    order = torch.from_numpy(graph.target).to(x.device).argsort(stable=True)
    source, target = (torch.from_numpy(ends).to(x.device, torch.int32)[order] for ends in (graph.source, graph.target))
    counts = torch.bincount(target, minlength=graph.vertices)
    degree = counts.to(x.dtype)[:, None]
    begins = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(torch.int32)
    found = kernels.widths(layer, {name: value.cpu() for name, value in p.items()}, x.shape[1], x.dtype)
    at_source, *further = kernels.prepare(layer, p, x, degree)
    at_target = further[0] if further else None
    edges = Edges(source, target)
    scattered = kernels.scatter(at_source, at_target, edges)

    def state() -> list[Tensor]:
        made = [x.new_empty(graph.vertices, wide) for wide in found.state(layer.gather, False)]
        return list(kernels.opened(layer, made))

    def gathered(into: Sequence[Tensor], message: Any) -> Tensor:
        kernels.accumulate(layer, into, message, target)
        return kernels.closed(layer, into, degree)

    def fused(into: list[Tensor]) -> Tensor:
        kernels.gather(layer, p, into, at_source, None, Edges(source, source, begins))
        return kernels.closed(layer, into, degree)

    def at_vertices(total: Tensor) -> Tensor:
        kernels.prepare(layer, p, x, degree)
        return kernels.vertex(layer, p, x, total, degree, True)

    message = kernels.apply_edge(layer, p, *scattered, state())
    total = gathered(state(), message)
    return state, {"scatter": lambda into: kernels.scatter(at_source, at_target, edges),
                   "apply_edge": lambda into: kernels.apply_edge(layer, p, *scattered, into),
                   "gather": lambda into: gathered(into, message), "apply_vertex": lambda into: at_vertices(total),
                   **({FUSED: fused} if layer.fuses else {})}
