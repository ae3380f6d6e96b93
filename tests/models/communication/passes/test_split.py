"""An all-reduce in two steps."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.communication import error, steps, tensor_parallel
from weft.communication import Builder, data_parallel, overlap, random_values, reorder, run
from weft.models.communication.passes.split import as_slice, split
from weft.models.communication.program import CommunicationError, CommunicationProgram


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_reduce_scatter_and_an_all_gather(axis: int | None) -> None:
    program = tensor_parallel()
    made = split(program, "total", axis)
    assert [made.by_name[name].kind for name in ("total", "gather(total)")] == ["reduce_scatter", "all_gather"]
    assert made.tensors["total.slice"].axis == axis
    assert made.tensors["total"].layout == "replicated"
    assert error(program, made) < 1e-12


def test_a_reduce_and_a_broadcast() -> None:
    program = tensor_parallel()
    made = split(program, "total", into="reduce")
    assert [stage.kind for stage in made.stages][1:3] == ["reduce", "broadcast"]
    assert error(program, made) < 1e-12


def test_a_slice_of_the_sum_is_what_is_scattered() -> None:
    step = Builder("sliced sum", 2)
    program = step.build(step.norm("norm", step.slice("part", step.all_reduce("sum", step.input("x", (4, 4), "local")),
                                                      0)))
    made = split(program, "sum", 0)
    assert [stage.kind for stage in made.stages] == ["reduce_scatter", "norm"]
    assert error(program, made) < 1e-12
    assert len(split(program, "sum", 1).stages) == 4


def test_what_is_no_all_reduce_is_refused() -> None:
    program = tensor_parallel(4, 16, 8, 18)
    late = overlap(program, ["xw", "total"], 2)
    options: dict[str, Any]
    for given, name, options, said in (
            (program, "xw", {}, "the stage 'xw' is of kind matmul, only an all_reduce is split"),
            (program, "total", {"into": "scatter"}, "no way into 'scatter': take reduce_scatter or reduce"),
            (program, "sum", {}, "there is no stage 'sum'"),
            (program, "total", {"axis": 1}, "18 elements, which 4 ranks do not divide"),
            (late, "total", {"axis": 0}, "'total' runs in chunks already: split before it is overlapped")):
        with pytest.raises(CommunicationError, match=said):
            split(given, name, **options)


def on_slices(optimizer: str, ranks: int, shape: tuple[int, ...] = (8, 12)) -> tuple[CommunicationProgram,
                                                                                     CommunicationProgram]:
    program = data_parallel(optimizer, ranks, shape)
    made = split(program, "gradient")
    moved = [stage.name for stage in made.stages if stage.kind not in ("reduce_scatter", "all_gather")]
    return program, reorder(made, moved, "gather(gradient)")


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adam", "lamb"])
def test_sliced_states_are_one_nth_and_train_alike(optimizer: str, ranks: int) -> None:
    program, made = on_slices(optimizer, ranks)
    made = as_slice(as_slice(made, "weight.mean"), "weight.square")
    assert made.state_bytes() * ranks == program.state_bytes() == 2 * 8 * 12 * 4
    held = run(made, random_values(made))
    assert sum(held[name][0].size for name in ("weight.mean", "weight.square")) * ranks == 2 * 8 * 12
    assert [stage.name for stage in made.stages if stage.kind == "all_gather"] == ["gather(weight.next)"]
    assert made.carried == {"weight.mean.next.slice": "weight.mean", "weight.square.next.slice": "weight.square",
                            "weight.next": "weight"}
    assert error(program, made) < 1e-12
    given = [random_values(program, seed) for seed in range(5)]
    one, other = steps(program, given), steps(made, given)
    assert all(abs(one[name] - other[name]).max() < 1e-12 for name in one)


def test_what_is_needed_whole_is_refused() -> None:
    program, made = on_slices("adam", 4)
    chunked = overlap(made, ["weight.mean.next", "gather(weight.mean.next)"], 2)
    for given, name, said in (
            (program, "weight.mean", r"'weight.mean' is needed whole: the stage 'weight.mean.new' reads"),
            (made, "weight", r"the new value 'weight.next' is needed whole: it is an output"),
            (made, "gradient", "'gradient' is no replicated input, parameter or state"),
            (as_slice(made, "weight.mean"), "weight.mean", "is no replicated input"),
            (chunked, "weight.mean", "runs in chunks already: as_slice before it is overlapped")):
        with pytest.raises(CommunicationError, match=said):
            as_slice(given, name)


@pytest.mark.parametrize(("axes", "why"), [((), "read by no stage"), ((0, 1), "cut in different ways")])
def test_a_tensor_that_is_not_cut_one_way_is_refused(axes: tuple[int, ...], why: str) -> None:
    step = Builder("cuts", 2)
    given = step.parameter("given", (4, 4))
    made = [step.norm(f"norm {axis}", step.slice(f"cut {axis}", given, axis)) for axis in axes]
    with pytest.raises(CommunicationError, match=why):
        as_slice(step.build(*made), "given")


def test_a_state_that_is_updated_whole_is_refused() -> None:
    step = Builder("whole", 2)
    state = step.state("state", (4,))
    part = step.norm("norm", step.slice("part", state))
    new = step.update("next", state, step.input("new", (4,)))
    assert new
    with pytest.raises(CommunicationError, match="needed whole: the stage 'next' reads it"):
        as_slice(step.build(part), "state")
    step = Builder("carried", 2)
    part = step.norm("norm", step.slice("part", step.state("state", (4,))))
    program = step.build(part, carried={step.pointwise("made", "tanh", step.input("new", (4,))): "state"})
    with pytest.raises(CommunicationError, match="'made' is not gathered from slices that are cut alike"):
        as_slice(program, "state")


def test_a_slice_that_is_an_output_keeps_its_name() -> None:
    step = Builder("output", 2)
    program = step.build(step.slice("part", step.parameter("given", (4,))))
    with pytest.raises(CommunicationError, match="what the stage 'part' makes leaves the program"):
        as_slice(program, "given")


@pytest.mark.parametrize(("axis", "part"), [(0, (2, 6)), (1, (4, 3))])
def test_a_tensor_is_sliced_along_the_axis_that_its_readers_cut(axis: int, part: tuple[int, ...]) -> None:
    step = Builder("columns", 2)
    state = step.state("state", (4, 6))
    grown = step.pointwise("grown", "add", step.slice("part", state, axis), step.slice("same", state, axis))
    program = step.build(step.norm("norm", grown), carried={step.all_gather("next", grown): "state"})
    made = as_slice(program, "state")
    assert (made.tensors["state"].layout, made.tensors["state"].axis) == ("sliced", axis)
    values = random_values(made)
    assert [held.shape for held in run(made, values)["state"]] == [part, part]
    assert made.carried == {"grown": "state"} and [stage.kind for stage in made.stages] == ["pointwise", "norm"]
    assert error(program, made) < 1e-12
    given = [random_values(program, seed) for seed in range(3)]
    one, other = steps(program, given), steps(made, given)
    assert all(abs(one[name] - other[name]).max() < 1e-12 for name in one)


def test_a_new_value_that_is_gathered_along_another_axis_is_refused() -> None:
    step = Builder("turned", 2)
    state = step.state("state", (4, 6))
    part = step.norm("norm", step.slice("part", state, 1))
    rows = step.slice("rows", step.input("given", (4, 6)), 0)
    program = step.build(part, carried={step.all_gather("next", rows): "state"})
    with pytest.raises(CommunicationError, match="'next' is not gathered from slices that are cut alike"):
        as_slice(program, "state")
