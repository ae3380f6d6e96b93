"""The output of ``weft capture`` for a model."""

from __future__ import annotations

from collections.abc import Iterator

from weft.models.graph.operators import OperatorGraph
from weft.text.units import bytes_text

MOST_ROWS = 40


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
