"""The order of operators, and problems that mean nothing."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.placements import GPU, graph
from tests.support.replicated_stages import two
from weft.solver.placement.problem import Degree, DeviceKind, Node, PlacementError, PlacementTensor


def test_a_backward_operator_without_a_twin_is_placed_as_if_mirrored() -> None:
    nodes = [Node("a", (1,), colocation=0), Node("loss", (1,), backward=True), Node("a'", (1,), colocation=0,
                                                                                    backward=True)]
    problem = graph(nodes, [PlacementTensor(0, (1,), 0), PlacementTensor(1, (2,), 0)])
    assert problem.order == ((2, 1),)

A, B = Node("a", (1,)), Node("b", (1,))


@pytest.mark.parametrize(("nodes", "tensors", "kinds", "sentence"), [
    ([], [], (GPU,), "the graph has no operators, it needs at least one"),
    ([A], [], (DeviceKind("gpu", 0),), "there are no devices, at least one is needed"),
    ([A, A], [], (GPU,), "operators: the name 'a' is used twice"),
    ([Node("a", (1, 2))], [], (GPU,), "operator 'a': 2 times for 1 kinds of device, it needs one for each"),
    ([A, B], [PlacementTensor(0, (2,), 1)], (GPU,), "tensor 0: there is no operator 2, they are numbered 0 to 1"),
    ([A, B], [PlacementTensor(0, (), 1)], (GPU,), "tensor 0, produced by 'a': it has no consumer, leave it out"),
    ([A, B], [PlacementTensor(0, (1,), -1)], (GPU,),
     "tensor 0, produced by 'a': transfer time is -1, it must be 0 or more"),
    ([A, B], [PlacementTensor(0, (1,), 0), PlacementTensor(1, (0,), 0)], (GPU,),
     "the operators a -> b -> a form a cycle; an operator graph has none, remove one of these edges"),
    ([Node("a", (1,), backward=True), B], [PlacementTensor(0, (1,), 0)], (GPU,),
     "tensor 0: the backward operator 'a' feeds the forward operator 'b'; mark the latter as backward too"),
    ([Node("a", (1, None))], [], (DeviceKind("gpu", 0), DeviceKind("cpu", 1)),
     "operator 'a' runs on gpu only, and there is no such device; add one, or a time on another kind"),
    ([Node("a", (1, None), colocation=1), Node("b", (None, 1), colocation=1)], [], (GPU, DeviceKind("cpu", 1)),
     "operators 'a', 'b' must share a device, but no kind of device there is runs all of them; take them apart, or "
     "give times on one kind"),
])
def test_a_problem_that_means_nothing_is_refused(nodes: list[Node], tensors: list[PlacementTensor],
                                                 kinds: tuple[DeviceKind, ...], sentence: str) -> None:
    with pytest.raises(PlacementError) as refused:
        graph(nodes, tensors, *kinds)
    assert str(refused.value) == sentence


def test_negative_and_missing_costs_are_refused() -> None:
    for time, memory, sentence in ((-1.0, 0.0, "time is -1.0, it must be 0 or more"),
                                   (None, 0.0, "no kind of device supports it, give it a time on at least one"),
                                   (float("nan"), 0.0, "time is nan, it must be a finite number of at most 1e+100"),
                                   (1.0, -2.0, "memory is -2.0, it must be 0 or more")):
        with pytest.raises(PlacementError) as refused:
            Node("a", (time,), memory)
        assert str(refused.value) == f"operator 'a': {sentence}"


@pytest.mark.parametrize(("degrees", "micro_batches", "message"), [
    ((Degree(2, ((0.5,),)),), 4, "stages on 2 devices: times of 1 operators, there are 2"),
    ((Degree(3, ((1.0,), (1.0,))), Degree(2, ((1.0,), (1.0,)))), 4, "by rising number of devices"),
    ((Degree(2, ((0.5,), (None,))),), 4, "operator 'b' has times on other kinds"),
    ((Degree(2, ((0.5,), (1.5,)), 1.0),), None, "say how many micro-batches a step has"),
    ((Degree(2, ((0.5,), (-1.5,))),), 4, "operator 'b': time is -1.5"),
])
def test_degrees_that_mean_nothing_are_refused(degrees: tuple[Degree, ...], micro_batches: int | None,
                                               message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        dataclasses.replace(two(4), degrees=degrees, micro_batches=micro_batches)


def test_a_stage_on_one_device_is_not_replicated() -> None:
    with pytest.raises(PlacementError, match="give 2 or more"):
        Degree(1, ())
