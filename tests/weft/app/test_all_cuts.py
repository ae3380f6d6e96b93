"""The tournament over placements and cuts: it ends, and says what its bound covers."""

from __future__ import annotations

import pytest

import weft
from tests.support.cut_specs import best_of_all_cuts, drawn_spec
from tests.support.examples import slow
from weft.models.cuts.space import CutSpace
from weft.solver import Infeasible


@pytest.mark.slow
def test_a_search_whose_cuts_cannot_all_be_listed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CutSpace.open
    monkeypatch.setattr(CutSpace, "open", lambda space, below, most=3: whole(space, below, min(most, 3)))
    spec = drawn_spec(1, "split", count=9, gpus=3, micro_batches=4, shapes=["chain", "v"], chunks=2)
    found = weft.solve(spec, time_limit=3000.0, effort=30.0)  # longer than a test may take
    assert found.solver["bound_over_placements"] <= found.makespan


def test_the_answer_names_the_cuts_that_its_bound_covers() -> None:
    found = weft.solve(drawn_spec(2, "full", shapes=["chain", "v"], chunks=2), time_limit=3000, effort=1.0)
    assert str(found.solver["covered"]).startswith("every cut of the 6 layers (1 stage a GPU; V, 2 chunks; B)")


@pytest.mark.parametrize("most", [1, slow(2)])
def test_cuts_that_are_not_listed_stay_in_the_bound_over_every_cut(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a few cuts are ever listed; the best of all may be one of the others."""
    whole = CutSpace.open
    monkeypatch.setattr(CutSpace, "open", lambda space, below, _=0: whole(space, below, most))
    solved = missed = 0
    for number in range(6):
        spec = drawn_spec(number, "full", count=5, gpus=2, micro_batches=2, shapes=["chain", "v"], chunks=2)
        best = best_of_all_cuts(spec)
        if best is None:
            continue
        try:
            found = weft.solve(spec, effort=0.2)
        except Infeasible:
            continue
        assert str(found.solver["covered"]).startswith("every cut")
        assert found.solver["bound_over_placements"] <= float(best) * (1 + 1e-9)
        solved, missed = solved + 1, missed + (found.makespan > float(best) * (1 + 1e-9))
    assert solved >= 3
