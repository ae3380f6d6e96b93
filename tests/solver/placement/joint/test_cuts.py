"""Costs of stages at their sizes, against those of a placement at one size; interchangeable paths of stages."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.replicated_stages import shared, two
from tests.support.stage_graphs import EFFORT, forks, work_of
from weft.solver.placement import PlacementProblem, place_graph
from weft.solver.placement.groups import parts_of
from weft.solver.placement.joint.cuts import cut_of
from weft.solver.placement.joint.sized import SizedProblem, affine


def test_one_size_for_all_costs_what_the_placement_says() -> None:
    sized = affine(forks(3, 2, devices=7, transfer=0.25, held=1.0, resident=2.0, memory=8.0), 1, (1, 2), 0.5, 12)
    for size, problem in sized.by_size.items():
        found = place_graph(problem, effort=EFFORT)
        cut = cut_of(sized, parts_of(found.stages), [stage.devices for stage in found.stages])
        assert cut.after == found.after
        for ours, theirs in zip(cut.works((size,) * len(cut.parts)), work_of(problem, found.stages, size, spread=True),
                                strict=True):
            assert (ours.forward, ours.backward) == pytest.approx((theirs.forward, theirs.backward))
            assert (ours.kept, ours.memory, ours.static) == pytest.approx((theirs.kept, theirs.memory, theirs.static))


def test_replicated_stages_have_their_all_reduce_in_equal_parts() -> None:
    problem = shared(two(4), 2, 3, all_reduce=0.75)
    sized = SizedProblem(problem.micro_batches or 1, {1: problem})
    found = place_graph(sized.any)
    cut = cut_of(sized, parts_of(found.stages), [stage.devices for stage in found.stages])
    for ours, theirs in zip(cut.works((1, 1)), work_of(sized.any, found.stages, spread=True), strict=True):
        assert (ours.forward, ours.backward, ours.devices) == pytest.approx(
            (theirs.forward, theirs.backward, theirs.devices))


def test_a_large_micro_batch_takes_its_neighbours_small_ones_in_several_messages() -> None:
    sized = affine(forks(1, 1, devices=2, transfer=1.0), 1, (1, 4), 0.0, 4)
    latency = {size: 1.0 + size for size in sized.sizes}  # one second a message, and one a sample
    sized = SizedProblem(4, {size: _with_transfers(problem, latency[size]) for size, problem in sized.by_size.items()})
    cut = cut_of(sized, ((0, (0,)), (0, (1,))))
    alike, apart = cut.works((4, 4)), cut.works((1, 4))
    assert alike[1].forward + alike[1].backward == pytest.approx(4 + 5)
    assert apart[1].forward + apart[1].backward == pytest.approx(4 + 4 * 2)  # four messages of one sample
    assert apart[0].forward + apart[0].backward == pytest.approx(1 + 2)


def _with_transfers(problem: PlacementProblem, time: float) -> PlacementProblem:
    return dataclasses.replace(problem, tensors=tuple(dataclasses.replace(t, time=time) for t in problem.tensors))


def test_equal_branches_are_twins_and_unequal_ones_are_not() -> None:
    problem = affine(forks(2, 2, devices=5), 1, (1, 2), 0.5, 4)
    cut = cut_of(problem, tuple((0, (node,)) for node in range(5)))
    assert len(cut.twins) == 1
    halves = cut_of(problem, ((0, (0, 1)), (0, (2,)), (0, (3,)), (0, (4,))))
    assert halves.twins == ()
