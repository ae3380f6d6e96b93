"""A first look at the cuts: schedules that were carried and polished."""

from __future__ import annotations

import pytest

from tests.support.cut_specs import MODES, Mode, drawn_spec
from weft.app.cuts.search import CutSearch
from weft.app.cuts.tries import tried
from weft.models.cuts.spaces import cut_spaces
from weft.solver import Budget, validate
from weft.solver.bounds.makespan import least_time
from weft.solver.orders.climb import Climb
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("mode", MODES)
def test_cuts_that_are_given_back_have_judged_schedules_the_best_first(mode: Mode) -> None:
    met = 0
    for number in range(2):
        spec = drawn_spec(number, mode, count=8, micro_batches=4, shapes=["chain", "v", "loop"], chunks=2)
        cuts = CutSearch(cut_spaces(spec, 4), 4, Budget(60.0, deterministic=1.0))
        cuts.open(100.0)
        found = tried(cuts, Climb(cuts.budget), beside=False)
        assert len({kept.decision.key for kept in found}) == len(found)
        assert [kept.makespan for kept in found] == sorted(kept.makespan for kept in found)
        for kept in found:
            met += 1
            cut = kept.decision
            assert kept.schedule.problem == cut.problem
            validate(kept.schedule)
            assert kept.makespan >= least_time(TickProblem.of(cut.problem), 4) * (1 - 1e-9)
            stages = cut.placement.details["layers_of_stage"]
            assert [len(names) for names in stages] == [
                last - first for first, last in zip(cut.borders, cut.borders[1:], strict=False)]
        assert cuts.budget.deterministic_used < 1.0
    assert met >= 3


def test_without_cuts_there_is_nothing_to_try() -> None:
    cuts = CutSearch(cut_spaces(drawn_spec(0, "full"), 3), 3, Budget(60.0, deterministic=1.0))
    assert not tried(cuts, Climb(cuts.budget), beside=False)  # nothing is listed
    cuts.open(0.0)
    assert not tried(cuts, Climb(cuts.budget), beside=False)  # everything is ruled out
