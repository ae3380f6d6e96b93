"""Garbage is collected seldom while a search runs, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

import weft
from tests.support.builders import chain, pipeline
from weft.cli.main import main
from weft.solver.control.garbage import seldom_collected
from weft.solver.step.search import Progress, solve


def test_afterwards_it_is_collected_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), seldom_collected():
        assert gc.get_threshold() > before
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_searches_have_it_collected_seldom() -> None:
    before, seen = gc.get_threshold(), []

    def hear(_: Progress) -> None:
        seen.append(gc.get_threshold())

    solve(pipeline(chain(2)), 4, effort=0.1, on_progress=hear)
    weft.solve(pipeline(chain(2)), micro_batches=4, effort=0.1, on_progress=hear)
    assert seen and all(threshold > before for threshold in seen)
    with pytest.raises(SystemExit):
        main(["--help"])
    assert gc.get_threshold() == before
