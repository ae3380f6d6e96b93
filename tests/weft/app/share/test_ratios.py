"""Ratios and slowdowns, as they are said."""

from __future__ import annotations

from typing import Any

import pytest

from weft.app.share.ratios import filling_ratios, ratio_given, slowdowns_given, small_ratios
from weft.models.share.job import SharingError


@pytest.mark.parametrize(("ratio", "steps"), [
    ("2:1", (2, 1)), ((2, 4), (1, 2)), ({"b": 3, "a": 1}, (1, 3)), ("64:1", (64, 1))])
def test_what_a_ratio_says(ratio: Any, steps: tuple[int, ...]) -> None:
    assert ratio_given(ratio, ["a", "b"]) == steps


@pytest.mark.parametrize(("ratio", "message"), [
    ("2:1:1", "3 numbers for 2 jobs"), ("1.5:1", "never align .3:2 in place of 1.5:1"), ("0:1", "no whole number"),
    ("x:1", "no whole number"), ({"a": 1, "c": 1}, "ratio names a, c"), ((True, 1), "no whole number"),
    ("97:101", "meet again after 101 steps .* so they never align; give a ratio of smaller numbers, as 1:1")])
def test_ratios_that_mean_nothing_or_never_align(ratio: Any, message: str) -> None:
    with pytest.raises(SharingError, match=message):
        ratio_given(ratio, ["a", "b"])


def test_small_ratios_are_each_there_once_and_the_even_one_is_first() -> None:
    assert small_ratios(2) == [(1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 3), (3, 2)]
    assert small_ratios(3)[0] == (1, 1, 1) and len(small_ratios(3)) == 7 and small_ratios(5) == [(1,) * 5]


def test_slowdowns_are_of_all_jobs_or_of_some() -> None:
    assert slowdowns_given(1.2, ["a", "b"]) == {"a": 1.2, "b": 1.2}
    assert slowdowns_given({"b": 2}, ["a", "b"]) == {"b": 2} and slowdowns_given(None, ["a"]) == {}


@pytest.mark.parametrize(("limit", "message"), [
    ({"c": 2}, "names 'c'"), (0.9, "at least 1"), ({"a": True}, "at least 1"), (float("inf"), "at least 1")])
def test_slowdowns_that_mean_nothing(limit: Any, message: str) -> None:
    with pytest.raises(SharingError, match=message):
        slowdowns_given(limit, ["a", "b"])


def test_short_steps_fill_what_a_long_one_leaves_idle() -> None:
    assert filling_ratios([100, 6], [[60, 40], [4, 2]]) == [(1, 10)]  # 40 / 4 on the GPU, 60 / 2 on the network
    assert filling_ratios([6, 100], [[4, 0], [60, 100]]) == [(10, 1)]
    assert filling_ratios([100, 1], [[0, 0], [1, 0]]) == [(1, 16)]
    assert filling_ratios([100, 20], [[60, 40], [18, 2]]) == []  # two: a small ratio
    assert filling_ratios([9, 9, 9], [[0], [0], [0]]) == []
