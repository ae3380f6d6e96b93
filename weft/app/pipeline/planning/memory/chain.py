"""A captured model as the chain whose memory is planned: what each operator takes, keeps and hands on, as measured."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from weft.app.pipeline.planning.times import BOTH_WAYS, operator_seconds
from weft.runtime.captured.captured import Captured, is_item, tensors
from weft.runtime.captured.cut import crossings
from weft.runtime.captured.memory.decisions import Mode, units
from weft.runtime.captured.memory.saved_bytes import SavedBytes, saved_tensor_bytes
from weft.runtime.captured.metadata_reads import preserved_state
from weft.runtime.captured.purity import Purity
from weft.runtime.train.offload import CopyEngine
from weft.solver.placement.memory.plan import ChainOperator, MemoryProblem

#: Bytes that are copied to see how fast copies are.
COPIED = 16 * 2**20
#: Parameters, gradients, and two values of the optimizer for each weight.
STATE = 4
#: How many times as many bytes may pass between two stages as at a place nearby: messages need memory too, of which a
#: plan knows nothing. Nearby is within this share of the whole time.
WIDEST, NEARBY = 2.0, 0.1


@dataclass(frozen=True)
class Chain:
    """``operators`` of a chain, each some neighbouring operators of the graph, ``groups``: those that are decided
    together, and with them such as keep nothing. ``starts``: operators of the chain that may begin a stage."""

    operators: tuple[ChainOperator, ...]
    groups: tuple[tuple[Node, ...], ...]
    starts: frozenset[int]
    places: tuple[int, ...]

    def problem(self, stages: int, memory: int, bandwidth: float, *, micro_batches: int,
                cuts: Sequence[int] | None = None) -> MemoryProblem:
        """Where to cut the chain into ``stages`` of ``memory`` bytes, and what to do with each operator; ``cuts``, in
        operators of the graph, are given or open."""
        windows = (self.starts,) * (stages - 1) if cuts is None else tuple(
            frozenset([bisect_left(self.places, place)]) for place in cuts)
        return MemoryProblem(self.operators, stages, memory, bandwidth, micro_batches=micro_batches, windows=windows)

    def cuts(self, cuts: Sequence[int]) -> tuple[int, ...]:
        """The places in the graph of the cuts of a plan, which have both ends of the chain."""
        return tuple(self.places[k] for k in cuts[1:-1])

    def modes(self, modes: Iterable[Mode]) -> dict[str, Mode]:
        """What a plan decides, by the names of the graph's operators."""
        return {node.name: mode for group, mode in zip(self.groups, modes, strict=True) for node in group}


def chain_of(captured: Captured, purity: Purity, leaves: Sequence[Any], loss: Callable[[Any], Tensor], *,
             first: int = 1, cuts: Collection[int] = ()) -> Chain:
    """The chain of ``captured``, measured on ``leaves``, the inputs of one micro-batch, and on the ``loss`` of its
    result. No stage but the first begins before operator ``first``; at ``cuts`` an operator of the chain begins."""
    with preserved_state(captured.model):
        kept = saved_tensor_bytes(captured, leaves, loss)
    seconds = dict(zip(captured.calls, operator_seconds(captured, leaves), strict=True))
    begins = {next(node for node in captured.calls[place:] if not is_item(node)) for place in cuts}
    groups = _groups(captured, purity, kept, begins)
    places = [purity.place[group[0]] for group in groups]
    passing = [_passes(captured, purity, place, group, kept) for place, group in zip(
        [*places[1:], len(captured.calls)], groups, strict=True)]
    between = crossings(captured, purity)
    found, held = [], set[int]()
    for i, group in enumerate(groups):
        forward = sum(seconds[node] for node in group) / BOTH_WAYS
        weights = _weights(captured, group, held)
        last = i == len(groups) - 1
        found.append(ChainOperator(
            group[-1].name, max(1, round(forward * 1e9)), round((BOTH_WAYS - 1) * forward * 1e9),
            sum(kept.by_operator.get(node.name, 0) for node in group), 0 if last else between[places[i + 1]].size,
            passing[i], STATE * weights + (kept.by_loss if last else 0), layer=_layer(group[-1])))
    sizes = {k: between[place].size for k, place in enumerate(places) if k and place >= first and between[place].values}
    return Chain(tuple(found), tuple(groups), _narrow(sizes, found), tuple(places))


def _narrow(sizes: Mapping[int, int], operators: Sequence[ChainOperator]) -> frozenset[int]:
    """Of the operators in ``sizes`` those before which not many more bytes pass than before one nearby."""
    until = [0, *accumulate(operator.forward for operator in operators)]
    near = NEARBY * until[-1]
    return frozenset(k for k, size in sizes.items() if size <= WIDEST * min(
        other for j, other in sizes.items() if abs(until[j] - until[k]) <= near))


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that move to the host and back, one way: measured."""
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
    """Operators that are decided together; those that keep nothing go with the next ones, which cannot be made again
    without them."""
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
    """Bytes that stay where a recomputed run begins behind ``group``: what earlier ones made that is read later, and
    of its own what would not be kept anyway."""
    own, total, seen = set(group), 0, set[Node]()
    for node in captured.calls[:place]:
        base = purity.base[node]
        looks = tensors(base)
        if base in seen or looks is None or base in purity.free or base.op == "get_attr" or base.op == "placeholder":
            continue
        if not any(user.op == "output" or purity.place.get(user, -1) >= place for user in node.users):
            continue
        if base not in own or base.name not in kept.outputs:
            seen.add(base)
            total += looks.numel() * looks.element_size()
    return total


def _weights(captured: Captured, group: Sequence[Node], held: set[int]) -> int:
    """Bytes of the parameters that ``group`` is the first to read."""
    total = 0
    for node in group:
        for arg in node.all_input_nodes:
            value = captured.attribute(arg) if arg.op == "get_attr" else None
            if isinstance(value, nn.Parameter) and id(value) not in held:
                held.add(id(value))
                total += value.numel() * value.element_size()
    return total


def _layer(node: Node) -> str:
    """The module that ``node`` was called in, up to the first number: ``layers.3``; empty outside of rows of layers."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [str(entry[0] if isinstance(entry, tuple | list) else entry) for entry in stack.values()]
    steps = (paths[-1] if paths else "").split(".")
    number = next((i for i, step in enumerate(steps) if step.isdecimal()), None)
    return "" if number is None else ".".join(steps[:number + 1])
