"""Orders of forwards and gradients kept, weight gradients placed anew."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, pipeline
from weft.solver import BASELINES, time_orders
from weft.solver.baselines.lib.building_block import StepChain
from weft.solver.baselines.rivals.weights_anew import WEIGHT, Rule, in_order, without_micro_batches
from weft.solver.pipeline import Pipeline

#: Two stages, F = 2, I = 2, W = 3; two micro-batches. Steps: F0 F1 I1 I0.
PROBLEM = pipeline(chain(2), forward=2, split=(2, 3), memory=2)
ROWS = [[0, 0, 3, 3], [1, 2, 1, 2]]


@pytest.mark.parametrize(("rule", "ends"), [
    # device 0: F 0-2, F 2-4, gradients arrive at 6 and 10; device 1: F 2-4, I 4-6, F 6-8, I 8-10, W 10-13, W 13-16
    (Rule.IN_TIME, [18, 16]),  # device 0: I 6-8, no W of 3 ends by 10, I 10-12, W 12-15, W 15-18
    (Rule.ANY_GAP, [16, 16]),  # device 0: I 6-8, W 8-11, I 11-13, W 13-16
    (Rule.FAIR, [16, 16]),  # the same: device 0, idle from 4 to 6, is the one that was idle longest
])
def test_each_rule_by_hand(rule: Rule, ends: list[float]) -> None:
    made = in_order(StepChain.of(Pipeline.of(PROBLEM)), ROWS, 2, rule)
    assert made is not None
    operations = time_orders(PROBLEM, 2, made.rows)
    assert [max(o.end for o in operations if PROBLEM.blocks[o.block].devices == (d,)) for d in (0, 1)] == ends
    assert made.makespan == max(ends)


def test_as_given_is_the_order_itself() -> None:
    rows = BASELINES["zb-h1"].orders(PROBLEM, 6)
    steps = StepChain.of(Pipeline.of(PROBLEM))
    made = in_order(steps, without_micro_batches(steps, rows), 6, Rule.AS_GIVEN)
    assert made is not None
    assert made.rows == [list(row) for row in rows]
    assert made.makespan == max(operation.end for operation in time_orders(PROBLEM, 6, rows))


def test_a_weight_gradient_makes_room_at_once() -> None:
    tight = pipeline(chain(2), forward=2, split=(2, 3), memory=1)
    made = in_order(StepChain.of(Pipeline.of(tight)), [[0, 3, 0, 3], [1, 2, 1, 2]], 2, Rule.IN_TIME)
    assert made is not None
    assert [tight.blocks[block].name for block, _ in made.rows[0]] == ["f0", "b0", "w0"] * 2


@pytest.mark.parametrize("rows", [[[0, 3, 0, 3], [1, 1, 2, 2]], [[0, WEIGHT, 3, 0, 3, WEIGHT], [1, 2, 1, 2]]])
def test_what_cannot_run_is_refused(rows: list[list[int]]) -> None:
    """A circle of waits; a weight gradient before its gradient."""
    assert in_order(StepChain.of(Pipeline.of(PROBLEM)), rows, 2, Rule.AS_GIVEN) is None
