"""A captured model as a row of operators with times and bytes, and the candidate cuts of this row into stages.

Many cuts are almost as balanced as the best one. Which of them has the shortest step depends on the schedule: the first
and the last stage have slack while others wait for them, fewer bytes between stages shorten waits, and under a memory
limit the first stages should be smaller, as they keep the activations of most micro-batches. Therefore several cuts
are proposed, ordered by the makespan of a published schedule on the row's times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.places import Room, cut_places
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: Variants of a balanced cut: the factor by which the largest load may exceed the least possible one to save bytes
#: between stages, and the load of the first and of the last stage relative to the others.
BALANCES = ((1.05, 1.0, 1.0), (1.0, 1.0, 1.0), (1.2, 1.0, 1.0), (1.05, 0.9, 1.0), (1.05, 1.0, 0.9), (1.05, 0.8, 0.9),
            (1.05, 1.1, 1.0), (1.05, 1.0, 1.1))
#: Relative difference below which two estimated steps are tied: measurement noise may reverse their order in the next
#: call.
TIE = 0.01
#: The forward's share of a forward and backward, and the input gradient's share of a backward.
FORWARD, INPUT = 1 / 3, 1 / 2
#: Bytes of state per byte of weights: the weights, their gradients, and two values of the optimizer.
STATE = 4


@dataclass(frozen=True)
class Row:
    """The operators of a model in execution order.

    ``seconds``: forward and backward of each operator for one micro-batch. ``sizes``: bytes of activations that cross a
    cut before each operator (``None``: no cut is possible there); no cut is before operator ``first``. ``weights`` and
    ``kept``: bytes of parameters and of saved activations of each operator.
    """

    seconds: tuple[float, ...]
    sizes: tuple[float | None, ...]
    first: int
    weights: tuple[float, ...]
    kept: tuple[float, ...]

    def scaled(self, places: Sequence[int], measured: Sequence[float]) -> Row:
        """The row with each stage of the cut at ``places`` scaled to its ``measured`` seconds."""
        ends = [0, *places, len(self.seconds)]
        seconds = list(self.seconds)
        for (begin, end), whole in zip(pairwise(ends), measured, strict=True):
            factor = whole / max(sum(seconds[begin:end]), 1e-12)
            seconds[begin:end] = [time * factor for time in seconds[begin:end]]
        return replace(self, seconds=tuple(seconds))


def rank_of(stage: int, count: int, ranks: int) -> int:
    """The rank of a stage: one stage per rank in order, or two per rank in a V."""
    return stage if stage < ranks else count - 1 - stage


def proposals(row: Row, count: int, machine: Machine, micro_batches: int,
              judge: Callable[[tuple[int, ...]], float]) -> list[tuple[int, ...]]:
    """Distinct cuts into ``count`` stages, best first by the estimate ``judge``; cuts tied with the best one (within
    :data:`TIE`) are ordered by the bytes that cross them. Empty if the row has too few places. Under a memory limit,
    cuts that fit by the row's bytes come first."""
    found: dict[tuple[int, ...], tuple[int, float]] = {}
    for turn, rooms in enumerate(_rooms(row, count, machine, micro_batches)):
        for slack, first, last in BALANCES:
            shares = [first if s == 0 else last if s == count - 1 else 1.0 for s in range(count)]
            places = cut_places(row.seconds, row.sizes, count, row.first, slack=slack, shares=shares, rooms=rooms,
                                seconds_a_byte=machine.seconds_a_byte)
            if places is not None and (cut := tuple(places)) not in found:
                found[cut] = turn, judge(cut)
    turn, least = min(found.values(), default=(0, 0.0))
    alike = {cut for cut, judged in found.items() if judged <= (turn, (1 + TIE) * least)}
    return sorted(found, key=lambda cut: (cut not in alike, (cut in alike) * sum(
        row.sizes[place] or 0.0 for place in cut), found[cut]))


def _rooms(row: Row, count: int, machine: Machine, micro_batches: int) -> list[list[Room] | None]:
    """The memory of each stage under three assumptions, strictest first: 1F1B's micro-batches in flight, one in
    flight, no limit (``None``)."""
    if all(amount is None for amount in machine.memory):
        return [None]
    found: list[list[Room] | None] = []
    for most in (micro_batches, 1):
        rooms = []
        for s in range(count):
            amount = machine.memory[rank_of(s, count, machine.ranks)]
            flying = min(most, count - s)
            rooms.append(Room([STATE * weight + flying * kept for weight, kept in zip(row.weights, row.kept,
                                                                                      strict=True)],
                              float("inf") if amount is None else amount * machine.ranks / count))
        found.append(rooms)
    return [*found, None]


def estimated_step(row: Row, places: Sequence[int], machine: Machine, micro_batches: int, name: str | None) -> float:
    """Seconds of a step of this cut under a published schedule, on the row's times. The schedule is ``name`` if it is
    given, else the best of 1F1B (and ZB-H1 with split backwards), or ZB-V for two stages per rank. Where none applies:
    the largest load times ``micro_batches``."""
    best = float("inf")
    split = "split" in machine.backwards
    count = len(places) + 1
    tried = [name] if name is not None else ["zb-v"] if count > machine.ranks else ["1f1b", *["zb-h1"] * split]
    for backward in ("full", "split"):
        problem = _estimate_problem(row, places, machine, backward)
        for each in tried:
            try:
                best = min(best, baseline(each, problem, micro_batches).makespan)
            except NotApplicable:
                continue
    ends = [0, *places, len(row.seconds)]
    return best if best < float("inf") else max(sum(row.seconds[a:b]) for a, b in pairwise(ends)) * micro_batches


def _estimate_problem(row: Row, places: Sequence[int], machine: Machine, backward: str) -> Problem:
    ends, count, ranks = [0, *places, len(row.seconds)], len(places) + 1, machine.ranks
    where = [rank_of(s, count, ranks) for s in range(count)]
    whole = [max(sum(row.seconds[a:b]), 1e-9) for a, b in pairwise(ends)]

    def after(letter: str, producer: int, consumer: int, border: int) -> Dependency:
        size = int(row.sizes[ends[border]] or 0)
        return Dependency(f"{letter}{producer}", machine.seconds(size, where[producer], where[consumer]))

    blocks = [Block(f"F{s}", BlockKind.FORWARD, (where[s],), FORWARD * whole[s],
                    after=(after("F", s - 1, s, s),) if s else ()) for s in range(count)]
    letter, share = ("B", 1.0) if backward == "full" else ("I", INPUT)
    kind = BlockKind.BACKWARD if backward == "full" else BlockKind.INPUT_GRAD
    for s in reversed(range(count)):
        blocks.append(Block(f"{letter}{s}", kind, (where[s],), (1 - FORWARD) * share * whole[s], after=(
            after(letter, s + 1, s, s + 1),) if s < count - 1 else (Dependency(f"F{s}"),)))
        if backward == "split":
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (where[s],), (1 - FORWARD) * (1 - share) * whole[s],
                                after=(Dependency(f"I{s}"),)))
    return Problem("a row of operators", tuple(Device(f"rank{r}") for r in range(ranks)), tuple(blocks))
