"""What an ablation may leave out: every name is known, and is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.lib.generated import problem as drawn_problem
from experiments.lib.generated import suite
from tests.support.builders import pipeline, v
from weft.solver.period.improvers.starts import STARTS
from weft.solver.step.optional import OPTIONAL
from weft.solver.step.search import solve
from weft.solver.step.state import State


def test_an_unknown_technique_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no technique is called Moving; there are "):
        solve(pipeline(v(2), forward=3, memory=3), 4, without={"Moving"})


def test_names_are_told_apart() -> None:
    assert len(set(OPTIONAL)) == len(OPTIONAL)
    assert {"Moves", "Polish", "SteadyState", "ring-search", "1f1b"} <= set(OPTIONAL)


def test_starts_that_are_left_out_are_not_made() -> None:
    problem = pipeline(v(3), forward=3, memory=3)
    first = []
    for without in (set(), set(STARTS)):
        heard: list[str] = []
        solve(problem, 6, effort=0.2, without=without,
              on_progress=lambda progress, heard=heard: heard.append(progress.best.solver["name"]))  # type: ignore[misc]
        first.append(heard[0])
    assert first[0] in STARTS and first[1] == "weft"


@pytest.mark.parametrize("name", ["Whole", "States", "Moves", "Polish", "Tighten", "SteadyState"])
def test_a_phase_that_is_left_out_does_not_run(name: str) -> None:
    import weft.solver.step.phases as phases

    ran: list[str] = []
    run = getattr(phases, name).steps

    def noted(self: object, state: State) -> Iterator[None]:
        ran.append(type(self).__name__)
        return run(self, state)  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(getattr(phases, name), "steps", noted)
        problem, micro_batches = drawn_problem(suite(540, 0)[494])  # 84 operations, open for a while
        for without in (set(), {name}):
            ran.clear()
            solve(problem, micro_batches, effort=0.15, without=without)
            assert bool(ran) is not bool(without)
