"""Lanes on real ranks: their orders, their time, and faults on one of them.

Run as a program (``python -m tests.runtime.execute.test_lanes CASE``), this file is one rank of what its tests launch.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from itertools import pairwise

import pytest
import torch

from tests.support import PATIENCE, laned_schedule, launch_forked
from tests.support.threads import Tracer, expected, run_in_threads
from weft.runtime import Boundary, Plan, plan_of
from weft.runtime.execute.emulate import Emulation
from weft.runtime.execute.executor import Executor, Parcel, Task, Worker
from weft.runtime.plan.program import BlockWork, Work
from weft.runtime.ranks.launch import Ended
from weft.runtime.ranks.session import join
from weft.runtime.replay.run import run_emulated
from weft.solver import Block, BlockKind, Dependency, Device, Problem, Schedule, time_orders

SLOW = 5.0  # how many times as long a second is here: so what threads cost is little of it


def launch(case: str, ranks: int) -> list[Ended]:
    return launch_forked(ranks, [sys.executable, "-m", __name__, case])


@pytest.mark.slow
def test_two_ranks_with_lanes_keep_the_plans_orders_and_its_time() -> None:
    ended = launch("emulate", 2)
    assert [end.code for end in ended] == [0, 0], ended
    rows = json.loads(ended[0].output)
    schedule = laned_schedule(copy=5)
    problem, early = schedule.problem, 1e-3  # a sleep may be cut a little short, never by a millisecond
    when = {(block, m, rank): (start, end) for block, m, rank, start, end in rows}
    ranks = plan_of(schedule).vocabulary.ranks
    for device, row in enumerate(schedule.device_orders):
        spans = [when[problem.blocks[o.block].name, o.micro_batch, ranks.of_device[device]] for o in row]
        assert all(one[1] <= other[0] + early for one, other in pairwise(spans))
    for (name, m, rank), (start, end) in when.items():
        block = problem.blocks[problem.index[name]]
        assert end - start >= block.duration * SLOW * 1e-3 - early
        for wait in block.after:
            assert start >= min(end for (b, k, _), (_, end) in when.items() if (b, k) == (wait.block, m)) - early, rank
    assert len(when) == len(rows)
    measured = max(end for _, end in when.values())
    planned = schedule.makespan * SLOW * 1e-3
    assert planned - early * len(schedule.operations) <= measured
    # A busy machine makes any of them late, but not all: a second is as long as it should be.
    assert min((end - start) / problem.blocks[problem.index[name]].duration for (name, *_), (start, end) in when.items()
               if problem.blocks[problem.index[name]].duration) <= 2 * SLOW * 1e-3


def emulate() -> None:
    with join(PATIENCE) as session:
        result = run_emulated(plan_of(laned_schedule(copy=5)), session, SLOW * 1e-3)
    if result is not None:
        print(json.dumps(result.timeline.operations))


class _Faulty(Emulation):
    """An emulation in which one block does something else."""

    def __init__(self, plan: Plan, now: Callable[[], float], what: Callable[[], None]) -> None:
        super().__init__(plan, 1e-3, now)
        self.what = what

    def task(self, work: Work) -> Task:
        planned = super().task(work)

        def run(results: Mapping[Work, Parcel]) -> Parcel:
            if work == BlockWork("send F1", 1):
                self.what()
            return planned(results)

        return run


def fail() -> None:
    raise ValueError("the cable is out")


def hang() -> None:
    time.sleep(2 * PATIENCE)


def failing(results: Mapping[Work, Parcel]) -> Parcel:
    raise ValueError("the cable is out")


@pytest.mark.slow
@pytest.mark.parametrize("case", ["raise", "hang"])
def test_a_fault_on_a_lane_ends_the_run_with_a_sentence(case: str) -> None:
    ended = launch(case, 2)
    assert [end.code for end in ended] == [1, 1] and not any(end.late for end in ended)
    said = [end.errors for end in ended]
    if case == "raise":
        assert 'rank 1: ValueError while running "send F1"[1] (micro-batch 1), on gpu 1 network: the cable is out' in (
            said[1])
        assert "because rank 1 gave up" in said[0], said
    else:  # both wait as long: the one that is first tells the other
        first = 0 if "rank 0: gave up after" in said[0] else 1
        assert f"rank {first}: gave up after" in said[first], said
        assert f"because rank {first}" in said[1 - first], said
        assert 'running "send F1"[1] (micro-batch 1)' in said[0] + said[1]


def faulty(what: Callable[[], None], timeout: float) -> None:
    plan = plan_of(laned_schedule())
    with join(timeout) as session:
        worker = _Faulty(plan, session.now, what if session.rank == 1 else lambda: None)
        Executor(plan, session, worker).run()


# -- in threads ----------------------------------------------------------------------------------------------------


def test_lanes_run_beside_each_other_and_memory_is_waited_for() -> None:
    """A copy that gives memory back, on a lane that is late: the next forward waits for it, the network does not."""
    problem = Problem("late", (Device("gpu", 1), Device("copies", lane_of="gpu"), Device("network", lane_of="gpu")), (
        Block("F", BlockKind.FORWARD, (0,), 1, (1,)),
        Block("O", BlockKind.OTHER, (1,), 1, (-1,), after=(Dependency("F"),)),
        Block("N", BlockKind.OTHER, (2,), 1, after=(Dependency("F"),)),
    ))
    orders = [[(b, 0), (b, 1)] for b in range(3)]
    operations = time_orders(problem, 2, orders)
    waited = [o._replace(start=o.start + o.micro_batch, end=o.end + o.micro_batch) for o in operations]
    plan = plan_of(Schedule(problem, 2, tuple(waited), 0.0))
    ran: list[tuple[str, float, float]] = []
    sent = threading.Event()

    class Late(Tracer):
        def prepare(self, work: Work) -> Callable[[Mapping[Work, Parcel]], None]:
            return lambda results: None

        def task(self, work: Work) -> Task:
            def run(results: Mapping[Work, Parcel]) -> Parcel:
                begun = time.monotonic()
                if str(work) == "O[0]":
                    assert sent.wait(60)
                ran.append((str(work), begun, time.monotonic()))
                if str(work) == "N[0]":
                    sent.set()
                return self.compute(work, results)

            return run

    tracer = Late(plan, 0)
    run_in_threads(plan, lambda rank: tracer)
    assert tracer.found == expected(plan, 0)
    times = {name: (begun, ended) for name, begun, ended in ran}
    assert times["F[1]"][0] >= times["O[0]"][1] >= times["N[0]"][1]


def test_a_fault_of_a_lane_is_raised_and_others_stop() -> None:
    plan = plan_of(laned_schedule())

    class Broken(Tracer):
        def task(self, work: Work) -> Task:
            if work == BlockWork("send B1", 1):
                return failing
            return super().task(work)

    with pytest.raises(ValueError, match="the cable is out"):
        run_in_threads(plan, lambda rank: Broken(plan, rank))
    deadline = time.monotonic() + 60
    while any(thread.name.startswith("weft lane") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_lane_of_a_gpu_is_a_stream() -> None:
    """A result that one stream makes and others read is whole when they do."""
    from typing import Any, cast

    from weft.runtime.execute.executor import rank_table
    from weft.runtime.ranks.session import Session
    from weft.runtime.ranks.watch import Unwatched
    from weft.runtime.transports.one_host.one_sided import OneSided

    problem = Problem("streams", (Device("gpu"), Device("copies", lane_of="gpu")), (
        Block("a", BlockKind.OTHER, (0,), 1), Block("b", BlockKind.OTHER, (1,), 1, after=(Dependency("a"),)),
        Block("c", BlockKind.OTHER, (0,), 1, after=(Dependency("b"),))))
    plan = plan_of(Schedule(problem, 4, time_orders(problem, 4, [
        [(0, 0), (0, 1), (2, 0), (0, 2), (2, 1), (0, 3), (2, 2), (2, 3)], [(1, m) for m in range(4)]]), 0.0))
    streams: dict[str, set[int]] = {}
    found: dict[int, float] = {}

    class Doubling(Worker):
        def reads(self, work: Work) -> tuple[Work, ...]:
            before = {"a": (), "b": ("a",), "c": ("b",)}[cast(BlockWork, work).block]
            return tuple(BlockWork(name, work.micro_batch) for name in before)

        def layout(self, what: Work, target: int) -> Mapping[str, Boundary]:
            raise AssertionError

        def task(self, work: Work) -> Task:
            name = cast(BlockWork, work).block

            def run(results: Mapping[Work, Parcel]) -> Parcel:
                streams.setdefault(name, set()).add(int(torch.cuda.current_stream().cuda_stream))
                read = [results[what]["x"] for what in self.reads(work)]
                value = read[0] + 1 if read else torch.full((4096, 4096), float(work.micro_batch), device="cuda")
                for _ in range(20):
                    value = value @ torch.eye(4096, device="cuda")
                if name == "c":
                    found[work.micro_batch] = float(value.mean())
                return {"x": value}

            return run

    class Alone(Session):
        def common_start(self, delay: float = 0.0) -> float:
            return self.now()

        def add_groups(self, groups: Any) -> None:
            pass

    watch: Any = Unwatched()
    session = Alone(0, 1, torch.device("cuda"), watch, 0.0)
    worker: Any = Doubling()
    executor = Executor(plan, session, worker, lambda session, tables: OneSided({}, {}, {}, {}, lambda peer: True),
                        lambda plan, session, worker, reads: [rank_table(plan, 0, worker, reads)])
    assert len(executor.run()) == 12
    assert found == {m: m + 2.0 for m in range(4)}
    assert streams["a"] == streams["c"] != streams["b"]


if __name__ == "__main__":
    if sys.argv[1] == "emulate":
        emulate()
    elif sys.argv[1] == "raise":
        faulty(fail, PATIENCE)
    else:
        faulty(hang, 6)
