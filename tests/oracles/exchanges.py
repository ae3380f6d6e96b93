"""An independent check of exchanges: what each device holds, what each needs, and whether the step closes the gap.

Nothing here is shared with what chooses and places the exchanges. A tensor is a small grid of cells, every axis cut in
two; a layout says which cells each of two devices holds, and whether what it holds are final numbers or terms of a sum.
From that alone follows which step is needed:

* terms, and every device needs all cells: their sums must reach everyone (all-reduce);
* terms, and each needs its own cells only: sums, each where it is needed (reduce-scatter);
* final numbers, all needed cells held: nothing is sent (nothing to do where no more is held than needed, else a slice);
* final numbers, some are missing: everyone needs everything (all-gather), or everyone needs something from everyone
  (all-to-all).

Parts that run in turn on one device (:func:`co_shard_faults`) are checked the same way, a part in place of a device:
whatever a part reads that another part made is a fault, since it is gone or not there yet.

Gradients follow from what operators compute. A reader whose work is divided, but who reads all cells, has seen part of
every cell's uses: its gradients are terms. A producer of terms needs the gradient of the sum for them: all cells.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from weft.models.graph.operators import Layout, Operator, OperatorGraph, Split
from weft.models.tensor_parallel.co_shard import CoSharded, LayerSegment
from weft.models.tensor_parallel.shard import Sharded

_DEVICES = (0, 1)
#: Steps in which nothing is sent.
_SILENT = ("none", "slice")


class _Exchange(NamedTuple):
    """What happens to a tensor in a layer, forward and backward; bytes are 0 where nothing is sent."""

    tensor: str
    layer: str
    forward: str
    backward: str
    forward_bytes: int
    backward_bytes: int

    def __str__(self) -> str:
        return (f"{self.tensor} in {self.layer}: {self.forward} of {self.forward_bytes} bytes and {self.backward} of "
                f"{self.backward_bytes}")


class _Held(NamedTuple):
    cells: tuple[frozenset[tuple[int, ...]], ...]  # by device
    final: bool


def exchange_faults(graph: OperatorGraph, sharded: Sharded) -> list[str]:
    """Sentences on exchanges of ``sharded`` that the layouts of its choices do not call for, that are missing, or that
    move another number of bytes; none if all is right."""
    if sharded.degree == 1:
        return [f"{entry.tensor}: is exchanged, but there is one device" for entry in sharded.exchanges]
    wanted = Counter(_wanted(graph, sharded.choices, sharded.degree))
    given = Counter(_Exchange(e.tensor, e.layer, e.exchange.forward, e.exchange.backward,
                              e.exchange.forward_bytes if e.exchange.forward not in _SILENT else 0,
                              e.exchange.backward_bytes if e.exchange.backward not in _SILENT else 0)
                    for e in sharded.exchanges)
    faults = [*(f"{one} are missing" for one in wanted - given), *(f"{one} are too many" for one in given - wanted)]
    found = {operator.name for operator in sharded.graph.operators}
    return faults + [f"operator {name} is missing" for name in graph.by_name if name not in found]


def _wanted(graph: OperatorGraph, choices: Mapping[str, Split | None],
            degree: int) -> Iterator[_Exchange]:
    """The exchanges that ``choices`` call for."""
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
                steps = _steps(before, after, divided, flows, axes, tensor.bytes, degree)
                if steps is not None:
                    yield _Exchange(name, layer, *steps)


def _steps(before: Layout, after: Layout, divided: bool, flows: bool, axes: int, size: int,
           degree: int) -> tuple[str, str, int, int] | None:
    """The steps forward and backward with their bytes; ``None`` where nothing is sent either way."""
    has, needs = _held(before, axes), _held(after, axes)
    forward = _step(has, needs)
    backward, returned = "none", needs
    if flows:
        returned = _Held(needs.cells, final=not (divided and all(len(cells) == 2**axes for cells in needs.cells)))
        wants = _Held(has.cells if has.final else _held("whole", axes).cells, final=True)
        backward = _step(returned, wants)
    if forward == "none" and backward in _SILENT:
        return None
    return (forward, backward, 0 if forward in _SILENT else _bytes(has, axes, size, degree),
            0 if backward in _SILENT else _bytes(returned, axes, size, degree))


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


# -- parts in turn on one device ---------------------------------------------------------------------------------------


def co_shard_faults(graph: OperatorGraph, found: CoSharded) -> list[str]:
    """Sentences on segments of ``found`` whose parts cannot run one after the other without keeping anything but what
    all of them read and the sum of what they give, or that take more memory than it says; none if all is right."""
    faults = [f"operator {name} is missing" for name in graph.by_name
              if name not in found.graph.by_name and not any(name in segment.choices for segment in found.segments)]
    for segment in found.segments:
        where = f"{segment.layer}: {segment.family}"
        faults += [f"{where}: {sentence}" for sentence in _segment_faults(graph, segment, found.parts[segment.family])]
        macro = found.graph.by_name.get(found.graph.producer.get(segment.gives, ""))
        if macro is None or macro.kind != "co_shard":
            faults.append(f"{where}: nothing gives {segment.gives}")
            continue
        inner = [graph.by_name[name] for name in segment.choices]
        if {p.name for p in macro.parameters} != {p.name for operator in inner for p in operator.parameters}:
            faults.append(f"{where}: it holds other parameters than its operators")
        if any(o.input_grad or o.weight_grad for o in inner) and set(macro.keeps) != set(segment.reads):
            faults.append(f"{where}: its parts cannot run again from {sorted(macro.keeps)}")
        needed = _peak_of_a_part(graph, segment, found.parts[segment.family])
        counted = macro.workspace + (sum(p.bytes for p in macro.parameters) if macro.input_grad else 0)
        if needed > counted:
            faults.append(f"{where}: a part needs {needed} bytes, {counted} are counted")
    return faults


def _segment_faults(graph: OperatorGraph, segment: LayerSegment, parts: int) -> Iterator[str]:
    made = {tensor.name: graph.by_name[name] for name in segment.choices for tensor in graph.by_name[name].outputs}
    for name, split in segment.choices.items():
        operator = graph.by_name[name]
        if split not in operator.splits or split.size % parts:
            yield f"{name} cannot be divided by {split.dimension} into {parts} parts"
        if any(p.name not in split.parameters for p in operator.parameters if len(p.shape) > 1):
            yield f"every part computes with all weights of {name}"
        for tensor in operator.inputs:
            axes = max(len(graph.tensors[tensor].shape), 1)
            needs = _held(_lies(split, tensor, out=False), axes)
            if tensor in made:
                has = _held(_lies(segment.choices[made[tensor].name], tensor, out=True), axes)
                if not has.final or any(need - have for have, need in zip(has.cells, needs.cells, strict=True)):
                    yield f"{name} needs of {tensor} what other parts make"
            elif tensor not in segment.reads:
                yield f"{name} reads {tensor}, which is not among what it reads"
    for tensor, maker in made.items():
        outside = tensor in graph.outputs or any(reader not in segment.choices for reader in graph.readers[tensor])
        has = _held(_lies(segment.choices[maker.name], tensor, out=True), max(len(graph.tensors[tensor].shape), 1))
        if outside != (tensor == segment.gives):
            yield f"{tensor} is {'needed' if outside else 'not needed'} outside"
        if outside and has.final:
            yield f"{tensor} is no sum of what the parts give"


def _peak_of_a_part(graph: OperatorGraph, segment: LayerSegment, parts: int) -> int:
    """Bytes at the height of one part, its forward and backward played through tensor by tensor."""
    operators = [graph.by_name[name] for name in segment.choices]
    trains = any(operator.input_grad or operator.weight_grad for operator in operators)
    share = {}
    for operator in operators:
        for tensor in (*operator.outputs, *operator.internal):
            layout = _lies(segment.choices[operator.name], tensor.name, out=True)
            whole = tensor in operator.outputs and not isinstance(layout, int)
            share[tensor.name] = tensor.bytes if whole else -(-tensor.bytes // parts)
    live: Counter[str] = Counter()
    peak = 0

    def reached(operator: Operator) -> None:
        nonlocal peak
        peak = max(peak, live.total() + -(-operator.workspace // parts))

    kept = {name for operator in operators for name in operator.keeps} if trains else set()
    for at, operator in enumerate(operators):
        live.update({tensor.name: share[tensor.name] for tensor in (*operator.outputs, *operator.internal)})
        reached(operator)
        waiting = {name for later in operators[at + 1:] for name in later.inputs} | kept
        for name in [name for name in live if name not in waiting]:
            del live[name]
    if not trains:
        return peak
    live = Counter({name: size for name, size in live.items() if name in kept})
    for at in reversed(range(len(operators))):
        operator = operators[at]
        for name in dict.fromkeys(operator.inputs):
            maker = graph.by_name.get(graph.producer.get(name, ""))
            if maker is not None and "float" in graph.tensors[name].dtype and (maker.input_grad or maker.weight_grad):
                live[f"gradient of {name}"] = share.get(name, graph.tensors[name].bytes)
        weights = {f"gradient of {p.name}": -(-p.bytes // parts)
                   if p.name in segment.choices[operator.name].parameters else p.bytes for p in operator.parameters}
        live.update(weights)
        reached(operator)
        still = {name for earlier in operators[:at] for name in earlier.keeps}
        done = {*weights, *(f"gradient of {tensor.name}" for tensor in operator.outputs),
                *(f"gradient of {name}" for name in operator.inputs if name not in share)}
        for name in [name for name in live if name in done or (name in share and name not in still)]:
            del live[name]
    return peak
