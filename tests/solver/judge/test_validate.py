"""The judge, rule by rule: what it lets pass, what it catches, and what it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from weft.solver.judge.validate import InvalidSchedule, statements, validate, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem
from weft.solver.schedule import Operation, Repetend, Schedule


def block(name: str, devices: Sequence[int] = (0,), duration: Number = 1, memory: Sequence[Number] = (),
          after: Sequence[Dependency] = (), workspace: Sequence[Number] = ()) -> Block:
    return Block(name, BlockKind.OTHER, tuple(devices), duration, tuple(memory), tuple(workspace), tuple(after))


def problem(*blocks: Block, memory: Sequence[Number | None] = (None,), links: Sequence[Link] = ()) -> Problem:
    devices = tuple(Device(f"gpu{d}", amount) for d, amount in enumerate(memory))
    return Problem("p", devices, blocks, tuple(links), "ms", "GiB")


def schedule(problem: Problem, *rows: tuple[str, int, float], n: int | None = None, **fields: object) -> Schedule:
    """``rows`` are block, micro-batch and start; operations last as long as their blocks."""
    operations = tuple(Operation(i := problem.index[name], m, start, start + problem.blocks[i].duration)
                       for name, m, start in rows)
    count = n if n is not None else max(m for _, m, _ in rows) + 1
    return Schedule(problem, count, operations, **{"makespan_bound": 0.0, **fields})  # type: ignore[arg-type]


ALONE = problem(block("a"))


# -- the operations themselves -----------------------------------------------------------------------------------


def test_validate_raises_with_all_sentences() -> None:
    bad = schedule(ALONE, ("a", 0, 0), ("a", 1, 0.5), n=3)
    with pytest.raises(InvalidSchedule) as caught:
        validate(bad)
    assert list(caught.value.violations) == violations(bad)
    assert len(caught.value.violations) == 2
    assert str(caught.value) == "\n".join(violations(bad))


def test_micro_batches_out_of_turn_may_be_left_out_alone() -> None:
    reversed_ = schedule(ALONE, ("a", 1, 0), ("a", 0, 1))
    assert len(violations(reversed_)) == 1
    validate(reversed_, in_turn=False)
    crowded = schedule(ALONE, ("a", 1, 0), ("a", 0, 0.5))
    assert violations(crowded, in_turn=False) == violations(crowded)[:1] != violations(crowded)


@pytest.mark.parametrize(("bad", "said"), [
    (schedule(ALONE, ("a", 0, 0), ("a", 2, 1), n=4),
     "block 'a' of micro-batch 1 on device 'gpu0' never runs, nor do 1 other micro-batches of it"),
    (schedule(ALONE, ("a", 0, 0), ("a", 0, 3)),
     "block 'a' of micro-batch 0 on device 'gpu0' runs twice, again at 3 ms"),
    (Schedule(ALONE, 1, (Operation(0, 0, 0.0, 1.5),), 0.0),
     "block 'a' of micro-batch 0 on device 'gpu0' runs from 0 ms to 1.5 ms, that is 1.5 ms, but the block lasts 1 ms"),
    (schedule(ALONE, ("a", 0, -1)), "block 'a' of micro-batch 0 on device 'gpu0' starts at -1 ms, before 0"),
    (schedule(ALONE, ("a", 0, 2)),
     "nothing starts at 0: the first is block 'a' of micro-batch 0 on device 'gpu0' at 2 ms"),
    (schedule(ALONE, ("a", 1, 0), ("a", 0, 1)), "block 'a' of micro-batch 1 on device 'gpu0' starts at 0 ms, not after "
     "micro-batch 0 of the same block, which starts at 1 ms"),
    (schedule(problem(block("a", duration=2), block("b")), ("a", 0, 0), ("b", 0, 1.5)), "device 'gpu0': block 'b' of "
     "micro-batch 0 starts at 1.5 ms, but block 'a' of micro-batch 0 runs there until 2 ms"),
    (schedule(problem(block("a"), block("b")), ("a", 0, 0), ("b", 0, 1), period=1.5),
     "period is 1.5 ms, but device 'gpu0' works 2 ms for each micro-batch")],
    ids=["missing", "twice", "duration", "below zero", "late", "out of turn", "overlap", "period"])
def test_each_rule_is_a_sentence(bad: Schedule, said: str) -> None:
    assert violations(bad) == [said]


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf])
def test_times_are_finite(time: float) -> None:
    found = violations(Schedule(ALONE, 1, (Operation(0, 0, time, 1.0),), 0.0))
    assert f"block 'a' of micro-batch 0 on device 'gpu0' runs from {time} to 1.0, times are finite" in found


@pytest.mark.parametrize("micro_batch", [-1, 2, 10**15])
def test_micro_batch_out_of_range(micro_batch: int) -> None:
    bad = schedule(ALONE, ("a", 0, 0), ("a", 1, 1), ("a", micro_batch, 2), n=2)
    assert violations(bad) == [f"block 'a' runs for micro-batch {micro_batch}, the schedule has 0 to 1"]


@pytest.mark.parametrize("number", [-1, 1, 99])
def test_unknown_block(number: int) -> None:
    bad = Schedule(ALONE, 1, (Operation(0, 0, 0.0, 1.0), Operation(number, 0, 1.0, 2.0)), 0.0)
    assert violations(bad) == [f"an operation of micro-batch 0 names block number {number}, there are 1 (0 to 0)"]


@pytest.mark.parametrize("n", [0, -3])
def test_no_micro_batches(n: int) -> None:
    assert violations(Schedule(ALONE, n, (), 0.0)) == [f"micro_batches is {n}, a schedule has at least one"]


@pytest.mark.parametrize("n", [1, 10**9, 10**400])
def test_empty_schedule(n: int) -> None:
    found = violations(Schedule(ALONE, n, (), 0.0))
    assert found[0].startswith("block 'a' of micro-batch 0 on device 'gpu0' never runs")


def test_only_so_many_sentences() -> None:
    bad = schedule(ALONE, *(("a", m, 0.0) for m in range(50)))
    assert len(violations(bad, limit=7)) == 7
    assert len(violations(bad)) == 20


# -- order -------------------------------------------------------------------------------------------------------


def test_dependency_with_lag() -> None:
    lagged = problem(block("a"), block("b", (1,), after=[Dependency("a", 2)]), memory=(None, None))
    assert violations(schedule(lagged, ("a", 0, 0), ("b", 0, 3))) == []
    assert violations(schedule(lagged, ("a", 0, 0), ("b", 0, 2.5))) == [
        "block 'b' of micro-batch 0 on device 'gpu1' starts at 2.5 ms, but it waits for block 'a' of micro-batch 0, "
        "which ends at 1 ms and its transfer takes 2 ms"]


def test_link_carries_one_transfer_at_a_time_in_the_order_of_the_producers() -> None:
    linked = problem(block("a"), block("b"), block("of_a", (1,), after=[Dependency("a", 3, "wire")]),
                     block("of_b", (1,), after=[Dependency("b", 1, "wire")]),
                     memory=(None, None), links=[Link("wire", 0, 1)])
    # a's transfer is from 1 to 4, b's could start at 2, has to wait and is from 4 to 5
    assert violations(schedule(linked, ("a", 0, 0), ("b", 0, 1), ("of_a", 0, 4), ("of_b", 0, 5))) == []
    assert violations(schedule(linked, ("a", 0, 0), ("b", 0, 1), ("of_a", 0, 5), ("of_b", 0, 4))) == [
        "block 'of_b' of micro-batch 0 on device 'gpu1' starts at 4 ms, but its transfer from block 'b' of "
        "micro-batch 0 is on link 'wire' from 4 ms to 5 ms"]
    # b first: its transfer is from 1 to 2, a's from 2 to 5
    assert violations(schedule(linked, ("b", 0, 0), ("a", 0, 1), ("of_b", 0, 2), ("of_a", 0, 5))) == []


# -- tolerance ---------------------------------------------------------------------------------------------------


def test_rounding_is_forgiven_and_more_is_not() -> None:
    chained = problem(block("a", duration=0.1), block("b", duration=0.2, after=[Dependency("a")]))
    starts = [("a", 0, 0.0), ("b", 0, 0.1 - 1e-17), ("a", 1, 0.3), ("b", 1, 0.4 - 1e-12)]
    assert violations(schedule(chained, *starts)) == []
    assert violations(schedule(chained, *starts[:3], ("b", 1, 0.4 - 1e-7))) != []


def test_idle_time_buys_no_tolerance() -> None:
    bad = Schedule(ALONE, 2, (Operation(0, 0, 0.0, 1.0), Operation(0, 1, 1e30, 1e30)), 0.0)
    assert "the block lasts 1 ms" in violations(bad)[0]


# -- memory ------------------------------------------------------------------------------------------------------


def test_memory_message_names_time_amount_and_what_is_too_much() -> None:
    full = problem(block("f", memory=[2]), memory=(5,))
    assert violations(schedule(full, *(("f", m, float(m)) for m in range(4)))) == [
        "device 'gpu0': when block 'f' of micro-batch 2 starts at 2 ms it holds 6 GiB, 1 GiB more than its 5 GiB "
        "(its peak is 8 GiB)"]


def test_capacities_can_be_left_out() -> None:
    validate(schedule(problem(block("f", memory=[2]), memory=(1,)), ("f", 0, 0)), capacities=False)


def test_what_ends_gives_back_before_what_starts_takes() -> None:
    swap = problem(block("f", memory=[3]), block("b", memory=[-3], after=[Dependency("f")]), memory=(3,))
    assert violations(schedule(swap, ("f", 0, 0), ("b", 0, 1), ("f", 1, 2), ("b", 1, 3))) == []
    early = 2 - 1e-13  # before b's end, but by rounding only
    assert violations(schedule(swap, ("f", 0, 0), ("b", 0, 1), ("f", 1, early), ("b", 1, 3))) == []


def pool(*blocks: Block, memory: Number | None) -> Problem:
    """Blocks on a GPU (0), its network (1), its copies (2) and another GPU (3)."""
    devices = (Device("gpu", memory), Device("net", lane_of="gpu"), Device("copy", lane_of="gpu"), Device("other", 1))
    return Problem("p", devices, blocks, (), "ms", "GiB")


def test_what_lanes_hold_counts_on_their_device() -> None:
    laned = pool(block("f", (0,), 2, [2]), block("s", (1,), 2, [1]), block("t", (2,), 2, workspace=[1]), memory=4)
    assert violations(schedule(laned, ("f", 0, 0), ("s", 0, 0), ("t", 0, 0))) == []
    less = pool(block("f", (0,), 2, [2]), block("s", (1,), 2, [1]), block("t", (2,), 2, workspace=[1]), memory=3)
    assert violations(schedule(less, ("f", 0, 0), ("t", 0, 0.5), ("s", 0, 2.5))) == []
    assert violations(schedule(less, ("f", 0, 0), ("t", 0, 0.5), ("s", 0, 1))) == [
        "device 'gpu': when block 's' of micro-batch 0 on its lane 'net' starts at 1 ms it holds 4 GiB, 1 GiB more "
        "than its 3 GiB"]
    [found] = violations(schedule(less, ("s", 0, 0), ("t", 0, 0.5), ("f", 0, 1)))
    assert found.startswith("device 'gpu': when block 'f' of micro-batch 0 starts at 1 ms it holds 4 GiB")


def test_lanes_are_no_devices_that_idle() -> None:
    laned = pool(block("f", (0,), 2), block("s", (1,), 2), block("g", (3, 2), 2), memory=None)
    made = schedule(laned, ("f", 0, 0), ("s", 0, 0), ("g", 0, 2))
    assert made.bubble.step == 0.5  # two devices of four ms, each of which works for two
    assert made.bubble.span == 0


def test_decimals_add_up_exactly() -> None:
    decimal = problem(block("a", memory=[0.1]), block("b", memory=[0.2]), memory=(0.3,))
    assert violations(schedule(decimal, ("a", 0, 0), ("b", 0, 1))) == []
    less = problem(block("a", memory=[0.1]), block("b", memory=[0.2]), memory=(0.29999999999999993,))
    assert violations(schedule(less, ("a", 0, 0), ("b", 0, 1))) != []


def test_bytes_beyond_the_precision_of_floats() -> None:
    big = 2**60
    assert violations(schedule(problem(block("a", memory=[big + 1]), memory=(big,)), ("a", 0, 0))) != []
    assert violations(schedule(problem(block("a", memory=[big]), memory=(big,)), ("a", 0, 0))) == []


# -- what the schedule says of itself ----------------------------------------------------------------------------


def test_bounds_are_bounds() -> None:
    assert violations(schedule(ALONE, ("a", 0, 0), makespan_bound=1.0, period=1.0, period_bound=1.0)) == []
    assert violations(schedule(ALONE, ("a", 0, 0), makespan_bound=1.5)) == [
        "makespan_bound is 1.5 ms, above the makespan of 1 ms, so it is no lower bound"]
    assert violations(schedule(ALONE, ("a", 0, 0), period=1.0, period_bound=2.0)) == [
        "period_bound is 2 ms, above the period of 1 ms, so it is no lower bound"]


@pytest.mark.parametrize("field", ["makespan_bound", "period", "period_bound"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_bounds_are_finite(field: str, value: float) -> None:
    bad = replace(schedule(ALONE, ("a", 0, 0)), **{field: value})  # type: ignore[arg-type]
    assert violations(bad) == [f"{field} is {value}, it must be finite"]


ALTERNATING = problem(block("f"), block("b", after=[Dependency("f", 2)]))


def repeating(*sequence: tuple[str, int], **repetend: int) -> list[str]:
    """What the judge says of operations three apart in this order, with this repetend."""
    rows = [(name, m, 3.0 * place) for place, (name, m) in enumerate(sequence)]
    return violations(schedule(ALTERNATING, *rows, repetend=Repetend(**repetend)))


def test_repetend_that_repeats() -> None:
    order = [("f", 0), ("f", 1), ("b", 0), ("f", 2), ("b", 1), ("f", 3), ("b", 2), ("b", 3)]
    assert repeating(*order, first=1, count=3) == []  # f1 b0, f2 b1, f3 b2
    assert repeating(*order, first=1, count=4) == [
        "repetend: device 'gpu0' repeats its order 3 times, 1 micro-batches further each time, not 4 times"]
    assert repeating(*order, first=2, count=3) == [
        "repetend: first is 2, but no 3 periods in a row begin with that one; the nearest that do begin with number 1"]
    assert repeating(*order, first=2, count=2) == []
    assert repeating(*order, first=1, count=1, micro_batches=2) == []  # f1 b0 f2 b1
    assert repeating(*order, first=1, count=2, micro_batches=2) != []


def test_a_stretch_of_a_repetend_has_every_block_as_often() -> None:
    """a0 a1 b0 b1 c0 c1: no three neighbours are a, b and c."""
    three = problem(block("a"), block("b"), block("c"))
    rows = [(name, m, 2.0 * k + m) for k, name in enumerate("abc") for m in range(2)]
    assert violations(schedule(three, *rows, repetend=Repetend(0, 1))) == [
        "repetend: device 'gpu0' repeats its order 0 times, 1 micro-batches further each time, not 1 times"]
    validate(schedule(three, *rows, repetend=Repetend(0, 1, 2)))


@pytest.mark.parametrize("repetend", [Repetend(-1, 1), Repetend(0, 0), Repetend(0, 1, 0)])
def test_repetend_out_of_range(repetend: Repetend) -> None:
    [found] = violations(schedule(ALONE, ("a", 0, 0), repetend=repetend))
    assert found.startswith("repetend: ")


def test_many_micro_batches() -> None:
    """49,152 operations with everything the judge knows; the suite's time limit stands for "in about a second"."""
    blocks = [block(f"{i}", (i % 4,), memory=[1 - i // 4], after=[Dependency(f"{i - 1}")] if i else [])
              for i in range(12)]
    n = 4096
    rows = [(f"{i}", m, float(i + 12 * m)) for m in range(n) for i in range(12)]
    good = schedule(problem(*blocks, memory=(1, 1, 1, 1)), *rows, period=12.0, repetend=Repetend(0, n))
    assert violations(good) == []


# -- periods where lanes share a memory ------------------------------------------------------------------------------


def sender(memory: Number) -> Problem:
    return pool(block("f", (0,), 1, [1]), block("s", (1,), 3, [-1], [Dependency("f")]), memory=memory)


@pytest.mark.parametrize(("period", "becomes"), [(4.0, "verified"), (3.5, "open"), (2.5, "false")])
def test_a_period_is_verified_by_times_where_lanes_share_a_memory(period: float, becomes: str) -> None:
    """The order alone would allow 3, for which the memory has no room."""
    rows = [row for m in range(5) for row in (("f", m, 4.0 * m), ("s", m, 4.0 * m + 1))]
    made = schedule(sender(1), *rows, period=period, period_bound=0.0, repetend=Repetend(0, 5))
    found = statements(made)
    assert {"verified": "period" in found.verified, "open": "period" in found.open,
            "false": any(sentence.startswith("period is") for sentence in found.false)}[becomes]
