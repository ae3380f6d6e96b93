"""What is offered to the incumbent: kept if it is shorter, or as short with a steady state, and stands the judge."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, pipeline
from weft.solver import BASELINES, Budget, InvalidSchedule
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.step.incumbent import Incumbent
from weft.solver.step.proven import Proven
from weft.solver.ticks import TickProblem

MICRO_BATCHES = 4


def empty(memory: int = 2) -> tuple[Incumbent, list[float]]:
    """An incumbent without a schedule, and the makespans of all that it will keep."""
    better: list[float] = []
    incumbent = Incumbent(Proven(TickProblem.of(pipeline(chain(2), memory=memory)), MICRO_BATCHES), Budget(),
                          lambda: better.append(incumbent.best.makespan if incumbent.best else 0.0))
    return incumbent, better


def test_only_what_is_shorter_is_kept() -> None:
    incumbent, better = empty()
    problem = incumbent.instance.problem
    assert incumbent.offer(BASELINES["1f1b"].orders(problem, MICRO_BATCHES), "1f1b")
    assert not incumbent.offer(BASELINES["1f1b"].orders(problem, MICRO_BATCHES), "again")
    assert incumbent.name == "1f1b" and len(better) == 1


def test_a_steady_state_that_is_no_shorter_is_kept_over_none() -> None:
    incumbent, better = empty(memory=1)
    found = one_at_a_time(incumbent.instance)
    orders = [[(block, m) for m in range(MICRO_BATCHES) for block, _ in sorted(
        ((i, found.starts[i]) for i in on), key=lambda entry: entry[1])] for on in incumbent.instance.blocks_on]
    assert incumbent.offer(orders, "sequential") and incumbent.best is not None and incumbent.best.period is None
    incumbent.offer_repeated(found)
    assert incumbent.best.period is not None and len(set(better)) == 1 and len(better) == 2


def test_what_does_not_fit_is_refused_and_a_fault_if_it_is_our_own() -> None:
    incumbent, better = empty(memory=1)
    orders = BASELINES["gpipe"].orders(incumbent.instance.problem, MICRO_BATCHES)
    assert not incumbent.fits(orders)
    assert not incumbent.offer(orders, "gpipe") and incumbent.best is None
    with pytest.raises(InvalidSchedule):
        incumbent.offer(orders, "weft")
    assert not better


def test_time_is_kept_for_what_follows() -> None:
    incumbent, _ = empty()
    incumbent.budget.seconds = 10.0
    incumbent.keep_time_afterwards(2.0)
    assert incumbent.budget.reserve == 3.0
    incumbent.keep_time_afterwards(100.0)
    assert incumbent.budget.reserve == 4.0
