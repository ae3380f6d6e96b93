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
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from weft.app.lib.arguments import Option
from weft.app.lib.sources import PathLike
from weft.cli.lib.command import GOOD, Call, Json, command, into
from weft.cli.lib.output import JSON, require_output, require_torch, written

if TYPE_CHECKING:
    from torch.nn import Module

    from weft.models.graph.operators import OperatorGraph


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
    from weft.app.capture import graph_lines
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
