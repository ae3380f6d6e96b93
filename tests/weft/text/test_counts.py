"""How many there are, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.builders import chain, pipeline
from weft.solver import BlockKind, Device, Schedule, baseline, solve
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Run
from weft.text.counts import devices_text, micro_batches_text, option_lines, run_text, taken_text, unit_text


def test_micro_batches_are_told_by_job_and_class() -> None:
    jobs = Problem("jobs", (Device("gpu"),), (
        Block("a", BlockKind.OTHER, (0,), **per_class(duration={"s": 1, "l": 2}), job="one"),
        Block("b", BlockKind.OTHER, (0,), 1, job="two")))
    assert run_text(Run.of(jobs, {"one": ["s", "l"] * 2, "two": 2})) == (
        "4 micro-batches of one (2 s, 2 l) and 2 micro-batches of two in 2 rounds")


def test_steps_and_pairs_are_not_called_micro_batches() -> None:
    problem = Problem("p", (Device("gpu"),), (Block("a", BlockKind.OTHER, (0,), 1),)).plain()
    schedule = solve(problem, 2, effort=0.1)
    assert (micro_batches_text(schedule), unit_text(schedule)) == ("2 micro-batches", "micro-batch")
    steps, pairs = (schedule.with_solver(unit=unit) for unit in ("step", "pair"))
    assert (micro_batches_text(steps), unit_text(steps)) == ("2 steps", "step")
    assert (micro_batches_text(pairs), unit_text(pairs)) == ("2 pairs of micro-batches", "pair of micro-batches")


def test_lanes_are_told_beside_devices() -> None:
    problem = Problem("p", (Device("gpu"), Device("nic", lane_of="gpu")), (
        Block("a", BlockKind.OTHER, (0,), 1), Block("b", BlockKind.OTHER, (1,), 1))).plain()
    assert devices_text(problem) == "1 device and 1 lane"


def schedule(**other: Any) -> Schedule:
    made = baseline("1f1b", pipeline(chain(2), forward=1, backward=2), 3)
    options = [{"choice": "gpu1", "option": "recompute", "taken": True, "bound": 12.0, "makespan": 12.0},
               {"choice": "gpu1", "option": "keep", "taken": False, **other}]
    choices = {"gpu1": "recompute", "gpu2": "keep", "gpu3": "recompute"}
    return replace(made, choices=choices).with_solver(options=options)


def test_options_are_told_together() -> None:
    assert taken_text({"gpu1": "recompute", "gpu2": "keep", "gpu3": "recompute"}) == "recompute: gpu1, gpu3; keep: gpu2"
    assert taken_text({"chunks": "8", "gpu1": "keep"}) == "chunks: 8; gpu1: keep"
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
