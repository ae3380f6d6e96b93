from __future__ import annotations

import itertools
import math
import random

import pytest

from weft.solver.switching import best_switching


def _total(plans: tuple[int, ...], costs: list[list[float]], switches: list[list[float]]) -> float:
    return sum(costs[i][p] for i, p in enumerate(plans)) + sum(
        switches[a][b] for a, b in itertools.pairwise(plans) if a != b)


@pytest.mark.parametrize("seed", range(40))
def test_no_choice_of_plans_is_cheaper(seed: int) -> None:
    draw = random.Random(seed)
    parts, count = draw.randint(1, 5), draw.randint(1, 4)
    costs = [[draw.choice([math.inf, *map(float, range(1, 9))]) for _ in range(count)] for _ in range(parts)]
    switches = [[0.0 if a == b else draw.choice([0.0, 1.0, 3.0, 20.0]) for b in range(count)] for a in range(count)]
    least = min(_total(plans, costs, switches) for plans in itertools.product(range(count), repeat=parts))
    found = best_switching(costs, switches)
    if found is None:
        assert math.isinf(least)
    else:
        assert found.total == least == _total(found.plans, costs, switches)


def test_a_switch_that_costs_more_than_it_saves_is_not_made() -> None:
    costs = [[1.0, 3.0], [3.0, 1.0]]
    assert best_switching(costs, [[0.0, 2.5], [2.5, 0.0]]) == best_switching(costs, [[0.0, 99.0], [99.0, 0.0]])
    found = best_switching(costs, [[0.0, 1.5], [1.5, 0.0]])
    assert found is not None
    assert found.plans == (0, 1)
    assert found.total == 3.5


def test_a_part_that_no_plan_can_run_has_no_answer() -> None:
    assert best_switching([[1.0], [math.inf]], [[0.0]]) is None
    empty = best_switching([], [])
    assert empty is not None and empty.plans == ()
