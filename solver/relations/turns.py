"""The micro-batches of a round as those of one problem.

In a round of several micro-batches (:mod:`weft.solver.problem.rounds`) each has blocks of its own, which may differ in
duration, and the blocks of all micro-batches run in turn. With one block for all of these, which waits for what each of
them waits for, for the least of their times, every schedule of the rounds keeps what this one problem asks for, its
micro-batches counted through all rounds.

Which block runs the micro-batch before: the last that a block waits for, if that is on the same devices, with the same
memory, and if all blocks are in circles of such waits that go round once in a round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from weft.solver.problem import Dependency
from weft.solver.ticks import Arc, TickProblem


@dataclass(frozen=True)
class RoundTurns:
    """``alike``: the one problem. ``blocks``: for each block of it, those of the rounds, in turn."""

    alike: TickProblem
    blocks: tuple[tuple[int, ...], ...]

    @property
    def width(self) -> int:
        """The number of micro-batches in a round."""
        return len(self.blocks[0])

    def counted(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """``values`` of the rounds' blocks (x rounds), by block and micro-batch."""
        rounds = values.shape[1]
        found: npt.NDArray[np.int64] = values[np.array(self.blocks)].transpose(0, 2, 1)
        return found.reshape(len(self.blocks), rounds * self.width)


def turns_of(instance: TickProblem) -> RoundTurns:
    """The turns of ``instance``: each block on its own where micro-batches are no rounds of several, or of different
    numbers of different blocks."""
    found = _turns(instance)
    if not found:
        return RoundTurns(instance, tuple((i,) for i in instance.blocks))
    width = len(found[0])
    place = {i: (n, turn) for n, blocks in enumerate(found) for turn, i in enumerate(blocks)}
    lags: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
    for arc in instance.arcs:
        (source, before), (target, turn) = place[arc.source], place[arc.target]
        of = lags[source, target, arc.distance * width + turn - before]
        of[turn] = max(arc.lag, of.get(turn, 0))
    arcs = tuple(Arc(source, target, min(of.values()), distance) for (source, target, distance), of in lags.items()
                 if len(of) == width and (source, distance) != (target, 1))
    blocks = [instance.problem.blocks[turn[0]] for turn in found]
    problem = replace(instance.problem, links=(), blocks=tuple(
        replace(block, after=tuple(Dependency(blocks[arc.source].name, distance=arc.distance)
                                   for arc in arcs if arc.target == n)) for n, block in enumerate(blocks)))
    first = {turn[0]: n for n, turn in enumerate(found)}
    take, change = (tuple({first[i]: amount for i, amount in on.items() if i in first} for on in amounts)
                    for amounts in (instance.take, instance.change))
    durations = tuple(min(instance.durations[i] for i in turn) for turn in found)
    return RoundTurns(replace(instance, problem=problem, durations=durations, arcs=arcs, take=take, change=change,
                              mixed_pools=()), found)


def _turns(instance: TickProblem) -> tuple[tuple[int, ...], ...]:
    blocks, index = instance.problem.blocks, instance.problem.index
    turns: list[Sequence[int]] = []
    for first, block in enumerate(blocks):
        if not block.after or not block.after[-1].distance:
            continue
        turn, before = [first], block
        while before.after and before.after[-1].distance == (before is block):
            last = before.after[-1]
            before = blocks[index[last.block]]
            if last.lag or last.link is not None or before is block or (
                    before.devices, before.memory, before.workspace) != (block.devices, block.memory, block.workspace):
                break
            turn.append(index[last.block])
        if before is not block:
            return ()
        turns.append((turn[0], *reversed(turn[1:])))
    widths = {len(turn) for turn in turns}
    alike = len(widths) == 1 and min(widths) > 1 and sum(map(len, turns)) == len(blocks)
    return tuple(map(tuple, turns)) if alike else ()
