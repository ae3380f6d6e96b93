"""What a model of all operations says of schedules shorter than a makespan, against labels of all states."""

from __future__ import annotations

from tests.support import chain, for_all, pipeline
from tests.support.strategies import Case, cases, least_of
from weft.solver import Budget, time_orders, violations
from weft.solver.orders.climb import judged
from weft.solver.schedule import latest_end
from weft.solver.step.proven import Proven
from weft.solver.step.shorter import shorter
from weft.solver.ticks import TickProblem


@for_all(cases(max_micro_batches=4, max_devices=3, max_blocks=5, whole=True), tries=40)
def test_the_least_makespan_is_refuted_as_too_long_and_no_longer_one(case: Case) -> None:
    best = least_of(case.problem, case.micro_batches)
    instance, budget = TickProblem.of(case.problem), Budget(60.0)
    least = int(best / instance.tick)
    proven = Proven(instance, case.micro_batches)
    for _ in range(2):
        for than in (least - 1, least):
            nothing = shorter(proven, than, budget, 10.0)
            assert nothing.orders is None and than <= nothing.bound <= least
        found = shorter(proven, least + 1, budget, 10.0)
        assert found.orders is not None and found.makespan == least and found.bound <= least
        assert latest_end(time_orders(case.problem, case.micro_batches, found.orders)) == best
        schedule = judged(case.problem, case.micro_batches, found.orders)
        assert schedule is not None and not violations(schedule)
        proven.raise_by_all()  # once more with all that is known


def test_nothing_is_said_where_there_is_no_time_for_a_model() -> None:
    proven = Proven(TickProblem.of(pipeline(chain(3), memory=3)), 6)
    answer = shorter(proven, 10**6, Budget(1e-9), 10.0)
    assert answer.orders is None and answer.bound == proven.bound
