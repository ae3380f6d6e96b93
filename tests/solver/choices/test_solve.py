"""The best schedule over all assignments: brute force, worked examples, objectives, and what is said of each option."""

from __future__ import annotations

from itertools import pairwise
from math import isinf

import pytest
from hypothesis import assume
from hypothesis import strategies as st

from tests.support import drawn_run, for_all, keep_or_recompute, valid, wide_runs
from tests.support.alternatives import drawn_alternatives, least_over
from weft.solver import BlockKind, Device, Infeasible, NoneFound, ProblemError, Schedule, solve
from weft.solver.choices.solve import solve_run
from weft.solver.judge.choice_rules import violations_of_choice
from weft.solver.problem import Block, Dependency, Problem
from weft.solver.problem.rounds import Run


def _assert_best(problem: Problem, run: Run, objective: str = "makespan") -> None:
    best = least_over(problem, run, objective)
    if isinf(best):
        with pytest.raises(Infeasible) as refusal:
            solve_run(problem, run, objective=objective, effort=20.0)
        assert not isinstance(refusal.value, NoneFound)
        return
    found = valid(solve_run(problem, run, objective=objective, effort=20.0))
    assert not violations_of_choice(found, problem)
    assert found.value == pytest.approx(best) == found.value_bound
    _assert_options(found, problem, run)


def _assert_options(found: Schedule, problem: Problem, run: Run) -> None:
    """What is said of each option holds for the best schedule with it."""
    rows = {(row["choice"], row["option"]): row for row in found.solver["options"]}
    assert rows.keys() == {(choice, option) for choice, options in problem.choices.items() for option in options}
    for (choice, option), row in rows.items():
        assert row["taken"] == (found.choices[choice] == option)
        if row["taken"]:
            assert row["makespan"] == pytest.approx(found.value) == row["bound"]
    if rows:
        choice, option = next(place for place, row in rows.items() if not row["taken"])
        best = least_over(problem.under({choice: option}), run, found.objective)
        row = rows[choice, option]
        assert (float("inf") if row["bound"] is None else row["bound"]) <= best * (1 + 1e-9)
        assert row["makespan"] is None or row["makespan"] >= best * (1 - 1e-9)


@for_all(wide_runs(), tries=20)
def test_it_is_brute_force(drawn: tuple[Problem, Run]) -> None:
    _assert_best(*drawn)


@for_all(st.integers(0, 10**6), st.sampled_from(["plain", "classes", "jobs", "lanes"]), tries=12)
def test_it_is_brute_force_on_all_kinds_of_options(seed: int, kind: str) -> None:
    problem = drawn_alternatives(seed, classes=kind == "classes", jobs=kind == "jobs", lanes=kind == "lanes")
    run = drawn_run(problem, seed)
    assume(run.micro_batches * len(problem.blocks) < 40)
    _assert_best(problem, run)


@pytest.mark.parametrize("seed", range(5))
def test_spans(seed: int) -> None:
    problem = keep_or_recompute(seed)
    _assert_best(problem, Run.of(problem, 2), "span")


@pytest.mark.parametrize("seed", range(5))
def test_rates(seed: int) -> None:
    problem = keep_or_recompute(seed)
    run = Run.of(problem, 12)
    found = valid(solve_run(problem, run, objective="rate", effort=10.0))
    best = min(solve(problem.under(options).plain(), 12, objective="rate", effort=10.0).value
               for options in problem.assignments)
    assert found.value_bound <= best * (1 + 1e-9) and found.value == pytest.approx(best)


def _in_chunks(compute: float, reduce: float, after: float) -> Problem:
    blocks = []
    for count in (1, 2, 4, 8, 16):
        when = {"chunks": str(count)}
        names = [f"{i} of {count}" for i in range(count)]
        for kind, device, duration, of in (("compute", 0, compute / count, None),
                                           ("reduce", 1, reduce / count + 20, "compute"),
                                           ("after", 0, after / count, "reduce")):
            for before, name in pairwise(["", *names]):
                waits = [f"{kind} {before}"] * bool(before) + [f"{of} {name}"] * (of is not None)
                blocks.append(Block(f"{kind} {name}", BlockKind.OTHER, (device,), duration,
                                    after=tuple(map(Dependency, waits)), when=when))
    return Problem("chunks", (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks),
                   choices={"chunks": ("1", "2", "4", "8", "16")})


@pytest.mark.parametrize(("times", "makespan", "chunks"), [((1000, 1000, 100), 1297.5, "8"),
                                                           ((1000, 500, 50), 1054.375, "16"),
                                                           ((500, 1000, 50), 1217.5, "4")])
def test_the_number_of_chunks_is_chosen(times: tuple[float, float, float], makespan: float, chunks: str) -> None:
    found = solve_run(_in_chunks(*times), 1, effort=5.0)
    assert (found.makespan, found.status, found.choices) == (makespan, "optimal", {"chunks": chunks})
    assert all(told["taken"] == (told["option"] == chunks) and told["bound"] >= makespan
               for told in found.solver["options"])


def test_nothing_to_choose_is_the_plain_search() -> None:
    problem = keep_or_recompute(3, choices=False)
    found = solve_run(problem, 3, effort=2.0)
    alone = solve(problem.plain(), 3, effort=2.0)
    assert found.operations == alone.operations and found.makespan_bound == alone.makespan_bound
    assert found.rounds is None and not found.choices and found.solver["options"] == []


def test_runs_repeat() -> None:
    problem = drawn_alternatives(11)
    one, other = (solve_run(problem, 3, effort=1.0, seed=5) for _ in range(2))
    assert one.operations == other.operations and one.choices == other.choices


def _one_block(memory: int, **amounts: int) -> Problem:
    return Problem("tight", (Device("gpu", memory),), tuple(
        Block("F", BlockKind.OTHER, (0,), 2, (0,), (amount,), when={"way": option})
        for option, amount in amounts.items()), choices={"way": tuple(amounts)})


def test_no_assignment_fits() -> None:
    with pytest.raises(Infeasible, match=r"no assignment of the choices fits.*under way = .*gpu") as refusal:
        solve_run(_one_block(1, large=3, larger=4), 2)
    assert not isinstance(refusal.value, NoneFound) and "\n" not in str(refusal.value)


def test_one_assignment_fits() -> None:
    found = solve_run(_one_block(2, large=3, small=2), 2, effort=1.0)
    assert found.choices == {"way": "small"} and found.makespan == 4
    assert found.solver["options"][0] == {"choice": "way", "option": "large", "taken": False, "bound": None,
                                          "makespan": None}


def test_mistakes() -> None:
    problem = _one_block(4, large=3, small=2)
    with pytest.raises(ProblemError, match="at least 1"):
        solve_run(problem, 0)
    with pytest.raises(ValueError, match="objective is 'best'"):
        solve_run(problem, 1, objective="best")
    with pytest.raises(TypeError, match="tries"):
        solve_run(problem, 1, tries=3)  # type: ignore[call-arg]
