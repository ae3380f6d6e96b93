"""What is drawn of a schedule's phases, and of a run that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import pipeline
from tests.support.pictures import rows
from weft.app.draw import draw_schedule
from weft.figures import chart
from weft.figures.data import read_measured, repetend_span
from weft.figures.style import INK
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.timeline import Measured, Timeline, save_timeline
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule, baseline

# -- phases ------------------------------------------------------------------------------------------------------


def test_the_repetend_is_where_every_device_repeats(schedule: Schedule) -> None:
    span = repetend_span(schedule)
    assert span is not None
    last_start = schedule.device_orders[3][0].start  # the last device alternates from its first operation on ...
    fourth = [o for o in schedule.device_orders[0] if o.micro_batch == 4][-1]
    assert span == (last_start, fourth.end)  # ... the first one until it has no forwards left


def test_nothing_is_marked_without_a_repetend(gpipe: Schedule) -> None:
    assert gpipe.repetend is None
    assert repetend_span(gpipe) is None
    assert not [row for row in rows(gpipe, "text center") if row["text"] == "warm-up"]


# -- measured runs -----------------------------------------------------------------------------------------------


def test_a_measured_run_lies_under_its_plan(schedule: Schedule) -> None:
    blocks = schedule.problem.blocks
    run = [(blocks[o.block].name, o.micro_batch, blocks[o.block].devices[0], 7 + 2 * o.start, 7 + 2 * o.end)
           for o in schedule.operations]
    boxes = rows(schedule, "boxes", measured=run)
    planned, measured = ([box for box in boxes if (box["fade"] < 1) is pale] for pale in (True, False))
    assert len(planned) == len(measured) == len(run)
    assert max(box["x2"] for box in planned) == schedule.makespan
    assert max(box["x2"] for box in measured) == pytest.approx(2 * schedule.makespan)
    assert min(box["x"] for box in measured) == 0
    assert min(box["y"] for box in planned) < min(box["y"] for box in measured)
    header = " ".join(row["text"] for row in rows(schedule, "text left", measured=run))
    assert "planned 330 ms, measured 660 ms (+100.0 %)" in header


def test_a_timeline_in_seconds_is_brought_to_the_unit_of_the_plan() -> None:
    run = Timeline("digest", "uniform", 0.5, (Measured("f0", 0, 0, 0.0, 0.5),))
    found = read_measured(run, baseline("gpipe", pipeline([0]), 1))
    assert found.rows == ((Operation(0, 0, 0.0, 1.0),),)


def towers() -> Problem:
    """Two towers, on the devices 0 and 1, that a stage on both brings together and a stage on device 1 follows."""
    def after(*names: str) -> tuple[Dependency, ...]:
        return tuple(map(Dependency, names))

    forward, backward = BlockKind.FORWARD, BlockKind.BACKWARD
    return Problem("towers", (Device("a"), Device("b")), (
        Block("left", forward, (0,), 2, (1,)), Block("right", forward, (1,), 3, (1,)),
        Block("both", forward, (0, 1), 1, (1, 1), after=after("left", "right")),
        Block("end", forward, (1,), 1, (1,), after=after("both")),
        Block("end'", backward, (1,), 2, (-1,), after=after("end")),
        Block("both'", backward, (0, 1), 2, (-1, -1), after=after("end'")),
        Block("left'", backward, (0,), 4, (-1,), after=after("both'")),
        Block("right'", backward, (1,), 6, (-1,), after=after("both'")),
    ), time_unit="ms")


def late(schedule: Schedule) -> Timeline:
    """A run of ``schedule`` in which each rank is as many ms late as its number."""
    blocks = schedule.problem.blocks
    return Timeline.of(plan_of(schedule), 1e-3, [
        Measured(blocks[o.block].name, o.micro_batch, rank, (o.start + rank) / 1e3, (o.end + rank) / 1e3)
        for o in schedule.operations for rank in blocks[o.block].devices])


def test_a_measured_graph_has_each_block_on_each_of_its_ranks_when_it_ran_there() -> None:
    schedule = baseline("greedy", towers(), 3)
    boxes = [box for box in rows(schedule, "boxes", measured=late(schedule)) if box["fade"] == 1]
    lanes = sorted({box["y"] for box in boxes})
    blocks = schedule.problem.blocks
    expected = sorted((lanes[rank], blocks[o.block].name, o.micro_batch, o.start + rank, o.end + rank)
                      for o in schedule.operations for rank in blocks[o.block].devices)
    found = sorted((box["y"], box["block"], box["micro-batch"], box["x"], box["x2"]) for box in boxes)
    assert len(lanes) == 2 and [row[:3] for row in found] == [row[:3] for row in expected]
    assert [row[3:] for row in found] == [pytest.approx(row[3:]) for row in expected]
    assert {box["block"] for box in boxes if box["edge"] == INK} == {"both", "both'"}


@pytest.mark.parametrize("ending", ["svg", "json"])
def test_a_run_of_another_plan_is_refused_in_a_picture_and_a_trace(tmp_path: Path, ending: str) -> None:
    schedule, more = (baseline("greedy", towers(), count) for count in (3, 4))
    for name, run in (("right", schedule), ("more", more)):
        save_timeline(late(run), tmp_path / f"{name}.json")
    draw_schedule(schedule, tmp_path / f"picture.{ending}", measured=tmp_path / "right.json")
    with pytest.raises(ValueError, match=r"more.json: holds block 'both' of micro-batch 3 on rank 0"):
        draw_schedule(schedule, tmp_path / f"none.{ending}", measured=tmp_path / "more.json")
    with pytest.raises(ValueError, match=r"right.json: lacks block 'both' of micro-batch 3 on rank 0"):
        draw_schedule(more, tmp_path / f"none.{ending}", measured=tmp_path / "right.json")
    assert not (tmp_path / f"none.{ending}").exists()


@pytest.mark.parametrize("entry", [("nobody", 0, 0, 0, 1), ("f0", 0, 9, 0, 1), ("f0", 0), 3, {"block": "f0"}])
def test_a_measured_entry_that_does_not_fit_is_named(schedule: Schedule, entry: Any) -> None:
    with pytest.raises(ValueError, match=r"measured\[1\]: "):
        chart(schedule, measured=[("f0", 0, 0, 0.0, 1.0), entry])
