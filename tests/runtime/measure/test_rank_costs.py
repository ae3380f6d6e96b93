"""Messages and collectives among ranks: which groups, and that all are timed."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.ranks import launch_forked
from weft.runtime.measure.rank_costs import groups_of


def test_groups_are_of_two_four_and_so_on_and_all() -> None:
    assert [len(group) for group in groups_of(6)] == [2, 4, 6]
    assert groups_of(2) == [(0, 1)] and [len(group) for group in groups_of(8)] == [2, 4, 8]


@pytest.mark.slow
def test_every_collective_is_timed_in_every_group() -> None:
    command = [sys.executable, "-m", "weft.runtime.measure.rank_costs", "cpu", "64,4096", "2"]
    ended = launch_forked(3, command)
    assert [end.code for end in ended] == [0, 0, 0], ended
    found = json.loads(ended[0].output)
    assert {(one["kind"], one["ranks"], one["bytes"]) for one in found["collectives"]} == {
        (kind, ranks, size) for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
        for ranks in (2, 3) for size in (64, 4096)}
    assert all(one["seconds"] > 0 and one["repeats"] == 2 for one in found["collectives"])
    assert found["messages"]["pairs"] == 4 and found["messages"]["seconds_a_byte"] >= 0
