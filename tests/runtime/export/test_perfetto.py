"""The Chrome / Perfetto trace says what the schedule says."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support import chain, laned_schedule, pipeline, schedule_of_jobs, v
from weft.runtime.export.perfetto import save_trace, trace
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.timeline import Measured, Timeline
from weft.solver import Block, BlockKind, Dependency, Device, Problem, Schedule, baseline


def events(value: dict[str, Any], phase: str, process: int = 1) -> list[dict[str, Any]]:
    return [event for event in value["traceEvents"] if event["ph"] == phase and event["pid"] == process]


@pytest.fixture
def schedule() -> Schedule:
    return baseline("zb-v", pipeline(v(4), split=(1, 1), lag=0.5), 8)


def test_every_operation_is_one_slice_on_its_device(schedule: Schedule) -> None:
    blocks = schedule.problem.blocks
    expected = sorted((blocks[o.block].name, o.micro_batch, blocks[o.block].devices[0] + 1, o.start * 1e6,
                       (o.end - o.start) * 1e6) for o in schedule.operations)
    slices = events(trace(schedule), "X")
    assert sorted((e["args"]["block"], e["args"]["micro_batch"], e["tid"], e["ts"], e["dur"])
                  for e in slices) == expected
    assert {e["name"] for e in slices if e["args"]["block"] == "b2"} == {f"I{m}" for m in range(8)}


def test_a_block_on_several_devices_is_a_slice_on_each() -> None:
    both = Block("F0", BlockKind.FORWARD, (0, 1), 2.0, (3, 4))
    problem = Problem("both", (Device("a"), Device("b")), (both,))
    slices = events(trace(baseline("greedy", problem, 2)), "X")
    assert [(e["tid"], e["name"], e["args"]["memory"]) for e in slices] == [(1, "F0", 3), (2, "F0", 4), (1, "F1", 3),
                                                                           (2, "F1", 4)]


def test_slices_of_a_thread_do_not_overlap() -> None:
    problem = pipeline(chain(3), forward=0.1 / 3, backward=0.2 / 3)
    slices = events(trace(baseline("1f1b", problem, 20)), "X")
    for thread in (1, 2, 3):
        row = sorted((round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in slices if e["tid"] == thread)
        assert len(row) == 40
        assert all(ts + dur <= later for (ts, dur), (later, _) in pairwise(row))


def test_threads_bear_the_names_of_the_devices(schedule: Schedule) -> None:
    names = {e["tid"]: e["args"]["name"] for e in events(trace(schedule), "M") if e["name"] == "thread_name"}
    assert names == {1: "gpu0", 2: "gpu1", 3: "gpu2", 4: "gpu3"}


def test_counters_reach_the_peak_memory_and_end_empty(schedule: Schedule) -> None:
    counters = events(trace(schedule), "C")
    for device in range(4):
        levels = [e["args"][schedule.problem.memory_unit] for e in counters if e["name"] == f"memory of gpu{device}"]
        assert max(levels) == schedule.peak_memory[device]
        assert levels[-1] == 0


def test_arrows_join_each_block_to_those_that_wait_on_other_devices(schedule: Schedule) -> None:
    value = trace(schedule)
    leave, arrive = ({e["id"]: e for e in events(value, phase)} for phase in "sf")
    blocks = schedule.problem.blocks
    crossing = sum(blocks[i].devices != blocks[j].devices for i, j, _ in schedule.problem.dependencies())
    assert crossing > 0
    assert len(leave) == len(events(value, "s")) == crossing * schedule.micro_batches
    assert leave.keys() == arrive.keys()
    slices = events(value, "X")
    for number, start in leave.items():
        ends = [sum(e["tid"] == arrow["tid"] and e["ts"] < arrow["ts"] < e["ts"] + e["dur"] for e in slices)
                for arrow in (start, arrive[number])]
        assert ends == [1, 1]  # each end inside one slice
        assert start["tid"] != arrive[number]["tid"]
        assert start["ts"] < arrive[number]["ts"]


def test_an_arrow_across_micro_batches_leads_to_the_later_one() -> None:
    blocks = (Block("F0", BlockKind.FORWARD, (0,), 1.0),
              Block("F1", BlockKind.FORWARD, (1,), 1.0, after=(Dependency("F0", distance=1),)))
    value = trace(baseline("greedy", Problem("late", (Device("a"), Device("b")), blocks), 3))
    assert len(events(value, "s")) == 2  # micro-batch 0 of F1 has nothing to wait for


def test_a_measured_run_is_a_second_process_on_the_same_clock() -> None:
    schedule = baseline("1f1b", pipeline(chain(2)), 2)
    run = Timeline("digest", "uniform", 0.25, (Measured("f0", 0, 0, 0.0, 0.5), Measured("f1", 0, 1, 0.5, 0.75)))
    value = trace(schedule, run)
    assert [(e["tid"], e["name"], e["ts"], e["dur"]) for e in events(value, "X", process=2)] \
        == [(1, "F0", 0.0, 2e6), (2, "F0", 2e6, 1e6)]
    assert len(events(value, "X")) == len(schedule.operations)


def test_a_run_of_another_plan_is_refused() -> None:
    run = Timeline("digest", "other", 1.0, (Measured("nobody", 0, 0, 0.0, 1.0),))
    with pytest.raises(ValueError, match=r"'nobody' on rank 0.*another plan"):
        trace(baseline("1f1b", pipeline(chain(2)), 2), run)


@pytest.mark.parametrize(("unit", "microseconds"), [("s", 2e6), ("ms", 2e3), ("us", 2.0), ("step", 2e3)])
def test_times_are_in_microseconds(unit: str, microseconds: float) -> None:
    problem = Problem("one", (Device("a"),), (Block("F0", BlockKind.FORWARD, (0,), 2),), time_unit=unit)
    (event,) = events(trace(baseline("greedy", problem, 1)), "X")
    assert event["dur"] == microseconds


def test_the_file_is_the_trace(schedule: Schedule, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    save_trace(schedule, path)
    assert json.loads(path.read_text(encoding="utf-8")) == trace(schedule)


def test_a_missing_folder_is_an_os_error(schedule: Schedule, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        save_trace(schedule, tmp_path / "missing" / "trace.json")


def test_no_torch_and_no_chart_library_is_loaded() -> None:
    code = ("import sys, weft.runtime.export.perfetto; "
            "print([m for m in ('torch', 'altair', 'ortools') if m in sys.modules])")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_lanes_are_threads_of_their_devices_process() -> None:
    schedule = laned_schedule(2, 2, 2, copy=5)
    value = trace(schedule)
    processes = {e["pid"]: e["args"]["name"] for e in value["traceEvents"] if e["name"] == "process_name"}
    assert processes == {1: "weft plan: gpu 0", 7: "weft plan: gpu 1"}
    threads = {e["args"]["name"]: e["pid"] for e in value["traceEvents"] if e["name"] == "thread_name"}
    assert threads == {"gpu 0": 1, "gpu 0 network": 1, "gpu 0 copies": 1, "gpu 1": 7, "gpu 1 network": 7,
                       "gpu 1 copies": 7}
    named = {(e["pid"], e["tid"]) for e in value["traceEvents"] if e["name"] == "thread_name"}
    assert {(e["pid"], e["tid"]) for e in value["traceEvents"] if e["ph"] in "Xsf"} <= named
    assert {e["name"] for e in value["traceEvents"] if e["ph"] == "C"} == {"memory of gpu 0", "memory of gpu 1"}
    run = Timeline.of(plan_of(schedule), 1e-3, [Measured("send F1", 0, 1, 0.0, 0.008),
                                                Measured("O1", 0, 1, 0.0, 0.005)])
    ran = [e for e in trace(schedule, run)["traceEvents"] if e["ph"] == "X" and e["pid"] in (2, 8)]
    assert sorted((e["pid"], e["tid"], e["name"]) for e in ran) == [(8, 5, "O0"), (8, 6, "O0")]


def test_slices_of_jobs_say_whose_they_are() -> None:
    schedule = schedule_of_jobs()
    slices = events(trace(schedule), "X")
    names = {(e["name"], e["args"]["block"], e["args"]["micro_batch"], e["args"].get("class")) for e in slices}
    assert {("F3 chat", "A0", 3, "long"), ("F1 search", "B1", 1, None)} <= names
    run = Timeline.of(plan_of(schedule), 1e-3, [Measured("A1", 3, 1, 0.0, 0.02)])
    ran, = events(trace(schedule, run), "X", 2)
    assert (ran["name"], ran["tid"]) == ("F3 chat", 2)
