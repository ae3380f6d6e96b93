"""Sizes come out by rising bound, all of them, interchangeable ones once."""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.sized_stages import every_choice, every_cut, sized_problems
from weft.solver.placement.joint import size_search
from weft.solver.placement.joint.size_search import SizeSearch
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.joint.step_bound import stage_bounds


@for_all(sized_problems(most=4, sizes=(1, 2, 4), batch=4), tries=30)
def test_every_choice_comes_out_by_rising_bound(sized: SizedProblem) -> None:
    cuts = sorted(every_cut(sized), key=lambda cut: cut.parts)[:4]
    search = SizeSearch(cuts)
    found = []
    for choice in search.below(math.inf, 10**6):
        assert search.bound <= choice.bound
        found.append(choice)
    assert search.bound == math.inf
    assert all(one.bound <= other.bound for one, other in pairwise(found))
    for number, cut in enumerate(cuts):
        out = {choice.sizes for choice in found if choice.cut == number}
        possible = {sizes for sizes in every_choice(cut) if all(
            min(by_size.values()) < math.inf for by_size in stage_bounds(cut, tuple((size,) for size in sizes)))}
        for sizes in possible - out:  # a twin of it came out
            assert cut.twins and any(sorted(sizes) == sorted(other) for other in out)
        assert out <= possible


@for_all(sized_problems(most=4, sizes=(1, 2, 4), batch=4), st.integers(0, 20), tries=30)
def test_a_stop_while_choices_are_divided_proves_nothing_of_them(sized: SizedProblem, calls: int) -> None:
    cut = min(every_cut(sized), key=lambda cut: cut.parts)
    search, asked = SizeSearch([cut]), itertools.count()

    def stopped(*args: Any) -> Any:
        if next(asked) == calls:
            raise KeyboardInterrupt
        return stage_bounds(*args)

    out = []
    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(size_search, "stage_bounds", stopped)
        for choice in search.below(math.inf, 10**6):
            out.append(choice.bound)
    best = min((choice.bound for choice in SizeSearch([cut]).below(math.inf, 10**6)), default=math.inf)
    assert min([search.bound, search.bound_of(0), *out]) <= best
