"""The search driver: optima known from publications, limits, interruption, explanation, unrolling."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partialmethod

import pytest

import weft.solver.step.phases as phases
from experiments.lib.generated import problem as drawn_problem
from experiments.lib.generated import suite
from tests.support import pipeline, shape, slow, v
from weft.solver import Block, BlockKind, Budget, Dependency, Device, Problem, unroll
from weft.solver.period.improvers.starts import STARTS
from weft.solver.step.search import MAX_OPERATIONS, OPTIONAL, Infeasible, Progress, Search, solve
from weft.solver.step.state import State


@pytest.mark.parametrize(("cap", "makespan"), [slow(4, 59), slow(5, 56), (6, 53), (8, 51)])
def test_uniform_v_with_split_backward_reaches_the_proven_optimum(cap: int, makespan: int) -> None:
    """Four devices, two chunks, eight micro-batches, F = I = W = 1; a cap of 8 is 1F1B's memory."""
    schedule = solve(pipeline(v(4), forward=1, split=(1, 1), memory=cap), 8, time_limit=3000, effort=60)
    assert (schedule.makespan, schedule.makespan_bound) == (makespan, makespan)


def test_the_search_ends_as_soon_as_the_bound_meets_the_best() -> None:
    """The bound of 55 rises to the best, 59, long after that was found; then only a steady state is looked for."""
    search = Search(pipeline(v(4), forward=1, split=(1, 1), memory=4), 8, Budget(deterministic=60.0))
    proven = [search.incumbent.optimal for _ in search.steps()]
    assert proven.index(True) == len(proven) - 2
    assert search.best is not None and search.best.period == 6


@pytest.mark.parametrize("kind", ["chain", "m", "nn", "k"])
def test_a_tessel_problem_of_eight_micro_batches_has_a_steady_state(kind: str) -> None:
    schedule = solve(shape(kind, 4, 6), 8, time_limit=3000, effort=1)
    assert schedule.period == schedule.period_bound == {"chain": 4, "m": 6, "nn": 8, "k": 6}[kind]
    assert schedule.repetend is not None


def test_unrolling_to_fewer_than_the_edges_take_is_refused() -> None:
    schedule = solve(shape("m", 4, 6), 64, effort=0.5)
    with pytest.raises(ValueError, match=r"warm-up and cool-down take \d+ micro-batches, it cannot run 1"):
        unroll(schedule, 1)


def test_a_known_schedule_is_a_place_to_start_from() -> None:
    problem = shape("nn", 4, 6)
    best = solve(problem, 8, effort=1)
    again = solve(problem, 8, effort=0.01, start=best)
    assert again.makespan <= best.makespan


def test_ctrl_c_returns_the_best_so_far() -> None:
    def interrupt(progress: Progress) -> None:
        if progress.phase != "baselines" and not fired.is_set():
            fired.set()
            threading.Timer(0.2, signal.raise_signal, (signal.SIGINT,)).start()

    fired = threading.Event()
    began = time.monotonic()
    schedule = solve(pipeline(v(8), forward=3, split=(4, 2), memory=7), 24, time_limit=100, on_progress=interrupt)
    assert schedule.solver["interrupted"] is True
    assert time.monotonic() - began < 60


def test_too_little_memory_names_the_device_and_what_works() -> None:
    problem = Problem("tight", (Device("small", 5), Device("large", 100)), (
        Block("a", BlockKind.FORWARD, (0,), 1, (4,)), Block("b", BlockKind.FORWARD, (0,), 1, (3,)),
        Block("c", BlockKind.BACKWARD, (0, 1), 1, (-7, 0), after=(Dependency("a"), Dependency("b")))), memory_unit="MB")
    with pytest.raises(Infeasible, match=r"device 'small' has 5 MB, 2 MB too little: the least that works is 7 MB"):
        solve(problem, 4)
    enough = Problem("enough", (Device("small", 7), Device("large", 100)), problem.blocks, memory_unit="MB")
    assert solve(enough, 4, effort=1).peak_memory[0] == 7


@pytest.mark.parametrize(("micro_batches", "message"), [(0, "at least 1"), (10**6, f"more than {MAX_OPERATIONS}")])
def test_absurd_numbers_of_micro_batches_are_refused(micro_batches: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solve(shape("chain", 4, 4), micro_batches)


def test_inference_is_solved_to_its_bound() -> None:
    schedule = solve(shape("nn", 4, None), 32, effort=5)
    assert schedule.status == "optimal"
    assert schedule.makespan == 32 * 3 + 3


def test_memory_given_before_it_is_taken_does_not_break_the_search() -> None:
    """In the steady state b0 lives on what another micro-batch's b3 gave back; the first ones have no such luck."""
    problem = Problem("odd", (Device("gpu0", 1), Device("gpu1")), (
        Block("b1", BlockKind.FORWARD, (0,), 1, (1,)),
        Block("b2", BlockKind.FORWARD, (1,), 1, after=(Dependency("b1"),)),
        Block("b3", BlockKind.FORWARD, (0,), 1, (-2,), after=(Dependency("b2"),)),
        Block("b0", BlockKind.FORWARD, (0,), 1, (1,))))
    for micro_batches in (3, 9):
        assert solve(problem, micro_batches, effort=1).makespan >= 3 * micro_batches


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


def test_a_phase_that_is_left_out_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them runs where it is not named, and does not where it is, with two others."""
    names = ["Whole", "States", "Moves", "Polish", "SteadyState"]
    ran: set[str] = set()

    def noted(self: object, run: Callable[[object, State], Iterator[None]], state: State) -> Iterator[None]:
        ran.add(type(self).__name__)
        return run(self, state)

    for name in names:
        monkeypatch.setattr(getattr(phases, name), "steps", partialmethod(noted, getattr(phases, name).steps))
    problem, micro_batches = drawn_problem(suite(540, 0)[400])  # 162 operations, open for a while
    for without in (set(), set(names[::2]), set(names[1::2])):
        ran.clear()
        solve(problem, micro_batches, effort=0.15, without=without)
        assert ran == set(names) - without
