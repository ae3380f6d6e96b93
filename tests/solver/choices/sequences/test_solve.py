"""The best order of micro-batches that differ: on small problems that of trying all, with proof."""

from __future__ import annotations

import random

import pytest

from tests.oracles.whole import TooLarge
from tests.support.class_runs import all_orders, any_orders, best_of_orders, drawn_pipeline, pipeline_of_lengths
from tests.support.examples import slow
from weft.solver import Infeasible, validate
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.choices.solve import solve_run
from weft.solver.problem.rounds import Run


@pytest.mark.parametrize(("seed", "any_class"), [
    *((seed, False) if seed in (0, 2, 4, 5) else slow(seed, False) for seed in range(12)),
    *((seed, True) if seed in (1, 2) else slow(seed, True) for seed in range(6))])
def test_the_best_of_all_orders(seed: int, any_class: bool) -> None:
    wide = drawn_pipeline(seed + 100 * any_class, split=not any_class and seed % 3 == 0)
    draw = random.Random(seed)
    names = [draw.choice(wide.classes) for _ in range(3)]
    try:
        expected = best_of_orders(wide, any_orders(wide, 3) if any_class else all_orders(names))
    except TooLarge:
        pytest.skip("too large to try all")
    asked = Run.of_any_class(wide, 3) if any_class else Run.of(wide, names)
    if expected is None:
        with pytest.raises(Infeasible):
            solve_sequence(wide, asked, any_class=any_class, effort=20.0)
        return
    found = solve_sequence(wide, asked, any_class=any_class, effort=20.0)
    validate(found)
    assert found.makespan == pytest.approx(float(expected)) and found.status == "optimal"
    assert found.rounds is not None
    assert any_class or sorted(map(str, found.rounds.run.classes[None])) == sorted(names)


@pytest.mark.slow
def test_no_longer_than_the_order_given() -> None:
    wide, run = pipeline_of_lengths(2, [8, 1, 2, 8], memory=10)
    given = solve_run(wide, run, effort=4.0, time_limit=3000)
    found = solve_sequence(wide, run, effort=4.0, time_limit=3000)
    validate(found)
    assert found.makespan <= given.makespan and found.makespan_bound <= found.makespan
    assert found.solver["sequence"]["sequences"] == 12


def test_of_one_class_it_is_the_plain_problem() -> None:
    wide, run = pipeline_of_lengths(2, [2, 2, 2])
    found = solve_sequence(wide, run, effort=4.0)
    assert found.makespan == solve_run(wide, run, effort=4.0).makespan == 24 and found.status == "optimal"


def test_what_it_cannot_do_is_said() -> None:
    wide, run = pipeline_of_lengths(2, [1, 2])
    with pytest.raises(ValueError, match="not for the objective 'rate'"):
        solve_sequence(wide, run, objective="rate")


def test_whatever_time_there_is_something_is_found_with_a_bound() -> None:
    wide, run = pipeline_of_lengths(4, [8, 1, 2, 8, 4, 6, 3, 12, 5, 7, 9, 10])
    for limit in (0.0, 0.3):
        found = solve_sequence(wide, run, time_limit=limit)
        validate(found)
        assert 0 < found.makespan_bound <= found.makespan
        assert found.rounds is not None
        assert sorted(map(str, found.rounds.run.classes[None])) == sorted(map(str, run.classes[None]))
