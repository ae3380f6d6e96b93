"""The best cut of one order."""

from __future__ import annotations

from tests.support.placements import chain
from weft.solver.placement.groups import groups_of
from weft.solver.placement.orders.slice_order import slice_order


def test_a_slicing_is_the_best_of_its_order() -> None:
    groups = groups_of(chain([3, 1, 4, 1, 5], 0.5, devices=3))
    found = slice_order(groups, range(5))
    assert found is not None and found.value == 6.0  # 3 1 | 4 1 | 5, and each cut costs 0.5 on both sides
