"""Sizes come out by rising bound, all of them, interchangeable ones once."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings

from tests.support.examples import examples
from tests.support.sized_stages import every_choice, every_cut, sized_problems
from weft.solver.placement.joint.size_search import SizeSearch
from weft.solver.placement.joint.sized import SizedProblem
from weft.solver.placement.joint.step_bound import stage_bounds


@settings(max_examples=examples(30))
@given(sized_problems(most=4, sizes=(1, 2, 4), batch=4))
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
