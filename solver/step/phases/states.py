"""The least makespan by what can have run: where memory is tight, to proof; else bounds from the devices that limit.

All devices at once (:mod:`weft.solver.bounds.states`) give a schedule and a proof where the states are few. Where they
are too many, single devices are looked at, then the one that bounds the most together with another one, and so on as
long as that raises the bound. Both are done with barriers as they are, and with less time for them
(:func:`weft.solver.relations.graph.contracted`). What is spent is counted in states: a run repeats exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.relations.graph import Contracted
from weft.solver.relations.turns import RoundTurns, turns_of
from weft.solver.step.state import State
from weft.solver.timing import DeadlockError

if TYPE_CHECKING:
    from weft.solver.bounds.states import Analysis, LeastMakespan

#: Up to so many operations and blocks: what a layer costs beside its states grows with the blocks, and chains through
#: blocks that are left out with their cube.
_MOST_OPERATIONS, _MOST_BLOCKS = 800, 64
#: Deterministic seconds for a layer, and for a state, of a system of one block: a third of what they take of one core;
#: and how many times as long they take where there is no compiled kernel.
_EACH_LAYER, _EACH_STATE, _IN_PYTHON = 1e-6, 5e-8, 60.0
#: One layer may hold so many times as many states as all on average: searches that ended in time had at most twice as
#: many, and the others are found out early.
_WIDEST = 2.5


@dataclass(frozen=True)
class States:
    """All devices: ``at_most`` seconds, and no more than ``share`` of what is left; not where that is ``no_less`` or
    below. A ``beam`` goes on with the best states where they are too many; it is for tight memory."""

    name: ClassVar[str] = "whole schedule"
    vital: ClassVar[bool] = False

    at_most: float
    share: float
    no_less: float = 0.0
    beam: bool = False

    def due(self, state: State) -> bool:
        """Where there are not too many operations, and a better schedule or bound is possible."""
        tight = not self.beam or any(map(state.instance.limited, state.instance.distinct_devices))
        return (tight and _suits(state) and not state.done
                and state.budget.share(self.share, self.at_most) > self.no_less)

    def steps(self, state: State) -> Iterator[None]:
        """A search with all of the barriers, and one with nothing of them; a beam has all."""
        for each in sorted(state.proven.contractions, key=lambda each: -each.kept):
            if not state.done and not (each.cut and (each.kept or self.beam)):
                known = found = None
                with state.budget.limited():
                    known = _analysis(state, each)
                    found = _searched(state, known, range(len(state.problem.devices)),
                                      state.budget.share(self.share, self.at_most), self.beam)
                if known is not None and found is not None:
                    _take_over(state, found[0], known.turns)
                yield


@dataclass(frozen=True)
class Devices:
    """Some devices, more and more of them: ``each`` seconds a search, and no more than ``share`` of what is left for
    all."""

    name: ClassVar[str] = "bound"
    vital: ClassVar[bool] = False

    each: float
    share: float

    def due(self, state: State) -> bool:
        """As for all devices."""
        return _suits(state) and len(state.instance.distinct_devices) > 1 and not state.done

    def steps(self, state: State) -> Iterator[None]:
        """One step for every set of devices: with nothing of the barriers, and with as much as bounds best."""
        first, *others = state.proven.contractions
        for each in (first, *[other for other in others if bool(other.kept) != bool(first.kept)][:1]):
            known = None
            with state.budget.limited():
                known = _analysis(state, each)
            if known is not None:
                yield from self._of(known, state)

    def _of(self, known: Analysis, state: State) -> Iterator[None]:
        time = state.budget.share(self.share)
        left = [d for d in state.instance.distinct_devices if state.instance.blocks_on[d]]
        chosen, most = list[int](), 0
        while len(left) > 1:  # all of them are no part of the whole
            bounds: dict[int, int] = {}
            for device in left:
                found = None
                with state.budget.limited():
                    found = _searched(state, known, (*chosen, device), min(self.each, time))
                if found is None:
                    return
                time -= found[1]
                bounds[device] = found[0].bound
                state.raise_bound(bounds[device])
                yield
            if max(bounds.values(), default=0) <= most:
                return
            best = max(bounds, key=lambda device: bounds[device])
            most = bounds[best]
            chosen.append(best)
            left.remove(best)


def _suits(state: State) -> bool:
    few = state.operations <= _MOST_OPERATIONS and len(turns_of(state.instance).blocks) <= _MOST_BLOCKS
    # What is proven is of makespans; and states say what has run, not when, which is too little for mixed pools.
    return few and state.objective == "makespan" and not state.instance.mixed_pools


def _analysis(state: State, part: Contracted) -> Analysis:
    from weft.solver.bounds.states import Analysis

    n = len(state.instance.durations)
    return Analysis.of(part.instance, state.micro_batches, state.implied[:n, :n] if part.cut else state.implied,
                       part.cut * state.micro_batches)


def _searched(state: State, known: Analysis, devices: Collection[int], time: float, beam: bool = False
              ) -> tuple[LeastMakespan, float] | None:
    """What a search of the system of ``devices`` finds in ``time`` seconds, and the seconds it took, as they are
    counted; ``None`` where these are not enough to begin."""
    from weft.solver.bounds.states import fits, search, system_of

    system = system_of(known, devices)
    scale = max(1, len(system.blocks)) * (1 if fits(system) else _IN_PYTHON)
    most = int((time / scale - _EACH_LAYER * system.operations) / _EACH_STATE)
    if most <= system.operations:
        return None
    upper = FixedOrder(state.instance, state.micro_batches, state.incumbent.orders).makespan
    found = search(system, upper, most=most, widest=int(_WIDEST * most / system.operations), beam=beam)
    return found, scale * (_EACH_LAYER * found.layers + _EACH_STATE * found.states)


def _take_over(state: State, found: LeastMakespan, turns: RoundTurns) -> None:
    """The bound, and the schedule if there is one; a transfer that occupies a link may make it longer than it was."""
    state.proven.raise_to(found.bound)
    if found.sequence is None:
        state.tell()
        return
    ran = [0] * len(turns.blocks)
    rows: list[list[tuple[int, int]]] = [[] for _ in state.problem.devices]
    for number in found.sequence:
        round_, turn = divmod(ran[number], turns.width)
        block = turns.blocks[number][turn]
        for device in state.problem.blocks[block].devices:
            rows[device].append((block, round_))
        ran[number] += 1
    try:
        kept = state.incumbent.offer(rows, "weft")
    except DeadlockError:  # of a wait that reaches too far back for the search to follow
        kept = False
    if not kept:
        state.tell()
