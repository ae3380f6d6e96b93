"""Explanations: what collides where nothing fits, what a schedule waits for in words, and what changes would give."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import weft
from tests.support import DATA, chain, for_all, laned_schedule, pipeline, schedule_of_jobs, shape, v
from tests.support.strategies import problems, schedules
from weft.solver import Block, BlockKind, Budget, Dependency, Device, Problem, Schedule, load_problem, solve, validate
from weft.solver.diagnose.bubbles import idle_times
from weft.solver.diagnose.sensitivity import WhatIf, changes, what_if
from weft.solver.feasibility.infeasible import Infeasible, require_room
from weft.solver.feasibility.memory_conflict import forced_collision, held_together, in_flight
from weft.solver.ticks import TickProblem


def refusal(problem: Problem, micro_batches: int) -> Infeasible:
    with pytest.raises(Infeasible) as caught:
        require_room(TickProblem.of(problem), micro_batches, Budget())
    return caught.value


def topological_orders(problem: Problem, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every order of one micro-batch's blocks."""
    if len(done) == len(problem.blocks):
        yield done
    for i, block in enumerate(problem.blocks):
        if i not in done and all(problem.index[d.block] in done for d in block.after if d.distance == 0):
            yield from topological_orders(problem, (*done, i))


# -- what collides -----------------------------------------------------------------------------------------------


@for_all(problems(max_blocks=5, whole=True), tries=60)
def test_a_forced_collision_is_the_least_that_any_order_needs_at_its_worst_moment(problem: Problem) -> None:
    """Against every order: none holds less when that block starts, and for no other block is the least higher."""
    instance = TickProblem.of(problem)
    orders = list(topological_orders(problem))
    for device in range(len(problem.devices)):
        take, change = instance.take[device], instance.change[device]
        least: dict[int, int] = {}
        for order in orders:
            level = 0
            for i in order:
                if take.get(i, 0) > 0:
                    least[i] = min(least.get(i, level + take[i]), level + take[i])
                level += change.get(i, 0)
        found = forced_collision(instance, device)
        if not least:
            assert found is None
            continue
        assert found is not None
        if all(level >= 0 for level in _levels(instance, device, orders)):
            assert found.total == least[found.at] == max(least.values())


def _levels(instance: TickProblem, device: int, orders: list[tuple[int, ...]]) -> Iterator[int]:
    for order in orders:
        level = 0
        for i in order:
            level += instance.change[device].get(i, 0)
            yield level


@for_all(problems(max_blocks=6, whole=True), tries=60)
def test_a_least_collision_exceeds_the_capacity_and_fits_without_any_one_block(problem: Problem) -> None:
    instance = TickProblem.of(problem)
    for device in range(len(problem.devices)):
        found = forced_collision(instance, device)
        if found is None:
            continue
        for capacity in range(found.total):
            least = found.least(capacity)
            assert set(least.held) <= set(found.held)
            assert least.total > capacity
            assert all(least.total - amount <= capacity for _, amount in least.held)


def test_what_a_block_gives_back_is_what_the_nearest_before_it_took() -> None:
    problem = Problem("twice", (Device("gpu", 9),), (
        Block("a", BlockKind.FORWARD, (0,), 1, (3,)),
        Block("b", BlockKind.FORWARD, (0,), 1, (2,), (), (Dependency("a"),)),
        Block("c", BlockKind.BACKWARD, (0,), 1, (-2,), (), (Dependency("b"),)),
        Block("d", BlockKind.FORWARD, (0,), 1, (4,), (), (Dependency("c"),)),
        Block("e", BlockKind.BACKWARD, (0,), 1, (-7,), (), (Dependency("d"),))))
    assert held_together(TickProblem.of(problem), 0, {0, 1, 2}, 3, 0, forced=True).held == ((0, 3), (3, 4))


def test_two_chunks_of_a_v_collide_in_the_memory_of_one() -> None:
    found = refusal(pipeline(v(4), memory=1), 8)
    assert [shortage.device for shortage in found.shortages] == [0, 1, 2, 3]
    for shortage in found.shortages:
        assert (shortage.capacity, shortage.least, shortage.missing, shortage.forced) == (1, 2, 1, True)
        assert shortage.held == ((shortage.device, 1), (7 - shortage.device, 1))
    assert "when block 'f7' starts, 'gpu0' holds, in every order, f0 (1 B) and f7 (1 B)" in str(found)
    assert found.most_micro_batches is None


def test_what_only_the_best_order_needs_is_not_called_forced() -> None:
    """Each of a, b alone fits; some order of both is always possible but none fits, and which collides is a choice."""
    blocks = (Block("a", BlockKind.FORWARD, (0,), 1, (3,), (1,)), Block("b", BlockKind.FORWARD, (0,), 1, (3,), (1,)),
              Block("c", BlockKind.BACKWARD, (0,), 1, (-6,), (), (Dependency("a"), Dependency("b"))))
    found = refusal(Problem("either", (Device("gpu", 6),), blocks), 1)
    (shortage,) = found.shortages
    assert (shortage.least, shortage.forced) == (7, False)
    assert sum(amount for _, amount in shortage.held) > 6
    assert "in the order that needs least" in str(found)


def test_memory_that_piles_up_says_how_many_micro_batches_fit() -> None:
    leak = Problem("leak", (Device("gpu", 10),), (Block("a", BlockKind.FORWARD, (0,), 1, (3,)),), memory_unit="MB")
    found = refusal(leak, 7)
    assert found.most_micro_batches == 3
    (shortage,) = found.shortages
    assert (shortage.least, shortage.left_behind) == (21, 18)
    assert str(found).endswith("3 micro-batches would fit")
    require_room(TickProblem.of(leak), 3, Budget())


def test_memory_left_behind_rules_nothing_out_where_another_order_fits() -> None:
    """One micro-batch after another needs 3 + 5; first all a, then all b needs 6."""
    blocks = (Block("a", BlockKind.FORWARD, (0,), 1, (0,), (5,)),
              Block("b", BlockKind.FORWARD, (0,), 1, (3,), (), (Dependency("a"),)))
    require_room(TickProblem.of(Problem("late", (Device("gpu", 6),), blocks)), 2, Budget())


# -- micro-batches in flight -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "most"), [(4, 2), (5, 2), (6, 3), (1, 0)])
def test_a_device_holds_as_many_micro_batches_as_their_activations_fit(cap: int, most: int) -> None:
    assert [entry.most for entry in in_flight(pipeline(v(2), memory=cap))] == [most, most]


def test_workspace_is_needed_once() -> None:
    blocks = (Block("f", BlockKind.FORWARD, (0,), 1, (2,), (3,)),
              Block("b", BlockKind.BACKWARD, (0,), 1, (-2,), (0,), (Dependency("f"),)))
    (entry,) = in_flight(Problem("w", (Device("gpu", 9),), blocks))
    assert (entry.each, entry.workspace, entry.most, entry.needed(4)) == (2, 3, 3, 11)


def test_asking_for_more_in_flight_than_fit_says_what_they_need() -> None:
    found = weft.explain(pipeline(chain(2), memory=2), micro_batches=4, in_flight=3, effort=0.5)
    assert ("3 micro-batches do not fit at once: the memory of each of gpu0 and gpu1 holds 2, 3 would need 3 B, "
            "1 B more than it has." in found.text)
    assert "holds 2 micro-batches at once" in weft.explain(pipeline(chain(2), memory=2), micro_batches=4, in_flight=2,
                                                         effort=0.5).text


# -- words -----------------------------------------------------------------------------------------------------------


def test_the_text_names_cycle_memory_and_waits() -> None:
    text = weft.explain(pipeline(chain(4), memory=4, lag=0.5), micro_batches=16, effort=1).text
    assert "b0 -> f0 -> f1 -> f2 -> f3 -> b3 -> b2 -> b1 -> b0" in text
    assert "gpu0's memory, which holds 4 micro-batches at once" in text
    assert "gpu0 waits" in text
    assert "f0 of micro-batch 4 is ready but does not fit before b0 of micro-batch 0 has given some back" in text


def test_a_busy_device_is_named_as_the_whole_reason() -> None:
    text = weft.explain(shape("nn", 4, 6), micro_batches=16, effort=0.5).text
    assert "gpu0 is busy 100 % of each period: nothing but less work there shortens it." in text


def test_a_problem_that_fits_nothing_is_explained_not_raised() -> None:
    found = weft.explain(pipeline(v(4), memory=1), micro_batches=8)
    assert found.schedule is None
    assert found.text.startswith("uniform: no schedule fits")
    (first, *_) = found.to_json()["refusal"]["shortages"]
    assert first == {"device": "gpu0", "capacity": 1, "least": 2, "least_is_exact": True, "missing": 1,
                     "when_starts": "f7", "in_every_order": True, "left_behind": 0,
                     "held": [{"block": "f0", "amount": 1}, {"block": "f7", "amount": 1}]}


def test_the_numbers_add_up_to_the_makespan() -> None:
    found = weft.explain(shape("m", 4, 6), micro_batches=8, effort=0.5).to_json()
    assert sum(step["end"] - step["start"] for step in found["critical_path"]) == found["makespan"]
    for entry in found["idle"]:
        assert entry["busy"] + entry["idle"] == found["makespan"]
    assert found["critical_cycle"]["period"] == found["period"] == 6
    assert json.loads(json.dumps(found)) == found


def test_arguments_that_mean_nothing_are_refused() -> None:
    schedule = solve(pipeline(chain(2)), 2, effort=0.2)
    with pytest.raises(ValueError, match="runs 2 micro-batches, not 3"):
        weft.explain(schedule, micro_batches=3)
    with pytest.raises(ValueError, match="in_flight is 0, it must be at least 1"):
        weft.explain(schedule, in_flight=0)


# -- what if -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tried() -> WhatIf:
    problem = replace(pipeline(chain(3), memory=2, lag=0.5), memory_unit="unit")
    return what_if(solve(problem, 6, effort=1), effort=0.4)


def test_figures_are_valid_schedules_as_long_as_direct_solves_find(tried: WhatIf) -> None:
    for figure in tried.figures:
        validate(figure.schedule)
        assert figure.schedule.problem == figure.change.problem
        direct = solve(figure.change.problem, 6, effort=2)
        assert figure.schedule.makespan_bound <= direct.makespan + 1e-9
        assert direct.makespan_bound <= figure.schedule.makespan + 1e-9
        if direct.gap == 0 and figure.schedule.gap == 0:
            assert figure.schedule.makespan == pytest.approx(direct.makespan)
    assert sum(figure.schedule.gap == 0 for figure in tried.figures) >= len(tried.figures) / 2


def test_changes_never_make_it_longer_and_come_best_first(tried: WhatIf) -> None:
    makespans = [figure.schedule.makespan for figure in tried.figures]
    assert makespans == sorted(makespans)
    assert max(makespans) <= tried.unchanged.makespan + 1e-9
    everywhere = next(figure for figure in tried.figures if figure.change.title == "1 unit more on every device")
    assert everywhere.schedule.makespan < tried.unchanged.makespan
    assert everywhere.resolved
    assert not tried.untried


def test_changes_change_only_what_they_say() -> None:
    problem = pipeline(chain(2), memory=2**30, lag=3)
    found = {change.title: change.problem for change in changes(problem)}
    assert list(found) == ["1 GiB more on every device", "1 GiB more on gpu0", "1 GiB more on gpu1",
                           "transfers between gpu0 and gpu1 twice as fast", "stage 0 (gpu0) 10 % shorter",
                           "stage 1 (gpu1) 10 % shorter"]
    assert [device.memory for device in found["1 GiB more on gpu1"].devices] == [2**30, 2**31]
    halved = found["transfers between gpu0 and gpu1 twice as fast"]
    assert [d.lag for b in halved.blocks for d in b.after] == [1.5, 0, 1.5]
    shorter = found["stage 1 (gpu1) 10 % shorter"]
    assert {block.name: block.duration for block in shorter.blocks} == {"f0": 1, "f1": 0.9, "b1": 1.8, "b0": 2}
    assert {c.title for c in changes(shape("m", 2, None))} == {
        "the work on gpu0 10 % shorter", "the work on gpu1 10 % shorter", "the work on all devices 10 % shorter"}


def test_without_time_the_known_order_still_answers_for_times(tried: WhatIf) -> None:
    found = what_if(tried.unchanged, effort=0.1, spent=lambda: True)
    assert {change.kind for change in found.untried} == {"memory"}
    assert found.figures
    assert not any(figure.resolved for figure in found.figures)
    for figure in found.figures:
        validate(figure.schedule)
        assert figure.schedule.makespan <= tried.unchanged.makespan + 1e-9


def test_what_if_is_told_in_the_text_and_in_numbers() -> None:
    found = weft.explain(pipeline(chain(2), memory=1), micro_batches=4, what_if=True, effort=0.3)
    assert "1 GiB more on every device" in found.text
    best = found.to_json()["what_if"]["figures"][0]
    assert best["how"] == "re-solved"
    assert best["makespan"] < found.to_json()["what_if"]["unchanged"]["makespan"]


@for_all(schedules(), tries=60)
def test_every_idle_entry_names_its_device_and_its_causes_add_up(schedule: Schedule) -> None:
    """A cause is called ``device``, as the entry's own device: neither may take the other's place."""
    entries = weft.explain(schedule).to_json()["idle"]
    assert [entry["device"] for entry in entries] == [device.name for device in schedule.problem.devices]
    for entry, measured in zip(entries, idle_times(schedule), strict=True):
        causes = {key: value for key, value in entry.items() if key not in ("device", "busy", "idle")}
        assert sorted(causes.values()) == sorted(measured.by_cause.values())
        assert sum(causes.values()) == pytest.approx(entry["idle"], rel=1e-9, abs=1e-9 * schedule.makespan)


def test_waiting_for_the_other_devices_of_a_block_has_a_name_of_its_own() -> None:
    schedule = solve(load_problem(DATA / "idle-and-joint-devices.json"), 2, effort=0.5)
    entries = weft.explain(schedule).to_json()["idle"]
    assert [entry["device"] for entry in entries] == ["g0", "g1", "g2", "unused"]
    assert entries[1]["other_devices"] > 0


# -- the command -------------------------------------------------------------------------------------------------------


# -- lanes, jobs and options -------------------------------------------------------------------------------------


def test_idle_time_is_that_of_devices_that_are_no_lanes() -> None:
    schedule = laned_schedule(3, 4, 2, copy=15)
    found = weft.explain(schedule)
    assert [entry.device for entry in found.idle] == [0, 3, 6]
    total = sum(entry.total for entry in found.idle) / (3 * schedule.makespan)
    assert total == pytest.approx(schedule.bubble.step)
    assert "laned pipeline: 4 micro-batches on 3 devices and 6 lanes take 462 ms" in found.text
    assert f"Devices (without lanes) are idle {total:.1%} of the time" in found.text
    assert found.path is not None and found.path.length == pytest.approx(schedule.makespan)
    assert "gpu 2 copies" in found.text  # it is on the critical path
    assert re.search(r"gpu 0 waits .* for memory: at .*, for one, F0 of micro-batch 2 is ready but does not fit before "
                     r"O0 of micro-batch 1 has given some back", found.text)


def test_jobs_are_told_of_by_their_own_blocks_and_micro_batches() -> None:
    schedule = schedule_of_jobs()
    found = weft.explain(schedule)
    assert ("two jobs: 4 micro-batches of chat (2 short, 2 long) and 2 micro-batches of search in 2 rounds on "
            "2 devices take 90 ms") in found.text
    assert "*" not in found.text
    steps = found.to_json()["critical_path"]
    assert {step["block"] for step in steps} <= {"A0", "A1", "B0", "B1"}
    assert all(step["job"] == ("chat" if step["block"][0] == "A" else "search") for step in steps)
    assert max(step["micro_batch"] for step in steps if step["job"] == "chat") == 3


def test_options_are_told_with_what_they_would_cost() -> None:
    schedule = laned_schedule()
    options = [{"choice": "gpu 0", "option": "keep", "taken": False, "bound": schedule.makespan * 1.05,
                "makespan": schedule.makespan * 1.2}]
    found = weft.explain(replace(schedule, choices={"gpu 0": "recompute"}).with_solver(options=options))
    assert "Options taken: gpu 0: recompute." in found.text
    assert re.search(r"gpu 0: keep  at least .* \(\+5.0%\), .* \(\+20.0%\) found", found.text)
    assert found.to_json()["options"] == options
