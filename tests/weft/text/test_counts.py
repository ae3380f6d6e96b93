"""How many there are, in words."""

from __future__ import annotations

from weft.solver.problem import BlockKind, Device
from weft.solver.step.search import solve
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run
from weft.text.counts import devices_text, micro_batches_text, run_text, unit_text


def test_micro_batches_are_told_by_job_and_class() -> None:
    jobs = WideProblem("jobs", (Device("gpu"),), (
        WideBlock("a", BlockKind.OTHER, (0,), {"s": 1, "l": 2}, job="one"),
        WideBlock("b", BlockKind.OTHER, (0,), 1, job="two")))
    assert run_text(Run.of(jobs, {"one": ["s", "l"] * 2, "two": 2})) == (
        "4 micro-batches of one (2 s, 2 l) and 2 micro-batches of two in 2 rounds")


def test_steps_and_pairs_are_not_called_micro_batches() -> None:
    problem = WideProblem("p", (Device("gpu"),), (WideBlock("a", BlockKind.OTHER, (0,), 1),)).plain()
    schedule = solve(problem, 2, effort=0.1)
    assert (micro_batches_text(schedule), unit_text(schedule)) == ("2 micro-batches", "micro-batch")
    steps, pairs = (schedule.with_solver(unit=unit) for unit in ("step", "pair"))
    assert (micro_batches_text(steps), unit_text(steps)) == ("2 steps", "step")
    assert (micro_batches_text(pairs), unit_text(pairs)) == ("2 pairs of micro-batches", "pair of micro-batches")


def test_lanes_are_told_beside_devices() -> None:
    problem = WideProblem("p", (Device("gpu"), Device("nic", lane_of="gpu")), (
        WideBlock("a", BlockKind.OTHER, (0,), 1), WideBlock("b", BlockKind.OTHER, (1,), 1))).plain()
    assert devices_text(problem) == "1 device and 1 lane"
