"""The model of all blocks refutes periods to the tick, and what it finds instead is offered."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.support.builders import chain, pipeline, v
from weft.solver.cpsat.budget import Budget, Slice
from weft.solver.period.bracket import Bracket
from weft.solver.period.climb import Doubling, Once
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.params import PARAMETERS
from weft.solver.period.refuters import whole_model
from weft.solver.period.refuters.whole_model import WholeModel
from weft.solver.period.search import find_period
from weft.solver.period.technique import Task
from weft.solver.problem import Problem
from weft.solver.ticks import TickProblem


def bracket_of(problem: Problem) -> Bracket:
    instance = TickProblem.of(problem)
    return Bracket(instance, Fraction(instance.heaviest_load), one_at_a_time(instance))


def test_what_is_impossible_is_refuted_and_what_is_found_is_offered() -> None:
    problem = pipeline(v(2), forward=2, backward=3, memory=3)
    least = int(find_period(TickProblem.of(problem), bracket_of(problem).best, Budget(deterministic=5.0)).best.period)
    bracket = bracket_of(problem)
    assert bracket.best.period > least + 1
    refuter = WholeModel(bracket, Task(least))
    assert refuter.refutes([least - 1, least], Slice(Budget(), 60.0, 60.0)) == [least - 1]
    assert bracket.best.period == least and bracket.best_by == "whole-model"


def test_it_is_asked_once_or_in_doubling_steps() -> None:
    bracket = bracket_of(pipeline(chain(2), memory=2))
    assert isinstance(WholeModel(bracket, Task(3)).steps(), Doubling)
    assert isinstance(WholeModel(bracket, Task(3), once=True).steps(), Once)


def test_large_models_are_not_climbed_with(monkeypatch: pytest.MonkeyPatch) -> None:
    bracket = bracket_of(pipeline(chain(2), memory=2))
    for most, offered in ((4, True), (3, False)):
        monkeypatch.setattr(whole_model, "PARAMETERS", replace(PARAMETERS, most_blocks=most))
        assert (WholeModel.of(bracket, Task(3)) is not None) == offered
