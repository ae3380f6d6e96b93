"""read the operators of your PyTorch model

MODEL is a file of torch.export.save. Nothing in it is unpickled, only torch's own code runs, on tensors without data,
and no weight is loaded. The graph has the floating-point operations and bytes of every operator's forward and of both
parts of its backward, and the tensors that autograd keeps, exactly as in a run on a CPU. Operators that cannot be
followed are named, with the assumption made for them.

example:
  weft capture model.pt2 -o graph.json
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from weft.app.lib.arguments import Option
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, command, into
from weft.cli.lib.output import JSON, require_output, require_torch, written
from weft.text.units import bytes_text

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.models.graph.operators import OperatorGraph

#: Rows of a table of layers at most.
MOST_ROWS = 40


def capture(source: Annotated[PathLike | Module, Option("a file of torch.export.save", "MODEL.pt2")],
            inputs: tuple[Any, ...] | None = None, keywords: Mapping[str, Any] | None = None) -> OperatorGraph:
    """The operators of a model: of a ``.pt2`` file of ``torch.export.save``, or of a module called with ``inputs``.

    Of a file nothing is unpickled and no code runs but torch's own on tensors without data; a module is exported with
    ``torch.export.export(source, inputs, keywords)``. ``notes`` of the result say what its numbers assume. Raises
    :class:`weft.models.capture.exported.ExportFault`.
    """
    from weft.models.capture.capture import capture_file, capture_module

    if isinstance(source, str | os.PathLike):
        return capture_file(source)
    return capture_module(source, inputs or (), keywords)


@command(capture)
def run(call: Call, *,
        output: Annotated[str | None, into("write the operators there (format weft.operators/1)")] = None,
        layers: Annotated[bool, Option("write one operator a layer instead")] = False, as_json: Json = False) -> int:
    require_torch("capture")
    from weft.models.graph.layers_view import by_layer
    from weft.models.graph.operator_files import graph_to_json, save_graph

    require_output(output, "an operator graph", JSON, [call.source])
    graph = call()
    shown = by_layer(graph)
    if output:
        save_graph(shown if layers else graph, output)
    print(json.dumps(graph_to_json(shown if layers else graph)) if as_json else "\n".join(graph_lines(graph, shown)))
    written(output, silent=as_json)
    return GOOD


def graph_lines(graph: OperatorGraph, layers: OperatorGraph) -> Iterator[str]:
    """Totals of ``graph``, a row a layer (of ``layers``, its view by layer), and the assumptions."""
    operators = graph.operators
    forward = sum(operator.forward.flops for operator in operators)
    backward = sum(work.flops for operator in operators for work in (operator.input_grad, operator.weight_grad)
                   if work is not None)
    held = graph.constant_bytes()
    yield (f"{graph.name}: {len(operators)} operators, {graph.parameter_count():,} parameters "
           f"({bytes_text(graph.parameter_bytes())}{f', and {bytes_text(held)} not trained' if held else ''})")
    yield (f"one micro-batch: {_flops(forward)} forward, {_flops(backward)} backward, "
           f"{bytes_text(graph.saved_bytes())} kept")
    rows = [(operator.name, _flops(operator.forward.flops), bytes_text(sum(p.bytes for p in operator.parameters)),
             bytes_text(layers.saved_bytes([operator.name]))) for operator in layers.operators]
    shown = rows
    if len(rows) > MOST_ROWS:
        shown = [*rows[:MOST_ROWS - 1], (f"... {len(rows) - MOST_ROWS + 1} more", "", "", "")]
    width = max(len(name) for name, *_ in [("layer",), *shown])
    yield f"{'layer':{width}}  {'forward':>12}  {'weights':>10}  {'kept':>10}"
    for name, flops, weights, kept in shown:
        yield f"{name:{width}}  {flops:>12}  {weights:>10}  {kept:>10}"
    for note in graph.notes:
        yield f"note: {note}"


def _flops(count: float) -> str:
    for unit, size in (("PFLOP", 1e15), ("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} FLOP"
