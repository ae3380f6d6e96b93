"""A captured model as a chain of operators with measured times and bytes, the input of memory planning."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from weft.app.pipeline.planning.row import STATE
from weft.app.pipeline.planning.times import BOTH_WAYS, operator_seconds, operator_weights
from weft.runtime.captured.captured import Captured, is_item, tensors
from weft.runtime.captured.cut import crossings
from weft.runtime.captured.memory.decisions import Mode, units
from weft.runtime.captured.memory.saved_bytes import SavedBytes, saved_tensor_bytes
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.captured.purity import Purity
from weft.runtime.train.offload import CopyEngine
from weft.solver.placement.memory.plan import ChainOperator, MemoryProblem

#: Bytes of the copy that measures the bandwidth to the host.
COPIED = 16 * 2**20
#: A stage may begin only where at most this factor more bytes cross the cut than at the best place within this share
#: of the whole time: messages need memory that a memory plan does not count.
WIDEST, NEARBY = 2.0, 0.1


@dataclass(frozen=True)
class Chain:
    """``operators`` of a chain, each one of the ``groups`` of neighbouring operators of the graph: operators that must
    be decided together, and those before them that save no activation. ``starts``: numbers of the chain's operators
    that may begin a stage; ``places``: the first operator of the graph in each."""

    operators: tuple[ChainOperator, ...]
    groups: tuple[tuple[Node, ...], ...]
    starts: frozenset[int]
    places: tuple[int, ...]

    def problem(self, stages: int, memory: int, bandwidth: float, *, micro_batches: int,
                cuts: Sequence[int] | None = None) -> MemoryProblem:
        """The problem of cutting the chain into ``stages`` of ``memory`` bytes and of deciding on each operator.
        ``cuts``: fixed cuts, as numbers of the graph's operators; ``None`` leaves them open."""
        windows = (self.starts,) * (stages - 1) if cuts is None else tuple(
            frozenset([bisect_left(self.places, place)]) for place in cuts)
        return MemoryProblem(self.operators, stages, memory, bandwidth, micro_batches=micro_batches, windows=windows)

    def cuts(self, cuts: Sequence[int]) -> tuple[int, ...]:
        """The inner cuts of a plan as numbers of the graph's operators."""
        return tuple(self.places[k] for k in cuts[1:-1])

    def modes(self, modes: Iterable[Mode]) -> dict[str, Mode]:
        """The decisions of a plan by the names of the graph's operators."""
        return {node.name: mode for group, mode in zip(self.groups, modes, strict=True) for node in group}


def chain_of(captured: Captured, purity: Purity, leaves: Sequence[Any], loss: Callable[[Any], Tensor], *,
             first: int = 1, cuts: Collection[int] = ()) -> Chain:
    """The chain of ``captured``, measured on ``leaves``, the inputs of one micro-batch, and on the ``loss`` of its
    result. Only the first stage begins before operator ``first``; each of ``cuts`` begins an operator of the chain."""
    with preserved_state(captured.model):
        kept = saved_tensor_bytes(captured, leaves, loss)
    seconds = dict(zip(captured.calls, operator_seconds(captured, leaves), strict=True))
    begins = {next(node for node in captured.calls[place:] if not is_item(node)) for place in cuts}
    groups = _groups(captured, purity, kept, begins)
    places = [purity.place[group[0]] for group in groups]
    passing = [_passes(captured, purity, place, group, kept) for place, group in zip(
        [*places[1:], len(captured.calls)], groups, strict=True)]
    between = crossings(captured, purity)
    nodes = [node for group in groups for node in group]
    weights = dict(zip(nodes, operator_weights(captured, nodes), strict=True))
    found = []
    for i, group in enumerate(groups):
        forward = sum(seconds[node] for node in group) / BOTH_WAYS
        last = i == len(groups) - 1
        found.append(ChainOperator(
            group[-1].name, max(1, round(forward * 1e9)), round((BOTH_WAYS - 1) * forward * 1e9),
            sum(kept.by_operator.get(node.name, 0) for node in group), 0 if last else between[places[i + 1]].size,
            passing[i], STATE * sum(weights[node] for node in group) + (kept.by_loss if last else 0),
            layer=_layer(group[-1])))
    sizes = {k: between[place].size for k, place in enumerate(places) if k and place >= first and between[place].values}
    return Chain(tuple(found), tuple(groups), _narrow(sizes, found), tuple(places))


def _narrow(sizes: Mapping[int, int], operators: Sequence[ChainOperator]) -> frozenset[int]:
    """The operators in ``sizes`` where at most :data:`WIDEST` times the bytes of the best place nearby cross a cut."""
    until = [0, *accumulate(operator.forward for operator in operators)]
    near = NEARBY * until[-1]
    return frozenset(k for k, size in sizes.items() if size <= WIDEST * min(
        other for j, other in sizes.items() if abs(until[j] - until[k]) <= near))


def copy_bandwidth(device: torch.device) -> float:
    """Measured bytes per second of copies to the host and back, averaged over both directions."""
    engine, here = CopyEngine(device), torch.ones(COPIED, dtype=torch.uint8, device=device)
    best = float("inf")
    for _ in range(3):
        begun = time.perf_counter()
        there, copying = engine.to_host([here])
        copying.wait()
        _, copying = engine.to_device(there)
        copying.wait()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun)
        engine.release(there)
    engine.close()
    return 2 * COPIED / best


def _groups(captured: Captured, purity: Purity, kept: SavedBytes, begins: Collection[Node]) -> list[tuple[Node, ...]]:
    """Groups of operators with one decision each. Operators that save nothing join the next group, as recomputing it
    needs them."""
    found: list[tuple[Node, ...]] = []
    waiting: list[Node] = []
    for unit in units(captured, purity):
        if waiting and unit[0] in begins:
            found.append(tuple(waiting))
            waiting = []
        waiting += unit
        if any(kept.by_operator.get(node.name) for node in unit):
            found.append(tuple(waiting))
            waiting = []
    if waiting:
        found[-1:] = [(*(found[-1] if found else ()), *waiting)]
    return found


def _passes(captured: Captured, purity: Purity, place: int, group: Sequence[Node], kept: SavedBytes) -> int:
    """Bytes of tensors that must stay if recomputation starts behind ``group``: results of earlier operators that are
    read later, and of ``group``'s own results those that are not saved anyway."""
    own, total, seen = set(group), 0, set[Node]()
    for node in captured.calls[:place]:
        base = purity.base[node]
        metadata = tensors(base)
        if base in seen or metadata is None or base in purity.free or base.op == "get_attr" or base.op == "placeholder":
            continue
        if not any(user.op == "output" or purity.place.get(user, -1) >= place for user in node.users):
            continue
        if base not in own or base.name not in kept.outputs:
            seen.add(base)
            total += metadata.numel() * metadata.element_size()
    return total


def _layer(node: Node) -> str:
    """The layer of ``node``: its module path up to the first number, such as ``layers.3``; empty outside of layers."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0] if isinstance(entry, tuple | list) else entry) for entry in stack.values()]
    steps = (paths[-1] if paths else "").split(".")
    number = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    return "" if number is None else ".".join(steps[:number + 1])
