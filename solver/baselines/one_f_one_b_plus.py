"""1F1B+: 1F1B for a chain with blocks spread over several devices before, between or after its stages.

Lin et al., "Tessel: Boosting Distributed Execution of Large DNN Models via Flexible Schedule Search", HPCA 2024,
section 6 (the baseline 1F1B+ for the M and NN shapes, with large embeddings on all devices). The chain runs as 1F1B; a
spread forward runs just before the forward of its micro-batch that follows it in the chain, a spread backward just
after the backward that precedes it, on the other devices at the same time of the chain's own 1F1B. The activations are
those of 1F1B: device r of p stores p - r micro-batches. There is no published formula for its bubble: each spread block
stops all its devices, and the chain's micro-batches between them cannot move closer.

:func:`around` puts the spread blocks into any other order of the chain in the same way; :func:`around_blocks`, into
that of the building-block search, is not a published schedule but a start for ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.solver.baselines import one_f_one_b
from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.baselines.rivals import building_blocks as block_search
from weft.solver.problem import BlockKind, Dependency, Problem
from weft.solver.timing import time_orders


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline, one stage a device, with blocks on several devices along its chain.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return around(problem, micro_batches, one_f_one_b.orders)


def around_blocks(problem: Problem, micro_batches: int, *, held: int) -> list[Row]:
    """Per-device orders of the building-block search (:mod:`weft.solver.baselines.rivals.building_blocks`) for the
    chain, with room for ``held`` micro-batches of the blocks on several devices; these blocks put in between.

    A start for a search if the chain has several stages a device; it may not fit. Raises
    :class:`~weft.solver.baselines.lib.base.NotApplicable` like :func:`around`, and if that room leaves none.
    """
    spread = [block for block in problem.blocks if len(block.devices) > 1]
    kept = [held * sum(max(block.memory_on(d), 0) for block in spread) for d in range(len(problem.devices))]
    if any(device.memory is not None and device.memory <= amount
           for device, amount in zip(problem.devices, kept, strict=True)):
        raise NotApplicable("the blocks on several devices leave no room")

    def inner(chain: Problem, count: int) -> list[Row]:
        devices = tuple(device if device.memory is None else replace(device, memory=device.memory - amount)
                        for device, amount in zip(chain.devices, kept, strict=True))
        return block_search.orders(replace(chain, devices=devices), count)

    return around(problem, micro_batches, inner)


def around(problem: Problem, micro_batches: int, inner: Callable[[Problem, int], list[Row]]) -> list[Row]:
    """Per-device orders of a chain in the order of ``inner``, with the blocks on several devices put in between.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if there is no such block or no other block, or if
    ``inner`` does.
    """
    spread = [i for i, block in enumerate(problem.blocks) if len(block.devices) > 1]
    if not spread:
        raise NotApplicable("it needs blocks on several devices at once; without any it is 1F1B")
    kept = [i for i in range(len(problem.blocks)) if i not in spread]
    if not kept:
        raise NotApplicable("it needs a pipeline beside the blocks on several devices")
    if any(wait.distance and producer != consumer and not {producer, consumer}.isdisjoint(spread)
           for producer, consumer, wait in problem.dependencies()):
        raise NotApplicable("its blocks on several devices must not wait for, or hold up, other micro-batches")
    chain = _without(problem, spread, kept)
    start: dict[tuple[int, int], float] = {}
    end: dict[tuple[int, int], float] = {}
    rows = inner(chain, micro_batches)
    for operation in time_orders(chain, micro_batches, rows):
        start[kept[operation.block], operation.micro_batch] = operation.start
        end[kept[operation.block], operation.micro_batch] = operation.end

    # One order of all operations that agrees with every dependency: by time in the chain alone, spread blocks first.
    place = {block: i for i, block in enumerate(problem.topological_order)}
    anchor = {block: _anchor(problem, block, set(kept)) for block in sorted(spread, key=place.__getitem__)}
    ranked: list[tuple[float, bool, int, int]] = []
    for m in range(micro_batches):
        ranked += [(start[block, m], True, place[block], m) for block in kept]
        times: dict[int, float] = {}
        for block, (follower, precursor) in anchor.items():
            time = start[follower, m] if follower is not None else end[precursor, m] if precursor is not None else 0.0
            # a head's backward right after its forward: both are between the same two blocks of the chain
            times[block] = max([time, *(times[other] for other in _awaited(problem, block) if other in times)])
            ranked.append((times[block], False, place[block], m))
    result: list[Row] = [[] for _ in problem.devices]
    for _, _, rank, m in sorted(ranked):
        block = problem.topological_order[rank]
        for device in problem.blocks[block].devices:
            result[device].append((block, m))
    return result


def _anchor(problem: Problem, spread: int, kept: set[int]) -> tuple[int | None, int | None]:
    """The chain's block before which ``spread`` runs (a forward), or after which (a backward)."""
    order = problem.topological_order
    here = order.index(spread)
    follower = next((i for i in order[here + 1:] if i in kept), None)
    precursor = next((i for i in reversed(order[:here]) if i in kept & _awaited(problem, spread)), None)
    if problem.blocks[spread].kind != BlockKind.FORWARD and precursor is not None:
        return None, precursor
    return follower, precursor


def _awaited(problem: Problem, block: int) -> set[int]:
    """All blocks of the same micro-batch that ``block`` waits for, directly or not."""
    found: set[int] = set()
    left = [block]
    while left:
        for item in problem.blocks[left.pop()].after:
            producer = problem.index[item.block]
            if item.distance == 0 and producer not in found:
                found.add(producer)
                left.append(producer)
    return found


def _without(problem: Problem, spread: list[int], kept: list[int]) -> Problem:
    """``problem`` without the blocks ``spread``: dependents of one of them inherit its waits."""
    waits: dict[str, tuple[Dependency, ...]] = {}
    dropped = {problem.blocks[i].name for i in spread}
    for i in problem.topological_order:
        block = problem.blocks[i]
        after: dict[tuple[str, int], Dependency] = {}
        for item in block.after:
            if item.block not in dropped:
                after[item.block, item.distance] = replace(item, link=None)
            elif item.distance == 0:
                after.update(((other.block, other.distance), other) for other in waits[item.block])
        waits[block.name] = tuple(after.values())
    blocks = tuple(replace(problem.blocks[i], after=waits[problem.blocks[i].name]) for i in kept)
    return replace(problem, blocks=blocks, links=())
