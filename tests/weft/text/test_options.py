"""Options taken and not, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.builders import chain, pipeline
from weft.solver.baselines import baseline
from weft.solver.schedule import Schedule
from weft.text.options import option_lines, taken_text


def schedule(**other: Any) -> Schedule:
    made = baseline("1f1b", pipeline(chain(2), forward=1, backward=2), 3)
    options = [{"choice": "gpu1", "option": "recompute", "taken": True, "bound": 12.0, "makespan": 12.0},
               {"choice": "gpu1", "option": "keep", "taken": False, **other}]
    choices = {"gpu1": "recompute", "gpu2": "keep", "gpu3": "recompute"}
    return replace(made, choices=choices).with_solver(options=options)


def test_options_are_told_together() -> None:
    assert taken_text({"gpu1": "recompute", "gpu2": "keep", "gpu3": "recompute"}) == "recompute: gpu1, gpu3; keep: gpu2"
    assert option_lines(replace(schedule(), choices={})) == []


def test_each_option_not_taken_says_what_is_proven_and_what_was_found() -> None:
    base = schedule().makespan
    first, second, *others = option_lines(schedule(bound=base * 1.1, makespan=base * 1.25))
    assert first == "Options taken: recompute: gpu1, gpu3; keep: gpu2."
    assert second == "What each other option would cost, the rest chosen anew:"
    assert others == [f"  gpu1: keep  at least {base * 1.1:.5g} s (+10.0%), {base * 1.25:.5g} s (+25.0%) found"]
    assert option_lines(schedule(bound=base * 0.9, makespan=None))[-1] == (
        f"  gpu1: keep  at least {base * 0.9:.5g} s (−10.0%)")
    assert option_lines(schedule(bound=base, makespan=base))[-1] == (
        f"  gpu1: keep  at least {base:.5g} s (no more), {base:.5g} s (no more) found")
    assert option_lines(schedule(bound=0.0, makespan=None))[-1] == "  gpu1: keep  nothing is known"
    assert option_lines(schedule(bound=None, makespan=None))[-1] == "  gpu1: keep  no schedule fits"
