"""Stages on ranks, with messages that take time and memory that is taken; and what a run makes of the plan's times."""

from __future__ import annotations

from operator import itemgetter

import pytest

from weft.app.pipeline.planning.machine import Machine
from weft.app.pipeline.planning.problems import (
    StagesRun,
    least,
    loads,
    optimizer_bytes,
    peak_bytes,
    resident_bytes,
    retimed,
    stage_problem,
)
from weft.runtime.measure.links import LinkCost
from weft.runtime.measure.measure import Memory, Sample
from weft.runtime.measure.stage_costs import MeasureError, PassCost, StageCosts
from weft.runtime.plan.plan import plan_of
from weft.runtime.plan.timeline import Measured, Timeline
from weft.runtime.replay.planned_steps import TimedSteps
from weft.solver import baseline, violations


def stage(number: int, count: int, **links: dict[int, int]) -> StageCosts:
    def cost(seconds: float, change: int) -> PassCost:
        return PassCost(Sample(seconds, 0.0, 1), Memory(change, max(change, 0) + 5))

    return StageCosts(number, 1000, 8, 100 if number < count - 1 else 0, {
        "full": {"F": cost(1.0, 50), "B": cost(2.0, -50)},
        "split": {"F": cost(1.0, 50), "I": cost(1.0, -20), "W": cost(1.0, -30)}}, **links)  # type: ignore[arg-type]


def machine(*memory: int | None) -> Machine:
    links = {hop: LinkCost(0.25, 0.001) for r in range(len(memory) - 1) for hop in ((r, r + 1), (r + 1, r))}
    return Machine(memory, ("chain",), ("full", "split"), links, None, ())


def lags(problem: object) -> dict[tuple[str, str], float]:
    return {(dependency.block, block.name): dependency.lag
            for block in problem.blocks for dependency in block.after}  # type: ignore[attr-defined]


def test_messages_of_a_chain_take_what_links_take() -> None:
    problem = stage_problem([stage(s, 3) for s in range(3)], (), machine(None, None, None), "split", 4)
    found = lags(problem)
    assert found["F0", "F1"] == found["I2", "I1"] == pytest.approx(0.35)
    assert found["I1", "W1"] == found["F2", "I2"] == 0.0


def test_a_skip_sends_its_own_bytes_and_only_what_is_owed_comes_back() -> None:
    costs = [stage(0, 3, takes={}, owes={}), stage(1, 3, takes={0: 10}, owes={0: 10}),
             stage(2, 3, takes={0: 500, 1: 20}, owes={1: 20})]
    found = lags(stage_problem(costs, (), machine(None, None, None), "full", 4))
    assert found["F0", "F2"] == pytest.approx(0.75) and found["B2", "B1"] == pytest.approx(0.27)
    assert found["B1", "B0"] == pytest.approx(0.26) and ("B2", "B0") not in found


def test_a_rank_of_two_stages_holds_both() -> None:
    costs = [stage(s, 4) for s in range(4)]
    held = resident_bytes(costs, 2, 4)
    assert held == [2 * 4008 + 4 * 200, 2 * 4008 + 4 * 200] and optimizer_bytes(costs, 2) == [4000, 4000]
    assert resident_bytes(costs, 4, 10) == [4008 + 8 * 100] * 4  # no more than 8 messages are under way
    assert resident_bytes(costs, 4, 10, open_sends=0) == [4008] * 4  # where they are written to their receiver at once
    problem = stage_problem(costs, (), machine(held[0] + 300, None), "full", 4)
    assert [device.memory for device in problem.devices] == [300, None]
    assert [block.devices for block in problem.blocks[:4]] == [(0,), (1,), (1,), (0,)]
    assert lags(problem)["F1", "F2"] == 0.0  # on one rank
    with pytest.raises(MeasureError, match=rf"rank 1 needs {held[1]} bytes for weights.*but it has {held[1]}"):
        stage_problem(costs, (), machine(None, held[1]), "full", 4)


def test_settled_times_are_those_of_the_run() -> None:
    problem = stage_problem([stage(s, 2) for s in range(2)], (), machine(None, None), "full", 3)
    schedule = baseline("1f1b", problem, 3)
    def timeline(stretch: float) -> Timeline:
        return Timeline("", problem.name, 1.0, tuple(Measured(
            problem.blocks[o.block].name, o.micro_batch, problem.blocks[o.block].devices[0], stretch * o.start,
            stretch * o.end) for o in schedule.operations))

    run = StagesRun(schedule, TimedSteps((timeline(2.0), timeline(3.0), timeline(9.0))))
    assert run.measured == pytest.approx(3 * schedule.makespan)
    calibrated = run.calibrated()
    assert calibrated.makespan == pytest.approx(run.measured) and not violations(calibrated)
    assert calibrated.orders == schedule.orders
    assert 0 < calibrated.makespan_bound <= calibrated.makespan
    assert calibrated.makespan_bound == pytest.approx(run.stretch * run.bound)
    assert loads(run.fitted, 2) == pytest.approx([9.0, 9.0], rel=1e-3)


def test_the_peak_has_slots_in_place_of_messages() -> None:
    problem = stage_problem([stage(s, 2) for s in range(2)], (), machine(None, None), "split", 3)
    changes = {block.name: (block.memory[0], block.workspace[0]) for block in problem.blocks}
    # The second stage's activation lies there from F to W; the first one's gradient from I to W.
    assert changes["F0"] == (50, 5) and changes["I0"] == (-20 + 100, 5) and changes["W0"] == (-30 - 100, 5)
    assert changes["F1"] == (50 + 100, 5) and changes["I1"] == (-20, 5) and changes["W1"] == (-30 - 100, 5)
    schedule = baseline("zb-h1", problem, 3)
    costs = [stage(s, 2) for s in range(2)]
    least = peak_bytes(costs, schedule, [1000, 2000], [0, 0])
    assert peak_bytes(costs, schedule, [1000, 2000], [300, 7]) == [least[0] + 300, least[1] + 7]
    assert least[1] < 2000 + schedule.peak_memory[1]


def test_what_waits_for_its_receiver_counts_when_it_does() -> None:
    problem = stage_problem([stage(s, 2) for s in range(2)], (), machine(None, None), "full", 3)
    schedule, costs = baseline("1f1b", problem, 3), [stage(s, 2) for s in range(2)]
    none = peak_bytes(costs, schedule, [0, 0], [0, 0])
    profile = dict(schedule.memory_profile(0))  # of several levels at one moment the last
    highest = max(profile.items(), key=itemgetter(1))[0]
    later = min(time for time, level in profile.items() if time > highest and level < none[0] - 40)
    for begin, end, more in ((highest, later, 40), (later, later + 1e-9, 0)):
        assert peak_bytes(costs, schedule, [0, 0], [0, 0], [[(begin, 40), (end, -40)], []]) == [none[0] + more, none[1]]
    laps = [Measured(problem.blocks[block].name, m, 0, 2 * start, 2 * end) for block, m, start, end in
            schedule.operations]
    slower = retimed(schedule, laps)
    assert slower.orders == schedule.orders and slower.makespan == pytest.approx(2 * schedule.makespan)
    assert peak_bytes(costs, slower, [0, 0], [0, 0], [[(highest, 40), (later, -40)], []]) != none


def test_a_difference_within_the_noise_of_the_steps_changes_nothing() -> None:
    schedule = baseline("1f1b", stage_problem([stage(s, 2) for s in range(2)], (), machine(None, None), "full", 2), 2)

    def run(*spans: float, share: float = 1.0) -> StagesRun:
        return StagesRun(schedule, TimedSteps(tuple(Timeline.of(plan_of(schedule), 1.0, [
            Measured("F0", 0, 0, 0.0, span)]) for span in spans), share))

    first, second, third = run(10.0, 10.1, 10.3), run(9.95, 10.05, 10.2), run(9.0, 9.01, 9.02)
    assert least([first, second]) is first and least([second, first]) is second
    assert least([first, third]) is third and least([third, second, first]) is third
    assert first.noise_note == "" and "took 20% less, so other processes" in run(8.0, 10.0, 11.0).noise_note
    assert "a rank had a core in 55% of the time of its blocks, so" in run(9.0, 9.01, share=0.55).noise_note
    assert run(10.0, 10.4).noise == pytest.approx(0.04)  # of two steps, what they differ by
