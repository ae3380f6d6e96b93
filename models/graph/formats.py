"""Operator graphs in the JSON of other tools, read as placement problems.

Two formats, told apart by their fields: that of msr-fiddle/dnn-partitioning (Tarnawski et al., NeurIPS 2020: one
latency on an accelerator and one on a CPU for each node) and that of msr-fiddle/piper (Tarnawski et al., NeurIPS 2021:
alternatives per node and tensor-parallel degree). Fields beyond the formats' own are passed over, as both allow them.
Whatever is wrong raises :class:`~weft.solver.io.entries.FormatError`, one sentence with file, entry, field and what is
allowed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from weft.models.files.limits import MAX_DEVICES, MAX_MICRO_BATCHES, bad_name
from weft.solver.io.entries import Entry, FormatError, read_json, show
from weft.solver.placement.problem import DeviceKind, Node, PlacementError, PlacementProblem, PlacementTensor

#: Times and sizes, in any unit that is in use (bytes, ms): above it sums are no longer numbers that mean anything.
_LARGEST = 1e18


def load_profiled_graph(path: str | os.PathLike[str], *, recompute: bool = False) -> PlacementProblem:
    """The placement problem in the file ``path``, in either format. ``recompute`` is for Piper's (see there)."""
    name = os.fspath(path)
    entry = Entry(read_json(path), name)
    try:
        if entry.has("maxFPGAs") or entry.has("maxSizePerFPGA"):
            if recompute:
                raise FormatError(f"{name}: has no alternatives that recompute, leave out recompute")
            return dnn_partitioning_problem(entry)
        if entry.has("maxDevices") or entry.has("maxMemoryPerDevice"):
            return piper_problem(entry, recompute=recompute)
    except PlacementError as error:
        raise FormatError(f"{name}: {error}") from None
    if isinstance(stated := entry.get("format", None), str) and stated.startswith("weft."):
        raise FormatError(f"{name}: is a file of format {stated}; what is placed is an operator graph or a model spec"
                          + ("; a block problem has its devices: weft solve schedules it"
                             if stated.startswith("weft.problem/") else ""))
    raise FormatError(f"{name}: is no operator graph that is known: the dnn-partitioning format has a field "
                      "'maxFPGAs', the Piper format a field 'maxDevices'")


def dnn_partitioning_problem(entry: Entry) -> PlacementProblem:
    """Accelerators with limited memory, and CPUs that pay for no transfer; times in ms, memory in bytes.

    What a node sends costs each stage it touches the same ``cost`` once, so all its edges must agree on it.
    """
    kinds = (DeviceKind("accelerator", _count(entry, "maxFPGAs", MAX_DEVICES), _amount(entry, "maxSizePerFPGA")),
             DeviceKind("cpu", _count(entry, "maxCPUs", MAX_DEVICES), None, transfer_factor=0.0))
    found: list[tuple[int, str, Node]] = []
    for item in entry.list("nodes"):
        supported = _flag(item, "supportedOnFpga")
        color = item.get("colorClass", None)
        if color is not None and (not isinstance(color, int) or isinstance(color, bool)):
            raise FormatError(f"{item.where}: colorClass is {color!r:.40}, it must be a whole number")
        found.append((_whole(item, "id"), _name(item), Node(
            "", (_amount(item, "fpgaLatency") if supported else None, _amount(item, "cpuLatency")),
            _amount(item, "size"), 0.0, color, _flag(item, "isBackwardNode"))))
    index, nodes = _numbered(entry, found)
    sent: dict[int, tuple[float, dict[int, None]]] = {}
    for item in entry.list("edges"):
        source, target, cost = _end(item, "sourceId", index), _end(item, "destId", index), _amount(item, "cost")
        known, targets = sent.setdefault(source, (cost, {}))
        if abs(known - cost) > 1e-6:
            raise FormatError(f"{item.where}: cost is {cost}, but another edge from node {item.get('sourceId')} says "
                              f"{known}; what a node sends costs the same on all its edges")
        targets[target] = None
    return PlacementProblem(os.path.basename(entry.where), kinds, nodes, tuple(
        PlacementTensor(source, tuple(targets), cost) for source, (cost, targets) in sent.items()))


def piper_problem(entry: Entry, *, recompute: bool = False) -> PlacementProblem:
    """Piper's model without replication: tensor-parallel degree 1, one alternative of each node, times in seconds.

    Of a node's alternatives the fastest is taken, or with ``recompute`` the one that keeps least per micro-batch. An
    edge costs both its stages twice its bytes (there, and its gradient back) over the bandwidth, each edge by itself. A
    stage that is d-th from the end holds d micro-batches: memoryUsageA * d + memoryUsageB. Data-parallel replicas,
    higher degrees and a choice of alternatives within a stage are not expressed.
    """
    bandwidth = _amount(entry, "bandwidth")
    if bandwidth == 0:
        raise FormatError(f"{entry.where}: bandwidth is 0, it must be greater than 0")
    batch = "mbsInBatch" if entry.has("mbsInBatch") or not entry.has("maxBatchSize") else "maxBatchSize"
    micro_batches = _count(entry, batch, MAX_MICRO_BATCHES, 1)
    devices = _count(entry, "maxDevices", MAX_DEVICES, 1)
    kinds = (DeviceKind("accelerator", devices, _amount(entry, "maxMemoryPerDevice")),)
    found = []
    for item in entry.list("nodes"):
        choices = [(_amount(choice, "timePerSample"), _amount(choice, "memoryUsageA"), _amount(choice, "memoryUsageB"))
                   for choice in item.child("TMPCs").list("1")]
        if not choices:
            raise FormatError(f"{item.where}: TMPCs: 1 is empty, it needs at least one way to run on one device")
        time, held, fixed = min(choices, key=lambda choice: (choice[1], choice[0]) if recompute else choice)
        found.append((_whole(item, "id"), _name(item), Node("", (time,), fixed, held)))
    index, nodes = _numbered(entry, found)
    tensors: list[PlacementTensor] = []
    seen: set[tuple[int, int]] = set()
    for item in entry.list("edges"):
        source, target = _end(item, "sourceId", index), _end(item, "destId", index)
        if (source, target) in seen:
            raise FormatError(f"{item.where}: the edge from {item.get('sourceId')} to {item.get('destId')} is listed "
                              "twice; leave one out")
        seen.add((source, target))
        tensors.append(PlacementTensor(source, (target,), 2 * _amount(item, "communicationCost") / bandwidth))
    return PlacementProblem(os.path.basename(entry.where), kinds, nodes, tuple(tensors), micro_batches, time_unit="s")


def _numbered(entry: Entry, found: Iterable[tuple[int, str, Node]]) -> tuple[dict[int, int], tuple[Node, ...]]:
    """id -> index, and the nodes under names of their own: the file's where no other node has it, else with the id."""
    found = list(found)
    names = [name for _, name, _ in found]
    uses: dict[str, int] = {}
    for name in names:
        uses[name] = uses.get(name, 0) + 1
    index: dict[int, int] = {}
    nodes = []
    for position, (number, name, node) in enumerate(found):
        if number in index:
            raise FormatError(f"{entry.where}: nodes[{position}]: id {number} is taken by nodes[{index[number]}], "
                              "every node needs its own")
        index[number] = position
        unique = str(number) if not name else name if uses[name] == 1 else f"{name} ({number})"
        nodes.append(Node(unique, node.times, node.resident, node.per_micro_batch, node.colocation, node.backward))
    return index, tuple(nodes)


def _name(item: Entry) -> str:
    name: Any = item.get("name", "")
    if not isinstance(name, str):
        raise FormatError(f"{item.where}: name is {name!r:.40}, it must be text")
    wrong = bad_name(name)
    if wrong is not None:
        raise FormatError(f"{item.where}: name {wrong}")
    return name


def _amount(item: Entry, field: str) -> float:
    value = item.number(field)
    if not 0 <= value <= _LARGEST:
        raise FormatError(f"{item.where}: {field} is {show(value)}, it must be "
                          + ("0 or more" if value < 0 else f"at most {_LARGEST:g}"))
    return float(value)


def _count(item: Entry, field: str, most: int, least: int = 0) -> int:
    value = item.count(field, least)
    if value > most:
        raise FormatError(f"{item.where}: {field} is {show(value)}, it must be at most {most}")
    return value


def _whole(item: Entry, field: str) -> int:
    value = item.get(field)
    if not isinstance(value, int) or isinstance(value, bool):
        raise FormatError(f"{item.where}: {field} is {value!r:.40}, it must be a whole number")
    return value


def _flag(item: Entry, field: str) -> bool:
    value = item.get(field)
    if value not in (0, 1):  # true and false are equal to these
        raise FormatError(f"{item.where}: {field} is {value!r:.40}, it must be true, false, 0 or 1")
    return bool(value)


def _end(item: Entry, field: str, index: dict[int, int]) -> int:
    value = _whole(item, field)
    if value not in index:
        raise FormatError(f"{item.where}: {field} is {value}, but no node has that id")
    return index[value]
