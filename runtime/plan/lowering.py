"""Lowering of a schedule to a program: each rank's order, with the messages that carry results between ranks.

The instructions of all ranks are sorted by one global key. The key of a computing instruction is its planned end; that
of a SEND and its RECV is the end of the instruction whose result they carry; for equal keys, computing comes first.
Therefore

- both ranks of each pair see their messages in the same order, and each rank's order is a linear extension of one
  global order, so a program completes even if a SEND and its RECV wait for each other without buffers;
- a RECV comes before the instruction that runs while the result becomes ready, so its transfer overlaps with that.

If a device has lanes, its rank's list includes their operations. The global order contains each lane's order and the
waits between lanes (:mod:`weft.runtime.plan.lanes`).

A REDUCE (:func:`with_reductions`) is inserted afterwards, after the last pass that adds to its gradients, in the order
of a strict run that always continues with the earliest end.

Ends are floating-point sums, so a consumer may end no later than its producer by rounding. So the key is not the end
itself but its position in a global order of ends that respects all waits: see :func:`_waves`.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from weft.runtime.plan.program import Instruction, Program, ProgramError, RankMap, Recv, Reduce, Send, Vocabulary, Work
from weft.runtime.plan.stage_graph import StageGraph
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, Schedule


class LoweringError(ProgramError):
    """The schedule cannot be lowered: an operation is missing, or its order contradicts the dependencies."""


def lower(schedule: Schedule) -> Program:
    """The program that runs every device's operations in the order of ``schedule``: one list for each device that is
    not a lane, with the operations of its lanes.

    Raises :class:`LoweringError` for a schedule whose operations are incomplete or wait for each other in a cycle. Its
    times are not checked otherwise (:mod:`weft.solver.judge` does that).
    """
    problem, vocabulary = schedule.problem, Vocabulary(schedule.problem, schedule.rounds)
    waves, carried = _waves(schedule), routes(problem)
    keyed: list[list[tuple[tuple[int, ...], Instruction]]] = [[] for _ in vocabulary.ranks.devices]
    for (block, micro_batch), (wave, position) in waves.items():
        work = vocabulary.work(block, micro_batch)
        for rank in vocabulary.ranks.of_block(block):
            keyed[rank].append(((wave, 0, position), work))
        for source, target, distance in carried[block]:
            if micro_batch + distance >= schedule.micro_batches:
                continue
            key = (wave, 1, position, source, target)
            keyed[source].append((key, Send(work, target)))
            keyed[target].append((key, Recv(work, source)))
    return Program(tuple(tuple(instruction for _, instruction in sorted(own, key=lambda item: item[0]))
                         for own in keyed))


def with_reductions(program: Program, graph: StageGraph, shared: Iterable[Sequence[int]],
                    ends: Mapping[Work, float]) -> Program:
    """``program`` with a REDUCE for each of ``graph``'s groups of parameters; existing ones are replaced.

    ``shared``: the sets of stages that share parameters (:meth:`~weft.runtime.plan.stage_graph.StageGraph
    .parameter_groups`). ``ends``: the planned end of each computing instruction. ``program`` must have been checked. A
    REDUCE comes after the last pass, on any rank, that adds to its gradients, and after the messages with that pass's
    result.
    """
    plain = Program(tuple(tuple(i for i in own if not isinstance(i, Reduce)) for own in program.ranks))
    groups, vocabulary = graph.parameter_groups(shared), Vocabulary(graph.problem)
    if not groups:
        return plain
    positions = _positions(plain, vocabulary, ends)
    latest: dict[int | None, int] = {}  # the last position of a block, or of a message with its result
    for own, own_positions in zip(plain.ranks, positions, strict=True):
        for instruction, position in zip(own, own_positions, strict=True):
            block = vocabulary.block(_named(instruction))
            latest[block] = max(latest.get(block, 0), position)
    found = ((max(latest[block] for block in graph.contributions(stages)), stages) for stages in groups)
    ranks = [list(own) for own in plain.ranks]
    for position, stages in sorted(found, reverse=True):  # from the last: an insertion does not move earlier positions
        for rank in groups[stages]:
            ranks[rank].insert(bisect_right(positions[rank], position), Reduce(stages))
    return Program(tuple(map(tuple, ranks)))


def _positions(program: Program, vocabulary: Vocabulary, ends: Mapping[Work, float]) -> list[list[int]]:
    """For each rank and step, the position in a strict run that always continues with the runnable instruction of the
    earliest end. Both ends of a message, and all ranks of a block, share a position. ``program`` must be free of
    deadlock."""
    ranks = program.ranks
    positions: list[list[int]] = [[] for _ in ranks]
    ready: list[tuple[float, int, int, int]] = []

    def at(rank: int) -> Instruction | None:
        return ranks[rank][len(positions[rank])] if len(positions[rank]) < len(ranks[rank]) else None

    def together(rank: int, instruction: Instruction) -> Sequence[int]:
        if isinstance(instruction, (Send, Recv)):
            return rank, instruction.peer
        return vocabulary.ranks.of_block(vocabulary.known(_named(instruction))[0])

    def offer(rank: int) -> None:
        instruction = at(rank)
        if instruction is None:
            return
        sends = {Send: Recv, Recv: Send}.get(type(instruction))
        work = _named(instruction)
        if all(at(other) == (instruction if sends is None or other == rank else sends(work, rank))
               for other in together(rank, instruction)):
            heapq.heappush(ready, (ends[work], int(sends is not None), rank, len(positions[rank])))

    for rank in range(len(ranks)):
        offer(rank)
    position = 0
    while ready:
        _, _, rank, step = heapq.heappop(ready)
        if step < len(positions[rank]):
            continue  # already run: several of its ranks offer it
        instruction = ranks[rank][step]
        members = together(rank, instruction)
        for member in members:
            positions[member].append(position)
        for member in members:
            offer(member)
        position += 1
    return positions


def _named(instruction: Instruction) -> Work:
    assert not isinstance(instruction, Reduce)
    return instruction.what if isinstance(instruction, (Send, Recv)) else instruction


def routes(problem: Problem) -> tuple[tuple[tuple[int, int, int], ...], ...]:
    """For each block, the ``(source, target, distance)`` of the messages that carry its result to other ranks.

    A result is available on all ranks of its block. Another rank that needs it receives it once, over the link that a
    dependency names, otherwise from the block's first rank. The result of micro-batch m is sent if micro-batch m +
    ``distance`` exists.
    """
    found: list[dict[int, tuple[int, int]]] = [{} for _ in problem.blocks]
    ranks = RankMap.of(problem)
    for block, consumer, dependency in problem.dependencies():
        held = ranks.of_block(block)
        link = problem.links_by_name[dependency.link] if dependency.link is not None else None
        for target in ranks.of_block(consumer):
            if target in held:
                continue
            over = link is not None and ranks.of_device[link.target] == target
            source = ranks.of_device[link.source] if link is not None and over else held[0]
            first_source, distance = found[block].get(target, (source, dependency.distance))
            found[block][target] = first_source, min(distance, dependency.distance)
    return tuple(tuple((source, target, distance) for target, (source, distance) in sorted(by_target.items()))
                 for by_target in found)


def _waves(schedule: Schedule) -> dict[tuple[int, int], tuple[int, int]]:
    """The ``(wave, position)`` of each operation. Positions number a global order by end that respects all waits; a
    wave is a set of consecutive operations that end at the same time and do not wait for each other."""
    waits, followers = _waits(schedule)
    ends = {(o.block, o.micro_batch): o.end for o in schedule.operations}
    ready = [(ends[key], key) for key, count in waits.items() if count == 0]
    heapq.heapify(ready)
    before: dict[tuple[int, int], int] = dict.fromkeys(waits, -1)  # the latest wave among its predecessors
    waves: dict[tuple[int, int], tuple[int, int]] = {}
    wave, latest = 0, float("-inf")
    while ready:
        end, key = heapq.heappop(ready)
        if end > latest or before[key] == wave:
            wave, latest = wave + 1, max(latest, end)
        waves[key] = wave, len(waves)
        for follower in followers[key]:
            before[follower] = max(before[follower], wave)
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (ends[follower], follower))
    if len(waves) < len(waits):
        block, micro_batch = next(key for key, count in waits.items() if count)
        raise LoweringError(f"block {schedule.problem.blocks[block].name!r} of micro-batch {micro_batch} can never "
                            "start: the order of the schedule contradicts the dependencies")
    return waves


def _waits(schedule: Schedule) -> tuple[dict[tuple[int, int], int], dict[tuple[int, int], list[tuple[int, int]]]]:
    problem = schedule.problem
    waits = {(b, m): 0 for b in range(len(problem.blocks)) for m in range(schedule.micro_batches)}
    followers: dict[tuple[int, int], list[tuple[int, int]]] = {key: [] for key in waits}
    keys = [(o.block, o.micro_batch) for o in schedule.operations]
    if len(set(keys)) != len(keys) or set(keys) != set(waits):
        odd = next((key for key in keys if key not in waits or keys.count(key) > 1), None)
        missing = next((key for key in waits if key not in set(keys)), odd)
        assert missing is not None
        raise LoweringError(f"the schedule must hold every block of micro-batches 0 to {schedule.micro_batches - 1} "
                            f"once: see block {problem.blocks[missing[0]].name!r} of micro-batch {missing[1]}")
    pairs: set[tuple[tuple[int, int], tuple[int, int]]] = set()
    for order in schedule.device_orders:
        pairs.update((_key(one), _key(next_one)) for one, next_one in pairwise(order))
    for producer, consumer, dependency in problem.dependencies():
        pairs.update(((producer, m - dependency.distance), (consumer, m))
                     for m in range(dependency.distance, schedule.micro_batches))
    for one, next_one in pairs:
        waits[next_one] += 1
        followers[one].append(next_one)
    return waits, followers


def _key(operation: Operation) -> tuple[int, int]:
    return operation.block, operation.micro_batch
