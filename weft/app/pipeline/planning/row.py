"""A captured model as a row of operators, as whoever cuts it sees it: times, bytes, and the cuts worth a look.

The least largest load is one cut of many that come close. Which of them makes the shortest step depends on the
schedule: the first and the last stage have slack where others wait for them, fewer bytes mean shorter waits, and under
a limit of memory the first stages, which hold most micro-batches, should be smaller. So several are proposed, and a
published schedule of each, on the row's own times, says in which order they are looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.places import Room, cut_places
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

#: By how much the largest load may be above the least for fewer bytes; and what share of the others' load the first
#: stage may have, and the last.
WAYS = ((1.05, 1.0, 1.0), (1.0, 1.0, 1.0), (1.2, 1.0, 1.0), (1.05, 0.9, 1.0), (1.05, 1.0, 0.9), (1.05, 0.8, 0.9),
        (1.05, 1.1, 1.0), (1.05, 1.0, 1.1))
#: By what share rough steps differ that the next call may find in another order: a further cut must promise more.
ALIKE = 0.01
#: Of a pass forward and one back, what the forward takes, and of the one back what is the input's gradient.
FORWARD, INPUT = 1 / 3, 1 / 2
#: Bytes in all for each byte of weights: gradients and an optimizer's two values.
STATE = 4


@dataclass(frozen=True)
class Row:
    """The operators: ``seconds`` of each, forward and back; ``sizes``: the bytes that pass before each (``None``: no
    cut may be there); no cut is before ``first``. ``weights`` and ``kept``: bytes of parameters and of what a forward
    keeps, of each operator."""

    seconds: tuple[float, ...]
    sizes: tuple[float | None, ...]
    first: int
    weights: tuple[float, ...]
    kept: tuple[float, ...]

    def scaled(self, places: Sequence[int], measured: Sequence[float]) -> Row:
        """The row by what the stages of a cut took in all."""
        ends = [0, *places, len(self.seconds)]
        seconds = list(self.seconds)
        for (begin, end), whole in zip(pairwise(ends), measured, strict=True):
            factor = whole / max(sum(seconds[begin:end]), 1e-12)
            seconds[begin:end] = [time * factor for time in seconds[begin:end]]
        return replace(self, seconds=tuple(seconds))


def rank_of(stage: int, count: int, ranks: int) -> int:
    """Where a stage is: on a rank of its own, or, with two a rank, in a V."""
    return stage if stage < ranks else count - 1 - stage


def proposals(row: Row, count: int, machine: Machine, micro_batches: int,
              judge: Callable[[tuple[int, ...]], float]) -> list[tuple[int, ...]]:
    """Cuts into ``count`` stages, each once, from the one on which ``judge`` is lowest on, and of those as low up to
    the share :data:`ALIKE` from the one with the fewest bytes on; none if there are too few places. With a limit of
    memory, those that fit by the row's own figures come first."""
    found: dict[tuple[int, ...], tuple[int, float]] = {}
    for turn, rooms in enumerate(_rooms(row, count, machine, micro_batches)):
        for slack, first, last in WAYS:
            shares = [first if s == 0 else last if s == count - 1 else 1.0 for s in range(count)]
            places = cut_places(row.seconds, row.sizes, count, row.first, slack=slack, shares=shares, rooms=rooms,
                                seconds_a_byte=machine.seconds_a_byte)
            if places is not None and (cut := tuple(places)) not in found:
                found[cut] = turn, judge(cut)
    turn, least = min(found.values(), default=(0, 0.0))
    alike = {cut for cut, judged in found.items() if judged <= (turn, (1 + ALIKE) * least)}
    return sorted(found, key=lambda cut: (cut not in alike, (cut in alike) * sum(
        row.sizes[place] or 0.0 for place in cut), found[cut]))


def _rooms(row: Row, count: int, machine: Machine, micro_batches: int) -> list[list[Room] | None]:
    """What each stage may hold: with as many micro-batches as 1F1B has in flight, with one, and anything."""
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


def rough_step(row: Row, places: Sequence[int], machine: Machine, micro_batches: int, name: str | None) -> float:
    """The step of a published schedule of this cut on the row's own times: of ``name`` where it fits, else the shorter
    of one with whole backwards and one with split ones."""
    best = float("inf")
    split = "split" in machine.backwards
    count = len(places) + 1
    tried = [name] if name is not None else ["zb-v"] if count > machine.ranks else ["1f1b", *["zb-h1"] * split]
    for way in ("full", "split"):
        problem = _rough_problem(row, places, machine, way)
        for each in tried:
            try:
                best = min(best, baseline(each, problem, micro_batches).makespan)
            except NotApplicable:
                continue
    ends = [0, *places, len(row.seconds)]
    return best if best < float("inf") else max(sum(row.seconds[a:b]) for a, b in pairwise(ends)) * micro_batches


def _rough_problem(row: Row, places: Sequence[int], machine: Machine, way: str) -> Problem:
    ends, count, ranks = [0, *places, len(row.seconds)], len(places) + 1, machine.ranks
    where = [rank_of(s, count, ranks) for s in range(count)]
    whole = [max(sum(row.seconds[a:b]), 1e-9) for a, b in pairwise(ends)]

    def after(letter: str, giver: int, taker: int, border: int) -> Dependency:
        size = int(row.sizes[ends[border]] or 0)
        return Dependency(f"{letter}{giver}", machine.seconds(size, where[giver], where[taker]))

    blocks = [Block(f"F{s}", BlockKind.FORWARD, (where[s],), FORWARD * whole[s],
                    after=(after("F", s - 1, s, s),) if s else ()) for s in range(count)]
    letter, share = ("B", 1.0) if way == "full" else ("I", INPUT)
    kind = BlockKind.BACKWARD if way == "full" else BlockKind.INPUT_GRAD
    for s in reversed(range(count)):
        blocks.append(Block(f"{letter}{s}", kind, (where[s],), (1 - FORWARD) * share * whole[s], after=(
            after(letter, s + 1, s, s + 1),) if s < count - 1 else (Dependency(f"F{s}"),)))
        if way == "split":
            blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (where[s],), (1 - FORWARD) * (1 - share) * whole[s],
                                after=(Dependency(f"I{s}"),)))
    return Problem("a row of operators", tuple(Device(f"rank{r}") for r in range(ranks)), tuple(blocks))
