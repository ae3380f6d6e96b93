"""Known schedules on their best cuts.

The order of a known schedule is carried to all listed cuts of its layout, and the schedule is generated again on the
best cut for this order. If its order does not depend on the cut, as for most, that is the best of these cuts; otherwise
it is the best of those tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.app.cuts.search import CutDecision, CutSearch, space_title
from weft.app.lib.case import Case, CasePlacement, candidate_placement
from weft.app.lib.placements import SEARCHES, Known
from weft.models.cuts.space import CutSpace
from weft.solver.baselines import NotApplicable, baseline
from weft.solver.control.clock import checkpoint
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import violations
from weft.solver.schedule import Schedule

#: The share of the remaining time for this.
_SHARE = 0.2
#: Number of cuts listed for each layout, and the limit on their bounds relative to the best known schedule.
_LISTED, _ABOVE = 60_000, 1.1
#: A schedule's entries on its placement.
_OF_PLACEMENT = ("placement", "static_memory", "gpu_memory", "layers_of_stage", "notes", "optimizer", "gradients_freed")
#: Number of cuts of a layout on which a schedule is generated if its order depends on the cut; otherwise one suffices.
_SEEDS = 6
#: How often a schedule is generated again on the best cut for its last order.
_AGAIN = 3


def on_best_cuts(case: Case, budget: Budget, known: Mapping[str, Known], names: Sequence[str]) -> dict[str, Known]:
    """``known``, known schedules on the listed placements, with better cuts for those of ``names`` that have one."""
    found = dict(known)
    fitting = [entry.schedule.makespan for entry in known.values() if entry.fits]
    if not case.spaces or not fitting:
        return found
    cuts = CutSearch(case.spaces, case.micro_batches, budget)
    with budget.limited(_SHARE):
        time = budget.slice(share=_SHARE)
        cuts.open(_ABOVE * min(fitting), _LISTED)
        spaces = cuts.worth_trying
        for name in names:
            for space in spaces:
                if time.spent:
                    break
                better = _on_space(cuts, space, name, found.get(name))
                if better is not None and (name not in found or better.rank < found[name].rank):
                    found[name] = better
    return found


def on_cut_of(found: Schedule, names: Sequence[str]) -> dict[str, Known]:
    """The known schedules among ``names`` that run and fit on the placement of ``found``, one of single GPUs."""
    details = {key: found.solver[key] for key in _OF_PLACEMENT if key in found.solver}
    placement = CasePlacement(str(found.solver.get("placement", "")), found.problem, details)
    made: dict[str, Known] = {}
    for name in names:
        checkpoint()
        try:
            schedule = baseline(name, found.problem, found.micro_batches)
        except NotApplicable:
            continue
        if not violations(schedule, limit=1):
            made[name] = Known(placement, schedule, True)
    return made


def _on_space(cuts: CutSearch, space: CutSpace, name: str, known: Known | None) -> Known | None:
    """Schedule ``name`` on the best cut of ``space``; None if it can run on none or fits none."""
    starts = [] if known is None or known.placement.title != space_title(space) else [cuts.borders_of(known.placement)]
    made = []
    for borders in [*starts, *space.some(_SEEDS if name in SEARCHES else 1)]:
        checkpoint()
        seed = _made(cuts, space, name, borders)
        if seed is None:
            return None
        made.append((borders, seed))
    following, current = min(made, key=lambda entry: entry[1].rank)
    best = current
    for _ in range(_AGAIN):
        carried = cuts.carried(CutDecision(cuts, space, following), current.schedule.orders)
        if carried is None or carried.decision.borders == following:
            break
        checkpoint()
        following = carried.decision.borders
        anew = _made(cuts, space, name, following)
        if anew is None:
            break
        current, best = anew, min(best, anew, key=lambda entry: entry.rank)
    return best if best.fits else None


def _made(cuts: CutSearch, space: CutSpace, name: str, borders: tuple[int, ...]) -> Known | None:
    placement = candidate_placement(space.candidate(borders))
    try:
        schedule = baseline(name, placement.problem, cuts.micro_batches)
    except NotApplicable:
        return None
    cuts.charge_orders(space, name)
    return Known(placement, schedule, not violations(schedule, limit=1))
