"""Micro-batches that arrive when the plan has them begin.

Run as a program (``python -m tests.runtime.execute.test_pacing FOLDER ...``), this file is one rank of what its tests
launch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.ranks import finished
from weft.runtime import Plan, ReplayOptions, Session, plan_of, save_plan
from weft.runtime.execute.executor import Parcel
from weft.runtime.execute.pacing import Paced, latencies
from weft.runtime.plan.program import StageWork, Work
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.replay.replay import replay
from weft.solver import Block, BlockKind, Dependency, Device, Operation, Problem, Schedule

PERIOD, COUNT = 40, 8


def plan(unit: str = "ms") -> Plan:
    """Two towers that meet, on three devices; a micro-batch every 40 ms, though the devices could take one every 20."""
    problem = Problem("arrivals", (Device("a"), Device("b"), Device("c")), (
        Block("left", BlockKind.FORWARD, (0,), 10), Block("right", BlockKind.FORWARD, (1,), 20),
        Block("both", BlockKind.FORWARD, (2,), 15, after=(Dependency("left"), Dependency("right"))),
    ), time_unit=unit)
    operations = [Operation(block, m, PERIOD * m + start, PERIOD * m + end) for m in range(COUNT)
                  for block, start, end in ((0, 5, 15), (1, 0, 20), (2, 20, 35))]
    return plan_of(Schedule(problem, COUNT, tuple(operations), 0.0))


class Clock:
    """A session whose time passes in sleeps only."""

    def __init__(self) -> None:
        self.time, self.said = 100.0, list[str]()

    def now(self) -> float:
        return self.time

    def doing(self, text: str) -> None:
        self.said.append(text)


class Waiting:
    """A worker that notes when it is asked to wait."""

    reads = keeps = layout = message = task = None

    def __init__(self, clock: Clock) -> None:
        self.clock, self.prepared = clock, list[tuple[str, float]]()

    def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None]:
        return lambda results: self.prepared.append((str(work), self.clock.time))


def test_only_what_begins_a_micro_batch_waits_for_it_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    worker = Waiting(clock)
    monkeypatch.setattr("weft.runtime.ranks.stopwatch.sleep_until", lambda moment, now: setattr(clock, "time", moment))
    paced = Paced(cast(Any, worker), plan(), cast(Session, clock), 1e-1, lambda: 100.0)
    for work in (StageWork(1, "F", 0), StageWork(0, "F", 0), StageWork(2, "F", 0), StageWork(0, "F", 1),
                 StageWork(2, "F", 1), StageWork(1, "F", 1)):
        wait = paced.prepare(work)
        assert wait is not None
        wait({})
    assert worker.prepared == [("1F0", 100.0), ("0F0", 100.0), ("2F0", 100.0), ("0F1", 104.0), ("2F1", 104.0),
                               ("1F1", 104.0)]
    assert clock.said == ["waiting for micro-batch 1 to arrive, for 0F1"] * 8  # twice a second, for 4 s


def test_a_latency_is_from_arrival_to_the_last_end_on_any_rank() -> None:
    made = plan()
    run = [Measured(name, m, rank, (PERIOD * m + start) / 1e3, (PERIOD * m + end + 3 * m) / 1e3)
           for m in range(COUNT) for name, rank, start, end in (("left", 0, 0, 10), ("right", 1, 0, 20),
                                                               ("both", 2, 20, 35))]
    found = latencies(Timeline.of(made, 1e-3, run), made)
    assert found.planned == pytest.approx([0.035] * COUNT)
    assert found.measured == pytest.approx([0.035 + 0.003 * m for m in range(COUNT)])
    assert "most 0.056 s; planned 0.035 s" in str(found)


def test_a_plan_without_a_unit_of_time_cannot_be_paced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    save_plan(plan("step"), tmp_path / "plan.json")
    with pytest.raises(ValueError, match=r"--paced needs a plan in s, ms or us; .*plan\.json is in 'step'"):
        replay(tmp_path / "plan.json", ReplayOptions(stages="a:b", paced=True))


@pytest.mark.slow
def test_emulated_micro_batches_come_when_planned_or_all_at_once(tmp_path: Path) -> None:
    save_plan(plan(), tmp_path / "plan.json")
    starts = {}
    for paced in (True, False):
        ended = finished(3, __name__, str(tmp_path), *["paced"] * paced)
        rows, measured = json.loads(ended[0].output)
        assert len(rows) == 3 * COUNT
        assert measured is None if not paced else len(measured) == COUNT and min(measured) > 0
        starts[paced] = [start for block, _, _, start, _ in rows if block == "right"]
        assert starts[paced] == sorted(starts[paced])
    last = PERIOD * (COUNT - 1) / 1e3
    assert starts[True][-1] >= 0.75 * last  # if the first one was late, it seems as much earlier


def rank_main() -> None:
    result = replay(Path(sys.argv[1]) / "plan.json", ReplayOptions(emulate=True, paced="paced" in sys.argv))
    if result is not None:
        print(json.dumps([result.timeline.operations, result.latencies and result.latencies.measured]))


if __name__ == "__main__":
    rank_main()
