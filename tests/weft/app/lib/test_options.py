"""How the options of a search travel: as one object, as keywords, as both."""

from __future__ import annotations

import inspect
import io
import time
from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.support.builders import chain, pipeline
from weft.app.lib.options import OptionsTaken, SearchOptions, command_began, forewarn, heard_by
from weft.cli.lib.progress import Waiting
from weft.solver.control.clock import OutOfTime, checkpoint, watching
from weft.solver.feasibility.infeasible import NoneFound


def test_keywords_go_before_the_fields_of_options() -> None:
    options = SearchOptions(effort=2.0, seed=7)
    found = OptionsTaken().given(options, {"seed": 8, "workers": 2})
    assert found.settings == {"time_limit": 60.0, "effort": 2.0, "seed": 8, "workers": 2}
    assert OptionsTaken(time_limit=30.0).given(None, {}).time_limit == 30.0
    assert OptionsTaken(time_limit=30.0).given(options, {}).time_limit == 60.0


def test_the_time_limit_counts_from_the_call_or_from_the_commands_start() -> None:
    options = SearchOptions(time_limit=5.0, started=0.0)
    assert OptionsTaken().given(options, {}).left > 4.0
    with command_began(time.monotonic() - 3.0):
        assert OptionsTaken().given(options, {}).left < 2.1


@pytest.mark.parametrize(("name", "value"), [
    ("time_limit", -1.0), ("time_limit", float("nan")), ("time_limit", "5"), ("time_limit", None), ("effort", -0.1),
    ("effort", True), ("seed", -1), ("seed", 2**31), ("seed", 1.0), ("workers", 0), ("workers", "2")])
def test_a_value_that_means_nothing_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value!r}, it must be"):
        weft.solve(pipeline(chain(2)), micro_batches=2, **{name: value})
    if value is not None:
        with pytest.raises(ValueError, match=f"{name} is {value!r}, it must be"):
            weft.solve(pipeline(chain(2)), micro_batches=2, options=SearchOptions(**{name: value}))


@pytest.mark.parametrize("function", [weft.solve, weft.compare, weft.explain, weft.latency, weft.sweep, weft.demo,
                                      weft.place])
def test_every_search_takes_both_and_no_other_keyword(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert "options" in parameters and len(parameters) <= 8
    with pytest.raises(TypeError, match="unexpected keyword argument 'tim_limit'"):
        function(pipeline(chain(2)), tim_limit=3.0)


def test_options_and_keywords_give_the_same_schedule() -> None:
    problem = pipeline(chain(2))
    options = weft.SearchOptions(effort=0.05, seed=3)
    one, other = (weft.solve(problem, micro_batches=3, options=options),
                  weft.solve(problem, micro_batches=3, effort=0.05, seed=3))
    assert one.operations == other.operations and one.solver["seed"] == other.solver["seed"] == 3


def test_preparation_that_time_ends_found_nothing_and_a_watch_around_it_ends_it_too() -> None:
    late = SearchOptions(time_limit=1.0, started=time.monotonic() - 9.0)
    with pytest.raises(NoneFound, match="too short to make a placement"), late.preparing():
        checkpoint()
    with pytest.raises(OutOfTime), watching(lambda: True), SearchOptions(time_limit=3000).preparing():
        checkpoint()


def test_a_share_is_one_of_the_effort_where_that_ends_the_search() -> None:
    assert SearchOptions(time_limit=8.0, effort=4.0).limited(0.25).effort == 1.0
    options = SearchOptions(time_limit=8.0)
    assert options.limited(1.0) == options and options.limited(0.5).time_limit == pytest.approx(4.0, abs=0.5)


def test_only_the_innermost_listener_hears_and_only_inside() -> None:
    outer: list[str] = []
    inner: list[str] = []
    with heard_by(outer.append):
        with heard_by(inner.append):
            forewarn(10**9, 0.5, 60.0)
        forewarn(10, 0.5, 60.0)  # short enough: nothing to say
        forewarn(10**9, 0.0, 60.0)
    forewarn(10**9, 0.0, 60.0)
    assert len(inner) == len(outer) == 1
    assert inner[0].startswith("   0.5 s  1000000000 operations") and "longer than the limit of 60 s" in inner[0]


def test_a_closed_terminal_ends_no_search() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    with Waiting(Gone()) as waiting:
        waiting.end()
        forewarn(10**9, 0.0, 60.0)
