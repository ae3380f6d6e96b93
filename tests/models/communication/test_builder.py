"""Layouts follow from what is read, and what does not fit is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from weft.models.communication.builder import Builder
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage


@pytest.fixture
def step() -> Builder:
    made = Builder("step", 4)
    made.input("local", (8, 16), "local")
    made.input("whole", (8, 16))
    made.input("rows", (8, 16), "sliced", 0)
    made.input("columns", (8, 16), "sliced", 1)
    made.input("flat", (8, 16), "sliced")
    made.parameter("weight", (16, 8))
    made.parameter("cut weight", (16, 8), "sliced", 0)
    made.parameter("wide weight", (16, 8), "sliced", 1)
    made.parameter("bias", (16,))
    made.state("state", (8, 16))
    return made


@pytest.mark.parametrize(("left", "right", "lies"), [
    ("whole", "weight", "replicated"), ("local", "weight", "local"), ("columns", "cut weight", "local"),
    ("rows", "weight", "sliced along axis 0"), ("whole", "wide weight", "sliced along axis 1")])
def test_the_layout_of_a_matmul(step: Builder, left: str, right: str, lies: str) -> None:
    made = step.tensors[step.matmul("made", left, right)]
    assert (made.shape, made.lies) == ((8, 8), lies)


@pytest.mark.parametrize(("operands", "lies"), [
    (("whole", "bias"), "replicated"), (("local", "local"), "local"), (("rows", "bias"), "sliced along axis 0"),
    (("flat", "flat"), "sliced flattened")])
def test_the_layout_of_a_sum(step: Builder, operands: tuple[str, ...], lies: str) -> None:
    assert step.tensors[step.pointwise("made", "add", *operands)].lies == lies


def test_the_layout_of_collectives(step: Builder) -> None:
    made = [step.all_reduce("a", "local"), step.reduce_scatter("b", "local", 1), step.all_gather("c", "b"),
            step.reduce("d", "local"), step.broadcast("e", "d"), step.slice("f", "e"), step.send("g", "f"),
            step.norm("h", "f"), step.norm("i", "local")]
    assert [step.tensors[name].lies for name in made] == [
        "replicated", "sliced along axis 1", "replicated", "local", "replicated", "sliced flattened",
        "sliced flattened", "replicated", "local"]
    assert step.tensors["g"].group == 1
    assert step.tensors["b"].held_shape(4) == (8, 4)
    assert step.tensors["f"].held_shape(4) == (32,)
    assert step.tensors["f"].held_bytes(4) * 4 == step.tensors["f"].bytes == 8 * 16 * 4


def test_a_row_is_cut_along_its_axis_when_flattened(step: Builder) -> None:
    assert step.tensors[step.slice("part", "bias")].axis == 0


Wrong = Callable[[Builder], object]
REFUSED: list[tuple[Wrong, str]] = [
    (lambda step: step.pointwise("x", "add", "local", "whole"),
     "stage 'x': 'local' is local and 'whole' replicated, and add does not scale: all-reduce the local one first"),
    (lambda step: step.pointwise("x", "add", "local", "rows"), "reduce-scatter the local one first"),
    (lambda step: step.pointwise("x", "add", "rows", "whole"), "slice it, or gather the other"),
    (lambda step: step.pointwise("x", "add", "columns", "bias"), "'bias' is replicated where 'columns' is sliced"),
    (lambda step: step.pointwise("x", "add", "rows", "columns"), "cut them alike"),
    (lambda step: step.pointwise("x", "add", "flat", "bias"), "'bias' is replicated where 'flat' is sliced flattened"),
    (lambda step: step.pointwise("x", "add", "whole", "weight"), "do not broadcast"),
    (lambda step: step.pointwise("x", "add", "whole"), "add reads 2 tensors and makes one, not 1 and 1"),
    (lambda step: step.pointwise("x", "adds", "whole", "whole"), "there is no pointwise function 'adds'"),
    (lambda step: step.pointwise("x", "add", "whole", step.send("sent", "whole")), "send what comes from the earlier"),
    (lambda step: step.pointwise("x", "add", "whole", "other"), "reads 'other', which nothing before it makes"),
    (lambda step: step.matmul("x", "columns", "weight"), "both are cut where they are summed"),
    (lambda step: step.matmul("x", "whole", "whole"), "matmul multiplies"),
    (lambda step: step.slice("x", "local"), "'local' is local, and parts of different tensors are no slices of one"),
    (lambda step: step.slice("x", "rows"), "gather it first"),
    (lambda step: step.slice("x", "whole", 2), "no axis 2"),
    (lambda step: step.slice("x", step.input("odd", (6, 3)), 0), "axis 0 of 'x' has 6 elements, which 4 ranks do not"),
    (lambda step: step.slice("x", step.input("odd", (3, 5))), "15 elements, which 4 ranks do not divide: pad it"),
    (lambda step: step.all_reduce("x", "whole"), "all_reduce reads a local tensor, 'whole' is replicated"),
    (lambda step: step.reduce_scatter("x", "rows"), "reduce_scatter reads a local tensor"),
    (lambda step: step.all_gather("x", "whole"), "all_gather reads a sliced tensor, 'whole' is replicated"),
    (lambda step: step.broadcast("x", "local", root=4), "the root 4 is none of the 4 ranks"),
    (lambda step: step.dropout("x", "whole", rate=1.0), "the rate 1.0"),
    (lambda step: step.cast("x", "whole", itemsize=3), "3 bytes"),
    (lambda step: step.update("x", "state", "local"), "'state' is replicated, its new value 'local' is local"),
    (lambda step: step.update("x", "state", step.cast("short", "whole", itemsize=2)), "cast or reshape it"),
    (lambda step: step.update("x", "whole", "whole"), "neither a parameter nor a state"),
    (lambda step: (step.update("x", "state", "whole"), step.update("y", "state", "whole")), "updated twice"),
    (lambda step: step.input("whole", (1,)), "used twice"),
    (lambda step: step.input("y", (1,), "local", 0), "only slices are cut along one"),
    (lambda step: step.add("x", "fused", ["whole"]), "no kind 'fused' without parts"),
    (lambda step: Builder("none", 0), "at least one"),
    (lambda step: step.input("y", (4, 0)), "'y' has the shape (4, 0), whose sizes must be at least 1"),
    (lambda step: step.pointwise("x", "scale", "whole"), "stage 'x': the pointwise function 'scale' needs factor"),
    (lambda step: step.pointwise("x", "tanh", "whole", factor=2.0), "has no factor: it takes operands alone"),
    (lambda step: step.add("x", "pointwise", ["whole"]), "pointwise takes function"),
    (lambda step: step.add("x", "slice", ["whole"], axes=0), "slice takes axis, not axes"),
    (lambda step: step.add("x", "norm", ["whole"], axis=0), "norm takes tensors alone, not axis"),
]


@pytest.mark.parametrize(("wrong", "why"), REFUSED)
def test_what_does_not_fit_is_refused(step: Builder, wrong: Wrong, why: str) -> None:
    with pytest.raises(CommunicationError, match=r".") as found:
        wrong(step)
    assert why in str(found.value)
    assert "\n" not in str(found.value)


def test_a_program_of_stages_that_come_from_nowhere_is_refused(step: Builder) -> None:
    program = step.build("whole")
    for stages, outputs, why in [
            ((ProgramStage("a", "norm", ("no",), ("a",)),), (), "reads 'no'"),
            ((ProgramStage("a", "norm", ("whole",), ("a",)),), (), "is no tensor"),
            ((), ("a",), "made by no stage")]:
        with pytest.raises(CommunicationError, match=why):
            CommunicationProgram("wrong", 4, stages, program.tensors, outputs)


@pytest.mark.parametrize(("made", "old", "why"), [
    ("sum", "nothing", "'nothing', which is neither a parameter nor a state"),
    ("sum", "whole", "'whole', which is neither a parameter nor a state"),
    ("sum", "next", "'next', which has two new values"),
    ("sum", "short", r"is replicated, of shape \(8, 16\) .* not replicated, of shape \(16,\)"),
    ("own", "other", "is local, of shape")])
def test_what_is_carried_to_something_else_is_refused(step: Builder, made: str, old: str, why: str) -> None:
    step.state("short", (16,))
    step.state("next", (8, 16))
    step.state("other", (8, 16))
    step.update("updated", "next", step.all_reduce("sum", step.pointwise("own", "tanh", "local")))
    with pytest.raises(CommunicationError, match=f"'{made}' is to be carried to .*{why}"):
        step.build("sum", carried={made: old})
    step.build("sum", carried={"sum": "other"})


def test_layouts_groups_and_sizes_that_there_are_not_are_refused(step: Builder) -> None:
    with pytest.raises(CommunicationError, match="layout 'slice': take one of local, replicated, sliced"):
        step.input("new", (4,), "slice")  # type: ignore[arg-type]
    with pytest.raises(CommunicationError, match="'new' is of the group -1"):
        step.input("new", (4,), group=-1)
    with pytest.raises(CommunicationError, match="itemsize is 3"):
        Builder("step", 2, itemsize=3)
    with pytest.raises(CommunicationError, match="ranks is '2'"):
        Builder("step", "2")  # type: ignore[arg-type]
