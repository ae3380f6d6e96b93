"""Measured timelines turned back into costs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import weft
from tests.support import chain, pipeline, refusal, shape, shows
from weft.runtime.measure.fitting import fit
from weft.runtime.plan.plan import plan_of, save_plan
from weft.runtime.plan.timeline import Measured, Timeline, save_timeline
from weft.solver import Schedule, baseline, load_problem, save_schedule, solve, time_orders
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem


def run_of(schedule: Schedule, true: Problem, seconds_per_unit: float = 1.0,
           noise: Callable[[], float] = lambda: 1.0) -> Timeline:
    """What an executor without cost of its own measures of ``schedule`` where ``true`` says what things take."""
    orders = [[(o.block, o.micro_batch) for o in row] for row in schedule.device_orders]
    measured = []
    for operation in time_orders(true, schedule.micro_batches, orders):
        block, length = true.blocks[operation.block], operation.end - operation.start
        end = operation.start + length * noise()
        measured += [Measured(block.name, operation.micro_batch, rank, operation.start * seconds_per_unit,
                              end * seconds_per_unit) for rank in block.devices]
    return Timeline.of(plan_of(schedule), seconds_per_unit, measured)


def truly(problem: Problem, durations: dict[str, float], lag: float) -> Problem:
    return replace(problem, blocks=tuple(
        replace(block, duration=durations.get(block.name, block.duration),
                after=tuple(replace(item, lag=lag if item.lag else 0) for item in block.after))
        for block in problem.blocks))


def test_durations_and_transfers_are_found_again() -> None:
    planned = pipeline(chain(3), lag=0.5)
    true = truly(planned, {"f0": 1.25, "f1": 0.875, "b1": 2.5, "b2": 1.5}, 0.25)
    found = fit(planned, [run_of(baseline("1f1b", planned, 6), true, 0.001)])
    assert [(row.block, row.planned, row.count, row.spread < 1e-9) for row in found.blocks] == [
        (block.name, block.duration, 6, True) for block in planned.blocks]
    assert {block.name: block.duration for block in found.problem.blocks} == pytest.approx(
        {block.name: block.duration for block in true.blocks})
    assert all(row.fitted == pytest.approx(0.25) for row in found.transfers if row.count)
    assert {(row.source, row.block) for row in found.transfers} == {
        ("f0", "f1"), ("f1", "f2"), ("b2", "b1"), ("b1", "b0")}
    assert sum(row.count > 0 for row in found.transfers) >= 3


def test_noise_is_told_and_the_median_stands() -> None:
    planned, dice = pipeline(chain(2)), random.Random(0)
    schedule = baseline("gpipe", planned, 40)
    runs = [run_of(schedule, planned, noise=lambda: dice.uniform(0.6, 1.0)) for _ in range(3)]
    found = fit(planned, runs)
    assert {fit.block for fit in found.blocks if fit.is_unsteady} == {block.name for block in planned.blocks}
    assert all(row.count == 120 and 0.1 < row.spread < 0.4 for row in found.blocks)
    assert all(row.measured == pytest.approx(0.8 * row.planned, rel=0.1) for row in found.blocks)
    calm = fit(planned, [run_of(schedule, planned)])
    assert not any(fit.is_unsteady for fit in calm.blocks)


def test_a_transfer_that_was_never_seen_is_no_more_than_what_was() -> None:
    """g runs long after its input has come: planned transfers stay where they are possible, and shrink where not."""
    def problem(lag: float) -> Problem:
        return Problem("hidden", (Device("a"), Device("b")), (
            Block("f", BlockKind.FORWARD, (0,), 1), Block("busy", BlockKind.OTHER, (1,), 4),
            Block("g", BlockKind.FORWARD, (1,), 1, after=(Dependency("f", lag),))))
    for planned, fitted in ((2.0, 2.0), (9.0, 3.0)):
        schedule = Schedule(problem(planned), 1, time_orders(problem(planned), 1, [[(0, 0)], [(1, 0), (2, 0)]]), 0.0)
        found = fit(problem(planned), [run_of(schedule, problem(0.5))])
        assert [(row.fitted, row.count) for row in found.transfers] == [(fitted, 0)]


def test_late_ranks_do_not_make_transfers_longer() -> None:
    """Some starts are late for a reason of their own: the transfer is what most of the others show."""
    planned, dice = truly(pipeline(chain(2), lag=2), {"f0": 3}, 2), random.Random(0)
    timeline = run_of(baseline("gpipe", planned, 30), planned)
    late = tuple(o._replace(start=o.start + delay, end=o.end + delay) if o.block == "f1" else o
                 for o in timeline.operations for delay in [dice.choice([0, 0, 0.4, 0.8])])
    found = fit(planned, [replace(timeline, operations=late)])
    row = next(row for row in found.transfers if row.block == "f1")
    assert row.count >= 29 and row.fitted == pytest.approx(2) and row.is_unsteady


def test_the_executors_own_time_between_blocks_is_no_transfer() -> None:
    """g starts long after f has ended, since its device was busy; a little later than it could, for no transfer."""
    problem = Problem("busy", (Device("a"), Device("b")), (
        Block("f", BlockKind.FORWARD, (0,), 1), Block("busy", BlockKind.OTHER, (1,), 4),
        Block("g", BlockKind.FORWARD, (1,), 1, after=(Dependency("f", 0.2),))))
    schedule = Schedule(problem, 1, time_orders(problem, 1, [[(0, 0)], [(1, 0), (2, 0)]]), 0.0)
    timeline = run_of(schedule, problem)
    late = tuple(o._replace(start=o.start + 0.1, end=o.end + 0.1) if o.block == "g" else o for o in timeline.operations)
    found = fit(problem, [replace(timeline, operations=late)])
    assert [(row.fitted, row.count) for row in found.transfers] == [(0.2, 0)]


def test_blocks_on_several_devices_and_busy_links() -> None:
    planned = shape("m", 2, 6)
    true = truly(planned, {block.name: 1.5 * block.duration for block in planned.blocks}, 0)
    found = fit(planned, [run_of(solve(planned, 4, effort=0.2), true)])
    assert [row.measured for row in found.blocks] == [1.5 * block.duration for block in planned.blocks]

    wire = Problem("wire", (Device("a"), Device("b")), (
        Block("f", BlockKind.FORWARD, (0,), 1), Block("g", BlockKind.FORWARD, (1,), 1,
                                                      after=(Dependency("f", 3, "a-b"),))), (Link("a-b", 0, 1),))
    found = fit(wire, [run_of(baseline("greedy", wire, 4), truly(wire, {}, 2))])
    assert [(row.fitted, row.count) for row in found.transfers] == [(2, 4)]  # later ones queue, the first does not


def test_a_block_that_did_not_run_keeps_its_plan() -> None:
    planned = pipeline(chain(2))
    timeline = run_of(baseline("1f1b", planned, 2), planned)
    part = replace(timeline, operations=tuple(o for o in timeline.operations if o.block != "b0"))
    found = fit(planned, [part])
    row = next(row for row in found.blocks if row.block == "b0")
    assert (row.measured, row.count) == (None, 0) and found.problem.blocks == planned.blocks


def test_the_front_door(tmp_path: Path) -> None:
    planned = pipeline(chain(2))
    schedule = baseline("1f1b", planned, 4)
    true, dice = truly(planned, {"f0": 3.0}, 0), random.Random(1)
    save_schedule(schedule, tmp_path / "s.json")
    save_plan(plan_of(schedule), tmp_path / "p.json")
    save_timeline(run_of(schedule, true), tmp_path / "one.json")
    save_timeline(run_of(schedule, true, noise=lambda: dice.uniform(0.5, 1)), tmp_path / "two.json")
    for source in ("s.json", "p.json"):
        printed = shows("fit", tmp_path / source, tmp_path / "one.json", "-o", tmp_path / "m.json")
        assert "3.000" in printed and "warning" not in printed and "written to" in printed
        assert load_problem(tmp_path / "m.json").blocks == true.blocks
    shown = json.loads(shows("fit", tmp_path / "s.json", tmp_path / "two.json", "--json"))
    assert any(row["unsteady"] and row["count"] == 4 for row in shown["blocks"])
    assert "its figure is not steady" in shown["warnings"][0]
    assert "planned and measured" in str(weft.fit(schedule, tmp_path / "one.json"))


def test_timelines_of_other_plans_are_refused(tmp_path: Path) -> None:
    one, other = baseline("1f1b", pipeline(chain(2)), 4), baseline("gpipe", pipeline(chain(2)), 4)
    save_schedule(one, tmp_path / "s.json")
    save_timeline(run_of(other, other.problem), tmp_path / "t.json")
    said = refusal("fit", tmp_path / "s.json", tmp_path / "t.json")
    assert f"t.json: was not measured on {tmp_path / 's.json'}, but on another plan\n" in said
    assert "is neither a plan (weft.plan/2) nor a schedule" in refusal("fit", tmp_path / "t.json", tmp_path / "t.json")
    with pytest.raises(ValueError, match="has block 'f0' on rank 0, which the problem 'mshape-2-infer' does not have"):
        fit(shape("m", 2, None), [run_of(one, one.problem)])
    with pytest.raises(ValueError, match="there is no timeline"):
        fit(one.problem, [])
