"""The bound on a step while sizes are open, against the best order of every choice from them."""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import strategies as st

from tests.support.examples import for_all
from tests.support.sized_stages import best_step, every_choice, every_cut, sized_problems
from tests.support.stage_graphs import forks
from weft.solver.placement.joint.cuts import cut_of
from weft.solver.placement.joint.sized import SizedProblem, affine
from weft.solver.placement.joint.step_bound import open_sizes, stage_bounds
from weft.solver.placement.problem import PlacementProblem


@for_all(sized_problems(), st.data(), tries=20)
def test_no_choice_from_open_sizes_has_a_shorter_step(sized: SizedProblem, data: st.DataObject) -> None:
    cut = data.draw(st.sampled_from(sorted(every_cut(sized), key=lambda cut: cut.parts)))
    allowed = tuple(tuple(sorted(data.draw(st.sets(st.sampled_from(sizes), min_size=1)))) for sizes in open_sizes(cut))
    bounds = stage_bounds(cut, allowed)
    for sizes in itertools.product(*allowed):
        best = best_step(cut, sizes)
        assert max(by_size[size] for by_size, size in zip(bounds, sizes, strict=True)) <= best * (1 + 1e-9)


def test_a_stage_without_room_for_a_later_stages_micro_batch_has_no_schedule() -> None:
    """Four samples must be forward on the first stage, which has room for two, before one is backward."""
    sized = affine(forks(1, 1, devices=2, held=1.0, memory=4.0), 1, (1, 2, 4), 0.0, 4)
    tight = SizedProblem(4, {size: _kept(problem, (2.0 * size, 0.5 * size)) for size, problem in sized.by_size.items()})
    cut = cut_of(tight, ((0, (0,)), (0, (1,))))
    assert max(stage_bounds(cut, ((1,), (4,)))[0].values()) == float("inf")
    assert best_step(cut, (1, 4)) == float("inf")
    assert max(stage_bounds(cut, ((1,), (2, 4)))[0].values()) < float("inf")
    assert len(list(every_choice(cut))) == 9


def _kept(problem: PlacementProblem, amounts: tuple[float, ...]) -> PlacementProblem:
    return dataclasses.replace(problem, nodes=tuple(
        dataclasses.replace(node, per_micro_batch=amount) for node, amount in zip(problem.nodes, amounts, strict=True)))
