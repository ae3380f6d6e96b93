"""One placement problem at several sizes: what is refused, the affine law, and what is least of all sizes."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.stage_graphs import forks
from weft.solver.placement.joint.sized import SizedProblem, affine
from weft.solver.placement.problem import PlacementError


def test_times_follow_the_law_that_is_given() -> None:
    sized = affine(forks(2, 1, devices=2, times=(3.0,), end=0.5, transfer=1.0, held=2.0), 2, (1, 2, 4), 1.0, 8)
    assert sized.sizes == (1, 2, 4)
    assert [sized.by_size[size].nodes[0].times[0] for size in sized.sizes] == [2.0, 3.0, 5.0]
    assert [sized.by_size[size].nodes[2].times[0] for size in sized.sizes] == [0.5, 0.5, 0.5]  # all of it is overhead
    assert [sized.by_size[size].nodes[0].per_micro_batch for size in sized.sizes] == [1.0, 2.0, 4.0]
    assert [sized.by_size[size].tensors[0].time for size in sized.sizes] == [0.5, 1.0, 2.0]
    assert [problem.micro_batches for problem in sized.by_size.values()] == [8, 4, 2]


def test_the_fastest_takes_no_more_and_holds_no_more_than_any_size() -> None:
    sized = affine(forks(2, 1, devices=2, times=(3.0,), memory=20.0), 2, (1, 2, 4), 1.0, 8)
    for size, problem in sized.by_size.items():
        for node, least in zip(problem.nodes, sized.fastest.nodes, strict=True):
            assert (least.times[0] or 0) * size <= (node.times[0] or 0) + 1e-9
            assert least.per_micro_batch * size <= node.per_micro_batch + 1e-9
    assert sized.fastest.micro_batches == 8 and sized.fastest.nodes[0].times == (1.25,)


@pytest.mark.parametrize(("sizes", "mini_batch", "what"), [
    ((3,), 8, "3 does not divide the mini-batch of 8"), ((2, 3), 8, "3 does not divide"),
    ((0, 1), 8, "0 does not divide"), ((), 8, "there are none"),
    ((2, 3), 12, "2 does not divide 3; each must divide the next larger one")])
def test_sizes_that_are_none_are_refused(sizes: tuple[int, ...], mini_batch: int, what: str) -> None:
    with pytest.raises(PlacementError, match=what):
        affine(forks(2, 1, devices=2), 2, sizes, 0.0, mini_batch)


def test_graphs_that_differ_in_more_than_costs_are_refused() -> None:
    one = forks(2, 1, devices=2)
    other = dataclasses.replace(one, tensors=one.tensors[:1])
    with pytest.raises(PlacementError, match="of 2 samples the graph has other tensors than in those of 1"):
        SizedProblem(4, {1: one, 2: other})
    with pytest.raises(PlacementError, match="other devices"):
        SizedProblem(4, {1: one, 2: forks(2, 1, devices=3)})
