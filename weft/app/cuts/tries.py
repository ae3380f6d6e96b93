"""A first look at the cuts: known schedules on some of them, carried to all, and the best of these polished.

Cuts are tried in the order of their bounds, each space in its turn. A known schedule of a cut is carried to the cut
that it serves best. The best schedule at hand is polished by local search, and carried to the cuts that it serves best
then, which may be the next to be polished: so cut and order change in turns. The rest of the time goes into a climb
(:mod:`weft.app.cuts.climb`) from the cuts that were polished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from weft.app.cuts.climb import MOVES, Climb, polished
from weft.app.cuts.search import CutSearch, Proposal
from weft.models.cuts.space import CutSpace
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.cpsat.budget import Slice

__all__ = ["tried"]

#: What all tries may take of what is left; and where other placements are to be searched, too.
_SHARE, _SHARE_BESIDE = 0.55, 0.25
#: What known schedules may take of that, before the climb.
_KNOWN = 0.4
#: Cuts of a space that are tried at most, and tries for each polish.
_CUTS, _TRIES = 64, 2
#: The known schedule that serves a cut best where memory is short; the others' orders hardly depend on the cut.
_SEARCH = "v-block"
#: To so many other cuts what was polished is carried, where it is not so many times as long there.
_OTHERS, _WORSE = 2, 1.02
#: A schedule so many times as long as the best is not polished.
_HOPEFUL = 1.12
#: So many cuts of one space, and of all, are given back.
_EACH, _ALL = 2, 4


def tried(climb: Climb, *, beside: bool) -> list[Proposal]:
    """The cuts to be searched on, the best first, which ``climb`` keeps. ``beside``: whether other placements are to be
    searched, which are no cuts of the layers."""
    cuts = climb.cuts
    share = _SHARE_BESIDE if beside else _SHARE
    time, known = cuts.budget.slice(share=share), cuts.budget.slice(share=share * _KNOWN)
    tries = _Tries(cuts, climb, known)
    with cuts.budget.limited(share * _KNOWN):
        tries.run()
    with cuts.budget.limited(share * (1 - _KNOWN)):
        climb.run(time)
    ranked = sorted([*climb.kept, *tries.raw], key=lambda proposal: proposal.makespan)
    found: list[Proposal] = []
    for proposal in ranked:
        same = [known for known in found if known.space is proposal.space]
        if len(found) < _ALL and len(same) < _EACH and all(known.borders != proposal.borders for known in same):
            found.append(proposal)
    return found


@dataclass
class _Tries:
    """``raw``: schedules that were carried; those that were polished since are kept by ``climb``."""

    cuts: CutSearch
    climb: Climb
    time: Slice
    raw: list[Proposal] = field(default_factory=list)
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
        if (id(proposal.space), proposal.borders) in self.climb.seen:
            return
        same = next((known for known in self.raw
                     if known.space is proposal.space and known.borders == proposal.borders), None)
        if same is None or proposal.makespan < same.makespan:
            self.raw = [known for known in self.raw if known is not same] + [proposal]

    def _polish_best(self) -> None:
        """The best of all, or else the best of each layout in its turn, so that no plateau takes all time."""
        self.polishes += 1
        least = min(known.makespan for known in (*self.raw, *self.climb.kept))
        waiting = [space for space in self.cuts.spaces
                   if any(known.space is space and known.makespan < _HOPEFUL * least for known in self.raw)]
        if not waiting:
            self.raw.clear()
            return
        only = waiting[self.polishes // 2 % len(waiting)] if self.polishes % 2 else None
        best = min((known for known in self.raw if only in (None, known.space)), key=lambda known: known.makespan)
        self.raw.remove(best)
        assert best.start is not None
        better = polished(self.cuts, best.space, best.borders, best.start.orders, MOVES) or best
        self.climb.keep(better)
        assert better.start is not None
        for other in self.cuts.others(better, better.start, _OTHERS):
            if other.makespan < _WORSE * better.makespan:
                self._keep(other)
