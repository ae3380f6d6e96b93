"""``weft capture``: the operators of a model file."""

from __future__ import annotations

import argparse
import json

from weft import api
from weft.cli.lib.command import GOOD, Command
from weft.cli.lib.output import JSON, require_output, require_torch

__all__ = ["COMMAND"]


def _arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("model", metavar="MODEL.pt2", help="a file of torch.export.save")
    command.add_argument("-o", "--output", metavar="FILE", help="write the operators there (format weft.operators/1)")
    command.add_argument("--layers", action="store_true", help="write one operator a layer instead")
    command.add_argument("--json", action="store_true", help="print them as JSON")


def _run(options: argparse.Namespace) -> int:
    require_torch("capture")
    from weft.app.capture import graph_lines
    from weft.models.graph.layers_view import by_layer
    from weft.models.graph.operator_files import graph_to_json, save_graph

    require_output(options.output, "an operator graph", JSON, [options.model])
    graph = api.capture(options.model)
    shown = by_layer(graph)
    if options.output:
        save_graph(shown if options.layers else graph, options.output)
    if options.json:
        print(json.dumps(graph_to_json(shown if options.layers else graph)))
        return GOOD
    print("\n".join(graph_lines(graph, shown)))
    if options.output:
        print(f"written to {options.output}")
    return GOOD


COMMAND = Command(
    name="capture",
    summary="read the operators of your PyTorch model",
    paragraphs=(
        "MODEL is a file of torch.export.save. Nothing in it is unpickled, only torch's own code runs, on tensors "
        "without data, and no weight is loaded. The graph has the floating-point operations and bytes of every "
        "operator's forward and of both parts of its backward, and the tensors that autograd keeps, exactly as in a "
        "run on a CPU. Operators that cannot be followed are named, with the assumption made for them.",
    ),
    example="weft capture model.pt2 -o graph.json",
    arguments=_arguments,
    run=_run,
)
