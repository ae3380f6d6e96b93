"""How many samples stages hold, as published, and depths."""

from __future__ import annotations

import pytest

from tests.support.stage_graphs import CHAIN, FORK
from weft.solver.placement.dag.in_flight import depths, in_flight_samples
from weft.solver.placement.problem import PlacementError


def test_stages_in_a_row_hold_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(CHAIN, [64] * 6) == (384, 320, 256, 192, 128, 64)


def test_a_graph_of_stages_holds_as_graphpipe_says_of_candle_uno() -> None:
    assert in_flight_samples(FORK, [64] * 6) == (192, 192, 192, 192, 128, 64)


def test_depth_is_the_longest_way_to_the_end() -> None:
    assert depths(((1, 2), (3,), (3,), (), (3,))) == (3, 2, 2, 1, 2)


def test_stages_in_a_circle_are_refused() -> None:
    with pytest.raises(PlacementError, match="circle"):
        depths(((1,), (0,), ()))
