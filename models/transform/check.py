"""An independent check of exchanges: what each device holds, what each needs, and whether the step closes the gap.

Nothing here is shared with what chooses and places the exchanges. A tensor is a small grid of cells, every axis cut in
two; a layout says which cells each of two devices holds, and whether what it holds are final numbers or terms of a sum.
From that alone follows which step is needed:

* terms, and every device needs all cells: their sums must reach everyone (all-reduce);
* terms, and each needs its own cells only: sums, each where it is needed (reduce-scatter);
* final numbers, all needed cells held: nothing is sent (nothing to do where no more is held than needed, else a slice);
* final numbers, some are missing: everyone needs everything (all-gather), or everyone needs something from everyone
  (all-to-all).

Gradients follow from what operators compute. A reader whose work is divided, but who reads all cells, has seen part of
every cell's uses: its gradients are terms. A producer of terms needs the gradient of the sum for them: all cells.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from models.transform.shard import Sharded
from solver.operators import Layout, Operator, OperatorGraph, Split

__all__ = ["exchange_faults"]

_DEVICES = (0, 1)


class _Held(NamedTuple):
    cells: tuple[frozenset[tuple[int, ...]], ...]  # by device
    final: bool


def exchange_faults(graph: OperatorGraph, sharded: Sharded) -> list[str]:
    """Sentences on exchanges of ``sharded`` that the layouts of its choices do not call for, that are missing, or that
    move another number of bytes; none if all is right."""
    if sharded.degree == 1:
        return [f"{entry.tensor}: is exchanged, but there is one device" for entry in sharded.exchanges]
    wanted = Counter(_wanted(graph, sharded.choices, sharded.degree))
    given = Counter[tuple[str, str, str, str, int, int]](
                    (e.tensor, e.layer, e.exchange.forward, e.exchange.backward,
                     e.exchange.forward_bytes if e.exchange.forward not in ("none", "slice") else 0,
                     e.exchange.backward_bytes if e.exchange.backward not in ("none", "slice") else 0)
                    for e in sharded.exchanges)
    faults = [f"{row[0]} in {row[1]}: {row[2]} of {row[4]} bytes and {row[3]} of {row[5]} are missing"
              for row in wanted - given]
    faults += [f"{row[0]} in {row[1]}: {row[2]} of {row[4]} bytes and {row[3]} of {row[5]} are too many"
               for row in given - wanted]
    found = {operator.name for operator in sharded.graph.operators}
    return faults + [f"operator {name} is missing" for name in graph.by_name if name not in found]


def _wanted(graph: OperatorGraph, choices: Mapping[str, Split | None],
            degree: int) -> Iterator[tuple[str, str, str, str, int, int]]:
    for name, tensor in graph.tensors.items():
        maker = graph.by_name[graph.producer[name]] if name in graph.producer else None
        readers = [graph.by_name[reader] for reader in graph.readers[name]]
        flows = maker is not None and "float" in tensor.dtype and bool(maker.input_grad or maker.weight_grad)
        made: Layout = "whole" if maker is None else _lies(choices[maker.name], name, out=True)
        axes = max(len(tensor.shape), 1)
        by_layer: dict[str, set[tuple[Layout, bool]]] = {}
        for reader in readers:
            option = choices[reader.name]
            use = (_lies(option, name, out=False), option is not None and _passes_back(reader))
            by_layer.setdefault(reader.layer, set()).add(use)
        home = "" if maker is None else maker.layer
        if maker is not None and (name in graph.outputs or any(layer != home for layer in by_layer)):
            by_layer.setdefault(home, set()).add(("whole", False))  # it leaves whole, and its gradient comes whole
        for layer, uses in by_layer.items():
            before: Layout = made if layer == home and maker is not None else "whole"
            for after, divided in uses:
                row = _row(before, after, divided, flows, axes, tensor.bytes, degree)
                if row is not None:
                    yield (name, layer, *row)


def _row(before: Layout, after: Layout, divided: bool, flows: bool, axes: int, size: int,
         degree: int) -> tuple[str, str, int, int] | None:
    has, needs = _held(before, axes), _held(after, axes)
    forward = _step(has, needs)
    backward, returned = "none", needs
    if flows:
        returned = _Held(needs.cells, final=not (divided and all(len(cells) == 2**axes for cells in needs.cells)))
        wants = _Held(has.cells if has.final else _held("whole", axes).cells, final=True)
        backward = _step(returned, wants)
    if forward == "none" and backward in ("none", "slice"):
        return None
    return (forward, backward, 0 if forward in ("none", "slice") else _bytes(has, axes, size, degree),
            0 if backward in ("none", "slice") else _bytes(returned, axes, size, degree))


def _held(layout: Layout, axes: int) -> _Held:
    grid = frozenset(itertools.product((0, 1), repeat=axes))
    if isinstance(layout, int):
        return _Held(tuple(frozenset(cell for cell in grid if cell[layout] == device) for device in _DEVICES), True)
    return _Held((grid, grid), layout == "whole")


def _step(has: _Held, needs: _Held) -> str:
    everything = needs.cells[0] | needs.cells[1]
    all_need_all = all(cells == everything for cells in needs.cells)
    if not has.final:
        return "all_reduce" if all_need_all else "reduce_scatter"
    if all(have >= need for have, need in zip(has.cells, needs.cells, strict=True)):
        return "none" if has.cells == needs.cells else "slice"
    return "all_gather" if all_need_all else "all_to_all"


def _bytes(has: _Held, axes: int, size: int, degree: int) -> int:
    """What one of ``degree`` devices holds of ``size`` bytes: all of it, or its share."""
    return size if len(has.cells[0]) == 2**axes else -(-size // degree)


def _lies(option: Split | None, tensor: str, *, out: bool) -> Layout:
    if option is None:
        return "whole"
    laid = option.outputs if out else option.inputs
    return laid.get(tensor, "whole")


def _passes_back(operator: Operator) -> bool:
    return operator.input_grad is not None
