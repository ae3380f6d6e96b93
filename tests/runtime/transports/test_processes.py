"""Random schedules on real processes, over every transport that runs on a CPU: every value is that of its place, in
shapes that the plan knows and in such that it does not.

Run as a program (``python -m tests.runtime.transports.test_processes FOLDER``), this file is one rank.
"""

from __future__ import annotations

import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from tests.support import PATIENCE, any_order, finished, pipeline
from tests.support.mixed_shapes import Mixed
from tests.support.threads import Tracer, expected
from weft.runtime.execute.executor import Executor
from weft.runtime.plan.plan import Plan, load_plan, plan_of, save_plan
from weft.runtime.ranks.session import join
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

RANKS, PLANS, STEPS = 3, 5, 3
TRANSPORTS = ("gloo", "gloo:sockets", "shared", "emulated:1e-3,1e7")


def random_plan(seed: int) -> Plan:
    """Stages or plain blocks, at random on the ranks, in a random order that the dependencies allow."""
    chance = random.Random(seed)
    if seed % 2:
        where = [chance.randrange(RANKS) for _ in range(5)] + list(range(RANKS))
        problem = pipeline(where, split=chance.choice([None, (1, 1)]))
    else:
        blocks = [Block(f"b{i}", BlockKind.OTHER, tuple(chance.sample(range(RANKS), chance.choice([1, 1, 2]))), 1,
                        after=tuple(Dependency(f"b{p}", distance=chance.choice([0, 0, 1]))
                                    for p in chance.sample(range(i), min(i, 2)))) for i in range(8)]
        problem = Problem("random", tuple(Device(str(d)) for d in range(RANKS)), tuple(blocks))
    return plan_of(any_order(problem, 4, chance))


@pytest.mark.slow
def test_random_schedules_run_right_over_every_transport(tmp_path: Path) -> None:
    for seed in range(PLANS):
        save_plan(random_plan(seed), tmp_path / f"{seed}.json")
    ended = finished(RANKS, __name__, str(tmp_path))
    assert [end.output for end in ended] == [f"{PLANS * STEPS * len(TRANSPORTS)} steps\n"] * RANKS


def rank_main(folder: Path) -> None:
    done = 0
    # Rank 2 might be on a host of its own: over gloo some messages go through shared memory, others over sockets.
    hosts = mock.patch("weft.runtime.transports.by_host.host", lambda: f"host {os.environ['RANK'] == '2'}")
    with hosts, join(PATIENCE) as session:
        for path in sorted(folder.glob("*.json")):
            plan = load_plan(path)
            for place, transport in enumerate(TRANSPORTS):
                tracer = (Tracer, Mixed)[(place + int(path.stem)) % 2](plan, session.rank)
                executor = Executor(plan, replace(session, transport=transport), tracer)
                for tracer.step in range(STEPS):
                    tracer.found.clear()
                    executor.run()
                    wanted = expected(plan, tracer.step)
                    assert tracer.found == {work: wanted[work] for work in plan.program.works(session.rank)}
                    done += 1
                executor.close()
    print(f"{done} steps")


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]))
