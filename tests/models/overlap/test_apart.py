"""Pieces of a pass as blocks on a GPU and its lane."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.overlap.test_flow import rows
from tests.support.examples import examples
from weft.models.overlap.apart import apart_blocks
from weft.models.overlap.flow import Step, duration, pieces
from weft.solver.problem import BlockKind, Device
from weft.solver.timing import time_orders
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem

DEVICES = (Device("gpu", 100), Device("network", lane_of="gpu"))


def problem_of(steps: list[Step], count: int, memory: int = 0, workspace: int = 0) -> WideProblem:
    whole = WideBlock("F0", BlockKind.FORWARD, (0,), 1, (memory,), (workspace,))
    return WideProblem("pass", DEVICES, tuple(apart_blocks(whole, pieces(steps, count, "batch"), {0: 1})))


@settings(max_examples=examples(100), deadline=None)
@given(rows(), st.sampled_from([1, 2, 4]))
def test_alone_it_takes_as_long_as_the_flow(steps: list[Step], count: int) -> None:
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
    steps = [Step("a", (), 3), Step("b", (0,), 2, pieces={1: 2}), Step("c", (1,), 1)]
    blocks = problem_of(steps, 1, memory, 5).blocks
    assert [block.name for block in blocks] == ["F0 0", "F0 1", "F0"]
    assert [block.memory for block in blocks] == [(first,), (0,), (last,)]
    assert [block.kind for block in blocks] == [BlockKind.FORWARD, BlockKind.COLLECTIVE, BlockKind.FORWARD]


def test_the_last_one_is_behind_both_engines() -> None:
    steps = [Step("a", (), 3), Step("sent", (0,), 9, pieces={1: 9}), Step("weights", (0,), 1)]
    blocks = problem_of(steps, 1).blocks
    assert [block.name for block in blocks] == ["F0 0", "F0 1", "F0 2", "F0"]
    assert {wait.block for wait in blocks[-1].after} == {"F0 1", "F0 2"}
    assert {wait.block for wait in blocks[2].after} == {"F0 0"}
