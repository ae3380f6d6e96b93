"""A first look at the cuts: a known schedule of those with the least bounds, polished by local search.

Each space has its turn, first with its cut of the least bound, then with the next. In inference a schedule is carried
to the cut that it serves best; in training that leads the climb to fewer places (869.0 ms on the demo's model, where it
ends at 864.1 from the cuts themselves). The climb (:mod:`weft.solver.orders.climb`) goes on from the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.app.cuts.search import CutDecision, CutSearch
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.orders.climb import Climb, Decided
from weft.solver.timing import Orders

#: What all tries may take of what is left, but for the first of each space; and where other placements are to be
#: searched, too.
_SHARE, _SHARE_BESIDE = 0.4, 0.25
#: Cuts of a space that are tried at most.
_CUTS = 3
#: The known schedules that serve a cut best, for training and without.
_STARTS = ("v-block", "greedy")
#: So many cuts of one space, and of all, are given back.
_EACH, _ALL = 2, 4


def tried(cuts: CutSearch, climb: Climb[CutDecision], *, beside: bool) -> list[Decided[CutDecision]]:
    """The cuts to be searched on, the best first, which ``climb`` keeps. ``beside``: whether other placements are to be
    searched, which are no cuts of the layers."""
    share = _SHARE_BESIDE if beside else _SHARE
    time = cuts.budget.slice(share=share)
    with cuts.budget.limited(share):
        for number, cut in _in_turn(cuts):
            if time.spent and number:
                break
            orders = _orders(cuts, cut)
            if orders is None:
                continue
            if cut.space.backward == "none":  # all orders are alike: the cut is what is searched for
                carried = cuts.carried(cut, orders)
                if carried is not None:
                    cut, orders = carried.decision, carried.schedule.orders
            found = climb.ordered(cut, orders, cuts.budget.slice())
            if found is not None:
                climb.keep(found)
    found_so_far: list[Decided[CutDecision]] = []
    for kept in climb.kept:
        same = [known for known in found_so_far if known.decision.group == kept.decision.group]
        if len(found_so_far) < _ALL and len(same) < _EACH:
            found_so_far.append(kept)
    return found_so_far


def _in_turn(cuts: CutSearch) -> Iterator[tuple[int, CutDecision]]:
    """The cuts with the least bounds, one of each space after the other, with the number of the turn."""
    listed = [(space, space.some(_CUTS)) for space in cuts.worth_trying]
    for number in range(_CUTS):
        for space, borders in listed:
            if number < len(borders):
                yield number, CutDecision(cuts, space, borders[number])


def _orders(cuts: CutSearch, cut: CutDecision) -> Orders | None:
    """A known schedule of a cut."""
    for name in _STARTS:
        try:
            orders = BASELINES[name].orders(cut.problem, cuts.micro_batches)
        except NotApplicable:
            continue
        cuts.charge_orders(cut.space, name)
        return orders
    return None
