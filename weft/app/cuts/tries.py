"""A first look at the cuts: known schedules on some of them, carried to all, and the best of these polished.

Cuts are tried in the order of their bounds, each space in its turn. A known schedule of a cut is carried to the cut
that it serves best. The best schedule at hand is polished (short stretches of it ordered anew), and carried to the cuts
that it serves best then, which may be the next to be polished: so cut and order change in turns. A polish takes about
as long as a few tries and gains more: the two take turns, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.app.cuts.search import CutSearch, Proposal
from weft.models.cuts.space import CutSpace
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.cpsat.budget import Slice
from weft.solver.schedule import Schedule
from weft.solver.step.phases.polish import Polish
from weft.solver.step.search import Search

__all__ = ["tried"]

#: What all tries may take of what is left; and where other placements are to be searched, too.
_SHARE, _SHARE_BESIDE = 0.55, 0.25
#: Cuts of a space that are tried at most, and tries for each polish.
_CUTS, _TRIES = 64, 2
#: The known schedule that serves a cut best where memory is short; the others' orders hardly depend on the cut.
_SEARCH = "v-block"
#: Deterministic seconds that are charged for a stretch that is polished.
_PER_STRETCH = 0.015
#: To so many other cuts what was polished is carried, where it is not so many times as long there.
_OTHERS, _WORSE = 2, 1.02
#: A schedule so many times as long as the best is not polished.
_HOPEFUL = 1.12
#: A polish ends after so many stretches, or so many in a row that gained nothing.
_STRETCHES, _IDLE = 60, 14
#: So many cuts of one space, and of all, are given back.
_EACH, _ALL = 2, 4


def tried(cuts: CutSearch, *, beside: bool) -> list[Proposal]:
    """The cuts to be searched on, the best first. ``beside``: whether other placements are to be searched, which are no
    cuts of the layers."""
    share = _SHARE_BESIDE if beside else _SHARE
    tries = _Tries(cuts, cuts.budget.slice(share=share))
    with cuts.budget.limited(share):
        tries.run()
    ranked = sorted([*tries.polished, *tries.raw], key=lambda proposal: proposal.makespan)
    found: list[Proposal] = []
    for proposal in ranked:
        same = [known for known in found if known.space is proposal.space]
        if len(found) < _ALL and len(same) < _EACH and all(known.borders != proposal.borders for known in same):
            found.append(proposal)
    return found


@dataclass
class _Tries:
    """``raw``: schedules that were carried; ``polished``: those that were polished since."""

    cuts: CutSearch
    time: Slice
    raw: list[Proposal] = field(default_factory=list)
    polished: list[Proposal] = field(default_factory=list)
    seen: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)
    polishes: int = 0

    def run(self) -> None:
        """Each space in its turn, and a polish after every few tries."""
        spaces = self.cuts.worth_trying
        steps = [self._space(space) for space in spaces]
        number = 0
        while steps and not self.time.spent:
            for entry in list(steps):
                if next(entry, None) is None:
                    steps.remove(entry)
                number += 1
                if number % _TRIES == 0 and self.raw and number >= len(spaces):
                    self._polish_best()
                if self.time.spent:
                    return
        while self.raw and not self.time.spent:
            self._polish_best()

    def _space(self, space: CutSpace) -> Iterator[bool]:
        """One step for each cut; all known schedules on the first."""
        for number, borders in enumerate(space.some(_CUTS)):
            for name in BASELINES if number == 0 else (_SEARCH,):
                self._try(space, borders, name)
            yield True

    def _try(self, space: CutSpace, borders: tuple[int, ...], name: str) -> None:
        """The schedule ``name`` of a cut, carried to the cut that it serves best."""
        problem = space.candidate(borders).problem
        try:
            orders = BASELINES[name].orders(problem, self.cuts.micro_batches)
        except NotApplicable:
            return
        self.cuts.charge_orders(space, name)
        for proposal in self.cuts.carried(space, borders, problem, orders):
            self._keep(proposal)

    def _keep(self, proposal: Proposal) -> None:
        """Of one cut the best schedule only, and none where one was polished before."""
        if (id(proposal.space), proposal.borders) in self.seen:
            return
        same = next((known for known in self.raw
                     if known.space is proposal.space and known.borders == proposal.borders), None)
        if same is None or proposal.makespan < same.makespan:
            self.raw = [known for known in self.raw if known is not same] + [proposal]

    def _polish_best(self) -> None:
        """The best of all, or else the best of each layout in its turn, so that no plateau takes all time."""
        self.polishes += 1
        least = min(known.makespan for known in (*self.raw, *self.polished))
        waiting = [space for space in self.cuts.spaces
                   if any(known.space is space and known.makespan < _HOPEFUL * least for known in self.raw)]
        if not waiting:
            self.raw.clear()
            return
        only = waiting[self.polishes // 2 % len(waiting)] if self.polishes % 2 else None
        best = min((known for known in self.raw if only in (None, known.space)), key=lambda known: known.makespan)
        self.raw.remove(best)
        self.seen.add((id(best.space), best.borders))
        better = self._polish(best)
        self.polished.append(better)
        assert better.start is not None
        for other in self.cuts.others(better, better.start, _OTHERS):
            if other.makespan < _WORSE * better.makespan:
                self._keep(other)

    def _polish(self, proposal: Proposal) -> Proposal:
        """``proposal`` with short stretches of its schedule ordered anew."""
        search = Search(proposal.placement.problem, self.cuts.micro_batches, self.cuts.budget, start=proposal.start)
        phase, idle = Polish(), 0
        found: Schedule | None = search.best
        if phase.due(search):
            for number, _ in enumerate(phase.steps(search)):
                self.cuts.charge(_PER_STRETCH)
                idle = idle + 1 if search.best is found else 0
                found = search.best
                if number >= _STRETCHES or idle >= _IDLE or self.time.spent or search.done:
                    break
        return Proposal(proposal.space, proposal.borders, proposal.placement, search.best)
