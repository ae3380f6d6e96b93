"""How many samples stages hold, as published, and depths."""

from __future__ import annotations

import pytest

from tests.support.stage_graphs import CHAIN, FORK
from weft.solver.placement.dag.in_flight import Alternation, depths, in_flight_samples
from weft.solver.placement.problem import PlacementError


def test_stages_in_a_row_hold_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(CHAIN, [Alternation(64)] * 6) == (384, 320, 256, 192, 128, 64)


def test_a_graph_of_stages_holds_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(FORK, [Alternation(64)] * 6) == (192, 192, 192, 192, 128, 64)


def test_two_forwards_of_one_sample_above_a_stage_of_two_hold_as_in_graphpipes_resnet() -> None:
    """Its stage 0 runs 2F2B in micro-batches of 1 and holds 16 above stages of 2 that hold 14, 12 ... 2."""
    after = [(s + 1,) for s in range(7)] + [()]
    held = in_flight_samples(after, [Alternation(1, 2)] + [Alternation(2)] * 7)
    assert held[:2] == (16, 14)


def test_depth_is_the_longest_way_to_the_end() -> None:
    assert depths(((1, 2), (3,), (3,), (), (3,))) == (3, 2, 2, 1, 2)


def test_stages_in_a_circle_are_refused() -> None:
    with pytest.raises(PlacementError, match="circle"):
        depths(((1,), (0,), ()))


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_an_alternation_without_samples_is_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(PlacementError, match="1 or more"):
        Alternation(*sizes)
