"""The search over states against everything tried, and what it proves of the devices looked at alone."""

from __future__ import annotations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.oracles.brute import least_makespan
from tests.support.strategies import Case, cases
from weft.solver.bounds.states import Analysis, search, system_of
from weft.solver.bounds.states.search import Found
from weft.solver.problem import Problem
from weft.solver.relations.graph import graph_of
from weft.solver.relations.implied_order import implied_order
from weft.solver.ticks import TickProblem
from weft.solver.timing import time_orders

AMPLE = 10**12


def found(problem: Problem, micro_batches: int, devices: set[int] | None = None, upper: int = AMPLE) -> Found:
    instance = TickProblem.of(problem)
    known = Analysis.of(instance, micro_batches, implied_order(instance, graph_of(instance), micro_batches))
    everywhere = set(range(len(problem.devices)))
    return search(system_of(known, everywhere if devices is None else devices), upper, most=10**6, widest=10**6)


@settings(max_examples=60)
@given(cases(max_micro_batches=3, max_devices=3, max_blocks=4, whole=True, links=False))
def test_it_finds_the_least_makespan_of_all_orders(case: Case) -> None:
    best = least_makespan(case.problem, case.micro_batches)
    answer = found(case.problem, case.micro_batches)
    assert best is not None
    assert answer.bound == best
    assert answer.sequence is not None
    ran = [0] * len(case.problem.blocks)
    rows: list[list[tuple[int, int]]] = [[] for _ in case.problem.devices]
    for block in answer.sequence:
        for device in case.problem.blocks[block].devices:
            rows[device].append((block, ran[block]))
        ran[block] += 1
    assert max(operation.end for operation in time_orders(case.problem, case.micro_batches, rows)) == best
    assert found(case.problem, case.micro_batches, upper=int(best)) == Found(int(best), None, answer.states) or (
        found(case.problem, case.micro_batches, upper=int(best)).bound == best)


@settings(max_examples=60)
@given(st.data())
def test_no_devices_alone_take_longer_than_all(data: st.DataObject) -> None:
    """With transfers on links, and the blocks of some devices left out."""
    case = data.draw(cases(max_micro_batches=3, max_devices=3, max_blocks=4, whole=True))
    used = sorted({device for block in case.problem.blocks for device in block.devices})
    devices = data.draw(st.sets(st.sampled_from(used), min_size=1))
    best = least_makespan(case.problem, case.micro_batches)
    assert best is not None
    assume(best > 0)
    assert found(case.problem, case.micro_batches, devices).bound <= best
