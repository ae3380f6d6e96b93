"""First schedules on cuts: a known schedule on the cuts with the least bounds, polished by local search.

The spaces take turns, first with the cut of the least bound, then with the next. In inference a schedule is carried to
its best cut; in training that gives the climb fewer starting points (869.0 ms on the demo's model, against 864.1 from
the cuts themselves). The climb (:mod:`weft.solver.orders.climb`) continues from the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.app.cuts.search import CutDecision, CutSearch
from weft.solver.baselines import BASELINES, NotApplicable
from weft.solver.orders.climb import Climb, Decided
from weft.solver.timing import Orders

#: The share of the remaining time for all tries except the first of each space; and the share if other placements are
#: searched, too.
_SHARE, _SHARE_BESIDE = 0.4, 0.25
#: Maximum number of cuts tried in a space.
_CUTS = 3
#: The best known schedules for a cut, for training and for inference.
_STARTS = ("v-block", "greedy")
#: Number of cuts returned from one space, and from all.
_EACH, _ALL = 2, 4


def tried(cuts: CutSearch, climb: Climb[CutDecision], *, beside: bool) -> list[Decided[CutDecision]]:
    """The cuts to be searched further, the best first, as kept by ``climb``. ``beside``: whether placements other than
    cuts of the layers are searched, too."""
    share = _SHARE_BESIDE if beside else _SHARE
    time = cuts.budget.slice(share=share)
    with cuts.budget.limited(share):
        for number, cut in _in_turn(cuts):
            if time.spent and number:
                break
            orders = _orders(cuts, cut)
            if orders is None:
                continue
            if cut.space.backward == "none":  # all orders are alike: only the cut is searched
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
    """The cuts with the least bounds, one from each space in turn, with the number of the turn."""
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
