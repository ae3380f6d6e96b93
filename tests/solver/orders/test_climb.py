"""The climb over decisions and orders, on a space of its own: on which device does each stage run?"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product

import pytest

from tests.oracles.whole import least_makespan
from tests.support.builders import pipeline
from weft.solver.cpsat.budget import Budget
from weft.solver.judge.validate import validate
from weft.solver.orders.climb import Climb
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.periodic import repeat
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.ticks import TickProblem
from weft.solver.timing import Orders

N = 2


@dataclass(frozen=True)
class Devices:
    """The device of each of some stages between one on device 0 and one on device 1. The group is that of the last."""

    taken: tuple[int, ...]
    bound: float = 0.0

    @property
    def key(self) -> Hashable:
        return self.taken

    @property
    def group(self) -> Hashable:
        return self.taken[-1]

    @property
    def problem(self) -> Problem:
        return pipeline((0, *self.taken, 1), forward=1, backward=2, memory=4)

    @property
    def micro_batches(self) -> int:
        return N

    def neighbours(self, schedule: Schedule) -> list[Devices]:
        assert schedule.problem == self.problem
        return [Devices((*self.taken[:s], 1 - self.taken[s], *self.taken[s + 1:])) for s in range(len(self.taken))]

    def carried(self, of: Devices, schedule: Schedule) -> Orders:
        assert schedule.problem == of.problem
        starts = sorted((op.start, op.block, op.micro_batch) for op in schedule.operations)
        rows: list[list[tuple[int, int]]] = [[] for _ in self.problem.devices]
        for _, block, m in starts:
            rows[self.problem.blocks[block].devices[0]].append((block, m))
        return rows


def begun(seed: int = 0) -> Climb[Devices]:
    """From all stages on one device but the last, one micro-batch after the other."""
    climb: Climb[Devices] = Climb(Budget(600.0, deterministic=20.0, seed=seed), again=True)
    first = Devices((0, 0, 0))
    instance = TickProblem.of(first.problem)
    found = climb.ordered(first, repeat(one_at_a_time(instance), N), climb.budget.slice())
    assert found is not None
    climb.keep(found)
    return climb


def test_it_ends_at_the_best_of_all() -> None:
    climb = begun()
    expected = min(value for taken in product((0, 1), repeat=3)
                   for value in [least_makespan(Devices(taken).problem, N)] if value is not None)
    assert climb.kept[0].makespan > expected
    climb.run(climb.budget.slice())
    assert climb.kept[0].makespan == pytest.approx(float(expected))
    assert [kept.makespan for kept in climb.kept] == sorted(kept.makespan for kept in climb.kept)
    for kept in climb.kept:
        assert kept.schedule.problem == kept.decision.problem and kept.schedule.micro_batches == N
        validate(kept.schedule)


def test_it_repeats_and_charges_what_it_does() -> None:
    climbs = [begun(seed=3) for _ in range(2)]
    for climb in climbs:
        before = climb.budget.deterministic_used
        climb.run(climb.budget.slice(0.02))
        assert 0.02 <= climb.budget.deterministic_used - before < 0.04
    first, second = ([(kept.decision, kept.schedule.orders) for kept in climb.kept] for climb in climbs)
    assert first == second and climbs[0].budget.deterministic_used == climbs[1].budget.deterministic_used


def test_what_a_bound_rules_out_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = begun()
    monkeypatch.setattr(Devices, "neighbours", lambda self, _: [
        Devices((1 - self.taken[0], *self.taken[1:]), climb.kept[0].makespan)])
    before = climb.budget.deterministic_used
    climb.run(climb.budget.slice())
    assert len(climb.kept) == 1 and climb.budget.deterministic_used == before
