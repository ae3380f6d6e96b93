"""Candidate devices for operators that no call has placed.

Few operators on few devices: all placements, without renamings of devices. Many: weft's placement search makes chains
of stages on one device, two, and so on, with the least largest load for each number; and the best of these with each of
its cuts moved by an operator. Proofs then cover only these placements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.models.layouts.conversion import LayoutPrices
from weft.models.transform import transformations
from weft.models.transform.as_blocks.costs import OperatorCosts
from weft.models.transform.as_blocks.problem import part_seconds
from weft.models.transform.planned import Planned
from weft.models.transform.program import PlanError
from weft.solver.placement.chain.place import place
from weft.solver.placement.problem import DeviceKind, Node, PlacementProblem, PlacementTensor

#: Up to this many placements, all are considered.
_MOST = 64


@dataclass(frozen=True)
class Placements:
    """``found``: titles, and the device of each operator. ``complete``: whether these are all."""

    found: Mapping[str, Mapping[str, int]]
    complete: bool


def placements(planned: Planned, names: Sequence[str], devices: int, costs: OperatorCosts, prices: LayoutPrices,
               effort: float, left: Callable[[], float] = lambda: math.inf) -> Placements:
    """The placements of the operators ``names``. ``left``: the seconds left to search for stages; the first, on one
    device, are always made. Raises :class:`~weft.models.transform.program.PlanError` for operators with concurrent
    parts, each of which needs its own device."""
    for name in names:
        if any(not cut.in_turn for cut in planned.cuts_of(name)):
            raise PlanError(f"operator {name!r} is cut into parts beside each other and has no devices: assign it, or "
                            "leave it open with one_of")
    alike = not planned.devices
    if devices**len(names) <= _MOST * (devices if alike else 1):
        every = [where for where in itertools.product(range(devices), repeat=len(names))
                 if not alike or _first_named(where)]
        if len(every) <= _MOST:
            return Placements({", ".join(f"{name} on {at}" for name, at in zip(names, where, strict=True)):
                               dict(zip(names, where, strict=True)) for where in every}, True)
    found = {}
    for where in _in_stages(planned, names, devices, costs, prices, effort, left):
        found[_stages_text(names, where)] = where
    return Placements(found, False)


def put(planned: Planned, where: Mapping[str, int]) -> Planned:
    """A plan with operators on these devices."""
    for name, device in where.items():
        planned = transformations.assign(planned, name, device)
    return planned


def _first_named(where: Sequence[int]) -> bool:
    """Whether devices appear in the order of their numbers: the first of the placements that differ only in device
    names."""
    most = -1
    for device in where:
        if device > most + 1:
            return False
        most = max(most, device)
    return True


def _stages_text(names: Sequence[str], where: Mapping[str, int]) -> str:
    rows: dict[int, list[str]] = {}
    for name in names:
        rows.setdefault(where[name], []).append(name)
    return " | ".join(f"{row[0]} .. {row[-1]}" if len(row) > 1 else row[0] for _, row in sorted(rows.items()))


def _in_stages(planned: Planned, names: Sequence[str], devices: int, costs: OperatorCosts, prices: LayoutPrices,
               effort: float, left: Callable[[], float]) -> Iterator[dict[str, int]]:
    best: tuple[float, list[list[str]]] | None = None
    for count in range(1, devices + 1):
        if best is not None and left() <= 0:
            return
        problem = _problem(planned, names, count, costs, prices)
        found = place(problem, effort=effort, time_limit=max(1e-3, left()))
        stages = [[names[node] for node in stage.nodes] for stage in found.stages if stage.nodes]
        yield {name: i for i, stage in enumerate(stages) for name in stage}
        if best is None or found.objective < best[0]:
            best = found.objective, stages
    assert best is not None
    stages = best[1]
    for i in range(len(stages) - 1):
        for moved in (_moved(stages, i, i + 1, last=True), _moved(stages, i + 1, i, last=False)):
            if all(moved):
                yield {name: n for n, stage in enumerate(moved) for name in stage}


def _moved(stages: Sequence[Sequence[str]], source: int, target: int, *, last: bool) -> list[list[str]]:
    found = [list(stage) for stage in stages]
    if last:
        found[target].insert(0, found[source].pop())
    else:
        found[target].append(found[source].pop(0))
    return found


def _problem(planned: Planned, names: Sequence[str], count: int, costs: OperatorCosts, prices: LayoutPrices
             ) -> PlacementProblem:
    """Each operator with its successors; a tensor costs both ends the time of its message, and again for its
    gradient."""
    program = planned.program
    index = {name: i for i, name in enumerate(names)}
    seconds = [0.0] * len(names)
    for operation in program.operations:
        at = index.get(operation.name, index.get(operation.follows or ""))
        if at is not None:
            seconds[at] += sum(part_seconds(planned, part, costs) for part in planned.parts(operation.name))
    tensors = []
    for name, tensor in program.tensors.items():
        producer = index.get(program.producer.get(name, ""))
        readers = tuple(sorted({index[reader] for reader in program.readers.get(name, ()) if reader in index}))
        if producer is not None and readers and readers != (producer,):
            size = tensor.itemsize * math.prod(tensor.shape)
            tensors.append(PlacementTensor(producer, tuple(reader for reader in readers if reader != producer),
                                           prices.messages([(0, 1, size)]) * (2 if tensor.gradient else 1)))
    return PlacementProblem(program.name, (DeviceKind("device", count),),
                            tuple(Node(name, (time,)) for name, time in zip(names, seconds, strict=True)),
                            tuple(tensors), time_unit="s")
