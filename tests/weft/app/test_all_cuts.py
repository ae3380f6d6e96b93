"""The tournament over placements and cuts: it ends, and says what its bound covers."""

from __future__ import annotations

import time

import pytest

import weft
from tests.support.cut_specs import drawn_spec
from weft.models.cuts.space import CutSpace


def test_a_search_whose_cuts_cannot_all_be_listed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = CutSpace.open
    monkeypatch.setattr(CutSpace, "open", lambda space, below, most=3: whole(space, below, min(most, 3)))
    spec = drawn_spec(1, "split", count=9, gpus=3, micro_batches=4, shapes=["chain", "v"], chunks=2)
    began = time.monotonic()
    found = weft.solve(spec, time_limit=240.0, effort=30.0)
    assert time.monotonic() - began < 200.0  # it does not wait for the time limit
    assert found.solver["bound_over_placements"] <= found.makespan


def test_the_answer_names_the_cuts_that_its_bound_covers() -> None:
    found = weft.solve(drawn_spec(2, "full", shapes=["chain", "v"], chunks=2), time_limit=60.0, effort=1.0)
    assert str(found.solver["covered"]).startswith("every cut of the 6 layers (1 stage a GPU; V, 2 chunks; B)")
