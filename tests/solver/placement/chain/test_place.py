"""The search for a chain: small cases, large ones, techniques left out, interrupts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.support.placements import chain, graph, ideal_program
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import DeviceKind, Node, PlacementProblem, PlacementTensor, judge
from weft.solver.placement.bracket import Standing
from weft.solver.placement.chain.place import place, place_within
from weft.solver.placement.groups import groups_of
from weft.solver.placement.orders.slice_order import slice_order
from weft.solver.placement.params import PARAMS


@pytest.mark.parametrize("seed", range(6))
def test_the_dynamic_program_over_ideals_agrees(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [Node(f"n{i}", (chance.choice((0.0, 1.0, chance.uniform(1, 5))),)) for i in range(20)]
    tensors = [PlacementTensor(i, tuple(sorted({min(19, i + chance.randint(1, 3)), min(19, i + chance.randint(1, 4))})),
                               chance.uniform(0, 1.5)) for i in range(19)]
    problem = graph(nodes, tensors, DeviceKind("gpu", 3 + seed % 3))
    found = place(problem)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(ideal_program(problem))


def test_a_load_may_exceed_all_work_by_its_transfers() -> None:
    # Had the loads' domain ended at all work there is, this would have been called impossible.
    problem = chain([1, 1], 50, memory=1, held=[1, 1])
    assert place(problem).objective == 51


def test_the_same_seed_gives_the_same_answer_and_steps_are_told() -> None:
    steps: list[Standing] = []
    problem = chain([chance / 7 for chance in range(1, 40)], 0.1, devices=4)
    first = place(problem, effort=2, seed=3, on_step=steps.append)
    assert first.to_json() == place(problem, effort=2, seed=3).to_json()
    assert first.status == "optimal"
    assert steps[-1].objective == pytest.approx(first.objective)
    assert first.to_json()["format"] == "weft.placement/1"


def row(count: int) -> PlacementProblem:
    nodes = [Node(f"n{i}", (1.0 + i % 3,)) for i in range(count)]
    return graph(nodes, [PlacementTensor(i, (i + 1,), 0.1) for i in range(count - 1)], DeviceKind("gpu", 4))


def test_a_good_cutoff_makes_a_large_graph_small_enough_for_proof() -> None:
    problem = row(2000)
    found = place(problem, time_limit=3000)
    best = slice_order(groups_of(problem), range(2000))  # a row has one order only
    assert best is not None and found.objective == pytest.approx(best.value)
    assert found.status == "optimal" and found.solver["coarsening"] is None


@pytest.mark.slow
def test_what_is_too_large_for_proof_is_coarsened_and_said_to_be() -> None:
    found = place_within(row(1000), Budget(seconds=60), params=replace(PARAMS, whole_variables=-1))
    assert found.solver["coarsening"].startswith("heuristic")
    assert found.bound == pytest.approx(1999 / 4)
    assert found.gap < 0.01


def test_an_interrupt_keeps_the_best_so_far() -> None:
    def stop(step: Standing) -> None:
        if step.doing == "exact search":
            raise KeyboardInterrupt

    problem = chain([1 + chance / 7 for chance in range(1, 40)], 0.5, devices=4)
    found = place(problem, on_step=stop)
    assert not judge.breaches(problem, found.stages)
    assert found.bound < found.objective and found.status == "feasible"


def test_where_only_the_exact_search_finds_what_fits_it_is_used_whatever_the_size() -> None:
    found = place_within(chain([3, 1, 4, 1, 5], devices=3), Budget(seconds=60),
                         params=replace(PARAMS, whole_variables=-1), without={"random slicings", "coarse search"})
    assert found.objective == 5
    assert set(found.solver["techniques"]) == {"threshold search", "refinement"}
