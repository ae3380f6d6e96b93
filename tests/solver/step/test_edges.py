"""Bounds on what warm-up and cool-down around a period can lead to."""

from __future__ import annotations

import random

import pytest

from tests.support.builders import loop, pipeline, uneven, v
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import Periodic, repeat
from weft.solver.period.search import find_period
from weft.solver.relations.fixed_order import FixedOrder
from weft.solver.step.edges import EdgedRepetend, complete, least_around
from weft.solver.step.phases.completion import complete_around
from weft.solver.step.phases.first_schedule import FirstSchedule
from weft.solver.step.state import State
from weft.solver.ticks import TickProblem


@pytest.mark.parametrize("seed", range(6))
def test_no_edges_lead_below_their_bound(seed: int) -> None:
    chance = random.Random(seed)
    devices = (v if seed % 2 else loop)(2)
    instance = TickProblem.of(uneven(pipeline(devices, memory=4 if seed > 1 else None), chance, lags=2))
    found = find_period(instance, one_at_a_time(instance), Budget(deterministic=1.0)).best
    for edge in (0, 1):
        count = found.depth + 2 * edge + 2
        completion = complete(instance, found, count, Budget(), edge=edge, deterministic=1.0)
        assert completion is not None
        makespan = FixedOrder(instance, count, completion.orders).makespan
        least = least_around(instance, found, count, edge)
        assert instance.heaviest_load * count <= least <= makespan


@pytest.mark.parametrize("optimal", [True, False])
def test_no_edges_of_an_optimum_are_ordered_that_make_it_longer(optimal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def complete_none(instance: TickProblem, found: Periodic, *_: object, edge: int, **__: object) -> EdgedRepetend:
        asked.append(edge)
        return EdgedRepetend(found, edge, 12, repeat(found, 12))

    monkeypatch.setattr("weft.solver.step.edges.complete", complete_none)
    state = State(uneven(pipeline(v(2), memory=4), random.Random(0)), 12, Budget(deterministic=1.0))
    one_after_another = one_at_a_time(state.instance)
    list(FirstSchedule().steps(state))
    if optimal:  # as if it were proven
        state.raise_bound(FixedOrder(state.instance, 12, state.incumbent.orders).makespan)
    list(complete_around(one_after_another, state))
    assert bool(asked) != optimal
