"""Divisions of GPUs into groups of two sizes: against every way to share out the layers of a small model."""

from __future__ import annotations

import random

import numpy as np

from tests.models.tensor_parallel.bound.test_any_placement import homes
from weft.models.tensor_parallel.bound.layer_terms import LayerTerms
from weft.models.tensor_parallel.group_divisions import divisions


def test_a_division_of_two_sizes_is_the_fastest_there_is() -> None:
    """The least load of the busiest group over all ways to give layers to groups of both sizes; larger groups first."""
    draw = random.Random(4)
    for _ in range(25):
        count = draw.randint(3, 5)
        whole = [draw.choice((12, 20, 33)) * 1000 for _ in range(count)]
        load = np.array([[one, one * 6 // 10, one // 4] for one in whole])
        zero = np.zeros_like(load)
        terms = LayerTerms((1, 2, 4), load, zero, zero, zero, zero, is_row=False, is_split=False)
        found = divisions(terms, 4, 1, float("inf"))
        best = min(max(sum(int(load[i, home_degree(home)]) for i, home in enumerate(placed) if gpu in home)
                       for gpu in range(4))
                   for placed in homes(count, 4, (1, 2))
                   if [sum(len(home) == size for home in set(placed)) for size in (1, 2)] <= [2, 1]
                   and sum(len(home) == 2 for home in set(placed)) <= 1)
        assert all(sum(division) == 4 and list(division) == sorted(division, reverse=True) for division in found)
        assert (2, 1, 1) in found
        assert not divisions(terms, 4, 1, best * 0.999)
        assert divisions(terms, 4, 1, best) == [(2, 1, 1)]


def home_degree(home: tuple[int, ...]) -> int:
    """The column of a group's size."""
    return len(home) - 1
