"""Steps on two engines, in chunks."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.models.overlap.flow import FlowStep, apart_blocks, duration, pieces, serial
from weft.solver import BlockKind, Device, time_orders
from weft.solver.problem import Block, Problem


def test_narrow_cuts_leave_matrix_products_whole_that_no_collective_reads() -> None:
    divides = {"batch": 4}
    steps = [FlowStep("up", (), 100, 10, divides=divides, is_heavy=True),
             FlowStep("down", (0,), 100, 10, divides=divides, is_heavy=True),
             FlowStep("sum", (1,), 60, pieces={1: 60, 2: 30}, divides=divides)]
    wide, narrow = (pieces(steps, 2, "batch", wide=wide) for wide in (True, False))
    assert [piece.seconds for piece in wide] == [110, 110, 30, 30]
    assert [piece.seconds for piece in narrow] == [100, 55, 55, 30, 30]
    assert duration(steps, 2, "batch") == 250 and duration(steps, 2, "batch", wide=False) == 240


@st.composite
def rows(draw: st.DrawFn) -> list[FlowStep]:
    steps: list[FlowStep] = []
    for number in range(draw(st.integers(1, 9))):
        waits = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=2)))) if number else ()
        seconds = draw(st.integers(1, 9))
        divides = draw(st.sampled_from([{}, {"batch": 2}, {"batch": 4}]))
        sent = draw(st.booleans())
        launch = draw(st.integers(0, 1))
        steps.append(FlowStep(str(number), waits, seconds, launch, divides=divides, is_heavy=draw(st.booleans()),
                              pieces={count: launch + (seconds - launch) / count
                                      for count in (1, 2, 4)} if sent else {}))
    return steps


@for_all(rows(), st.sampled_from([1, 2, 4]), st.booleans(), tries=100)
def test_no_piece_begins_before_what_it_reads_and_all_work_is_done(steps: list[FlowStep], count: int, wide: bool
                                                                   ) -> None:
    found = pieces(steps, count, "batch", wide=wide)
    assert all(source < number for number, piece in enumerate(found) for source in piece.waits)
    took = duration(steps, count, "batch", wide=wide)
    for sent in (False, True):
        work = sum(piece.seconds for piece in found if piece.is_sent == sent)
        assert work <= took * (1 + 1e-9)
        least = sum(step.seconds for step in steps if step.is_sent == sent)
        assert least <= work * (1 + 1e-9) <= (least + count * len(steps)) * (1 + 1e-9)
    assert took <= sum(piece.seconds for piece in found) * (1 + 1e-9)
    if count == 1:
        assert took <= serial(steps) * (1 + 1e-9)


DEVICES = (Device("gpu", 100), Device("network", lane_of="gpu"))


def problem_of(steps: list[FlowStep], count: int, memory: int = 0, workspace: int = 0) -> Problem:
    whole = Block("F0", BlockKind.FORWARD, (0,), 1, (memory,), (workspace,))
    return Problem("pass", DEVICES, tuple(apart_blocks(whole, pieces(steps, count, "batch"), {0: 1})))


@for_all(rows(), st.sampled_from([1, 2, 4]), tries=50)
def test_alone_it_takes_as_long_as_the_flow(steps: list[FlowStep], count: int) -> None:
    plain = problem_of(steps, count).plain()
    orders = [[(number, 0) for number, block in enumerate(plain.blocks) if block.devices == (device,)]
              for device in (0, 1)]
    took = max(operation.end for operation in time_orders(plain, 1, orders))
    first_sent = bool(pieces(steps, count, "batch")[0].is_sent)
    late = any(not piece.waits and number for number, piece in enumerate(pieces(steps, count, "batch")))
    assert took >= duration(steps, count, "batch") * (1 - 1e-9)
    if not first_sent and not late:  # a piece that waits for nothing still comes behind the first one
        assert took == pytest.approx(duration(steps, count, "batch"))


@pytest.mark.parametrize(("memory", "first", "last"), [(70, 75, -5), (-70, 5, -75), (0, 5, -5)])
def test_the_first_takes_everything_and_the_last_gives_back(memory: int, first: int, last: int) -> None:
    steps = [FlowStep("a", (), 3), FlowStep("b", (0,), 2, pieces={1: 2}), FlowStep("c", (1,), 1)]
    blocks = problem_of(steps, 1, memory, 5).blocks
    assert [block.name for block in blocks] == ["F0 0", "F0 1", "F0"]
    assert [block.memory for block in blocks] == [(first,), (0,), (last,)]
    assert [block.kind for block in blocks] == [BlockKind.FORWARD, BlockKind.COLLECTIVE, BlockKind.FORWARD]


def test_the_last_one_is_behind_both_engines() -> None:
    steps = [FlowStep("a", (), 3), FlowStep("sent", (0,), 9, pieces={1: 9}), FlowStep("weights", (0,), 1)]
    blocks = problem_of(steps, 1).blocks
    assert [block.name for block in blocks] == ["F0 0", "F0 1", "F0 2", "F0"]
    assert {wait.block for wait in blocks[-1].after} == {"F0 1", "F0 2"}
    assert {wait.block for wait in blocks[2].after} == {"F0 0"}
