"""Emulated blocks: what they wait for, and when their results arrive over links."""

from __future__ import annotations

import pytest

from weft.runtime.execute import emulate
from weft.runtime.execute.emulate import MOMENTS, Emulation
from weft.runtime.plan.plan import plan_of
from weft.solver import Block, BlockKind, Dependency, Device, Link, Problem, baseline


def test_transfers_over_one_link_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def sleep_until(moment: float, now: object, late: float) -> None:
        clock[0] = max(clock[0], moment)

    monkeypatch.setattr(emulate, "sleep_until", sleep_until)
    problem = Problem("links", (Device("0"), Device("1")), (
        Block("f0", BlockKind.FORWARD, (0,), 1),
        Block("f1", BlockKind.FORWARD, (1,), 1, after=(Dependency("f0", 3, link="wire"),))),
                      links=(Link("wire", 0, 1),))
    plan = plan_of(baseline("greedy", problem, 2))
    sender = Emulation(plan, 0.5, lambda: clock[0])
    first, second = plan.vocabulary.work(0, 0), plan.vocabulary.work(0, 1)
    results = {work: sender.task(work)({}) for work in (first, second)}
    # Units of half a second: ends at 0.5 and 1.0; the link is busy until 2.0, then until 3.5.
    assert [float(results[work][MOMENTS][0]) for work in (first, second)] == [2.0, 3.5]
    reader = plan.vocabulary.work(1, 1)
    assert list(sender.reads(reader)) == [second]
    wait = sender.prepare(reader)
    assert wait is not None and sender.prepare(first) is None
    wait(results)
    assert clock[0] == 3.5
