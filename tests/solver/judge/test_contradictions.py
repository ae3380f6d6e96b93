"""Numbers of one file that contradict each other are refused, whatever they are about."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

import weft
from tests.support.alternatives import drawn_alternatives
from tests.support.cut_specs import drawn_spec
from weft.app.lib.judged import verdict
from weft.solver import Infeasible, Schedule
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json

_BELOW, _ABOVE = 0.5, 2.0


def _solved(told: str, inputs: Iterable[Any], **options: Any) -> list[Schedule]:
    """Those of ``inputs`` that can be solved, where something is ``told`` of what was not taken."""
    found = []
    for one in inputs:
        with suppress(Infeasible):
            found.append(weft.solve(one, effort=0.1, time_limit=3000, **options))
    return [schedule for schedule in found if schedule.solver.get(told)]


@pytest.fixture(scope="module")
def placed() -> list[Schedule]:
    """The best placements of some small specs, with what is said of the others."""
    return _solved("alternatives", (drawn_spec(number, "full", count=4) for number in range(4)))


@pytest.fixture(scope="module")
def chosen() -> list[Schedule]:
    """The best options of some small problems, with what is said of the others."""
    return _solved("options", map(drawn_alternatives, range(6)), micro_batches=3)


def _entry(key: str, number: int, changed: dict[str, Any]) -> Callable[[dict[str, Any]], object]:
    """Puts ``changed`` in the place of an entry of what is listed under ``key``."""
    def change(told: dict[str, Any]) -> None:
        told[key][number] = changed

    return change


def _faults(schedule: Schedule, change: Callable[[dict[str, Any]], object]) -> list[str]:
    value = json.loads(json.dumps(schedule_to_json(schedule)))
    changed = copy.deepcopy(value)
    change(changed["solver"])
    return verdict(schedule_from_json(changed)).faults


def test_what_weft_states_does_not_contradict_itself(placed: list[Schedule], chosen: list[Schedule]) -> None:
    assert len(placed) > 1
    assert len(chosen) > 1
    for schedule in (*placed, *chosen):
        assert verdict(schedule).faults == []


def test_a_placement_better_than_the_one_chosen_or_than_its_bound_is_refused(placed: list[Schedule]) -> None:
    for schedule in placed:
        for number, entry in enumerate(schedule.solver["alternatives"]):
            if entry["verdict"] not in ("none", "memory"):
                changed = {**entry, "makespan": schedule.makespan * _BELOW}
                assert _faults(schedule, _entry("alternatives", number, changed))
            if entry["makespan"] is not None:
                changed = {**entry, "bound": entry["makespan"] * _ABOVE}
                assert _faults(schedule, _entry("alternatives", number, changed))


def test_an_option_better_than_the_one_taken_or_than_its_bound_is_refused(chosen: list[Schedule]) -> None:
    for schedule in chosen:
        for number, entry in enumerate(schedule.solver["options"]):
            wrong: list[dict[str, float | None]] = [{"makespan": schedule.makespan * _BELOW}]
            wrong += [{"bound": None}] if entry["makespan"] is not None else []
            wrong += [{"bound": entry["makespan"] * _ABOVE}] if entry["makespan"] is not None else []
            wrong += [{"makespan": schedule.makespan * _ABOVE, "bound": 0.0}, {"makespan": None}] * entry["taken"]
            for part in wrong:
                changed = {**entry, **part}
                assert _faults(schedule, _entry("options", number, changed)), part


@pytest.mark.parametrize("key", ["steady_bound", "repetend_period_bound", "repetend_period", "bound_over_placements",
                                 "assignments", "searched", "placements"])
def test_one_number_of_two_is_not_changed_alone(placed: list[Schedule], chosen: list[Schedule], key: str) -> None:
    """Bounds are raised above what was found, what was found is put below its bound, counts are doubled."""
    times = 0.1 if key == "repetend_period" else 20
    has = [schedule for schedule in (*placed, *chosen) if schedule.solver.get(key)]
    assert has
    for schedule in has:
        assert _faults(schedule, lambda told: told.__setitem__(key, told[key] * times)), schedule.problem.name


def test_no_moment_of_the_search_knew_better(placed: list[Schedule], chosen: list[Schedule]) -> None:
    draw = random.Random(0)
    for schedule in (*placed, *chosen):
        for column, times in ((1, _BELOW), (2, _ABOVE)):
            def change(told: dict[str, Any], column: int = column, times: float = times,
                       least: float = schedule.makespan) -> None:
                draw.choice(told["history"])[column] = least * times

            assert _faults(schedule, change)
