"""Pipelines recognised in block problems, or why a problem is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.builders import chain, loop, pipeline, v, waves
from weft.solver.pipeline import NotAPipeline, Pipeline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem


def blocks(*rows: tuple[str, str, int, str]) -> Problem:
    """Rows of name, kind, device and the names it waits for, separated by blanks."""
    count = max(device for _, _, device, _ in rows) + 1
    return Problem("p", tuple(Device(f"gpu{d}", 4) for d in range(count)), tuple(
        Block(name, BlockKind(kind), (device,), 1, (0,), (), tuple(Dependency(item) for item in after.split()))
        for name, kind, device, after in rows))


VSHAPE = blocks(  # the V shape of the Tessel evaluation, 4 devices
    ("b00", "forward", 0, ""), ("b01", "forward", 1, "b00"), ("b02", "forward", 2, "b01"), ("b03", "forward", 3, "b02"),
    ("b04", "backward", 3, "b03"), ("b05", "backward", 2, "b04"), ("b06", "backward", 1, "b05"),
    ("b07", "backward", 0, "b06"))
SPLIT = blocks(("w1", "weight_grad", 1, "i1"), ("i1", "input_grad", 1, "f1"), ("f1", "forward", 1, "f0"),
               ("f0", "forward", 0, ""), ("i0", "input_grad", 0, "i1"), ("w0", "weight_grad", 0, "i0"))


def changed(problem: Problem, name: str, **fields: object) -> Problem:
    i = problem.index[name]
    return replace(problem, blocks=(*problem.blocks[:i], replace(problem.blocks[i], **fields),  # type: ignore[arg-type]
                                    *problem.blocks[i + 1:]))


def waits(*names: str) -> tuple[Dependency, ...]:
    return tuple(Dependency(name) for name in names)


def test_full_backward() -> None:
    found = Pipeline.of(VSHAPE)
    assert [(s.forward, s.backward, s.device) for s in found.stages] == [(0, 7, 0), (1, 6, 1), (2, 5, 2), (3, 4, 3)]
    assert (found.shape, found.is_split, found.has_backward) == ("chain", False, True)
    assert [found.stage_of(b) for b in range(8)] == [0, 1, 2, 3, 3, 2, 1, 0]


def test_split_backward_in_any_file_order() -> None:
    found = Pipeline.of(SPLIT)
    assert [[SPLIT.blocks[b].name for b in stage.blocks] for stage in found.stages] == [["f0", "i0", "w0"],
                                                                                        ["f1", "i1", "w1"]]
    assert found.is_split


@pytest.mark.parametrize(("last", "part"), [(("x", "weight_grad", 0, "i1"), "weight_grad"),
                                            (("x", "backward", 0, "i1"), "backward")])
def test_stage_0_may_owe_no_input_gradient(last: tuple[str, str, int, str], part: str) -> None:
    problem = blocks(("f0", "forward", 0, ""), ("f1", "forward", 1, "f0"), ("i1", "input_grad", 1, "f1"),
                     ("w1", "weight_grad", 1, "i1"), last)
    found = Pipeline.of(problem)
    assert getattr(found.stages[0], part) == 4
    assert found.is_split
    assert found.stages[1].weight_grad == 3


@pytest.mark.parametrize(("devices", "shape"), [
    (chain(1), "chain"), (chain(4), "chain"), (loop(4), "loop"), (loop(2, 3), "loop"), (v(4), "v"), (v(2), "v"),
    (waves(2, 2), "wave"), (waves(3, 3), "wave"), ([0, 1, 2, 2, 1, 0, 0, 1, 2], "wave"),
    ([0, 1, 1, 0, 0], "other"), ([0, 1, 1, 0, 1, 0], "other"),
    ([0, 0, 1, 1], "other"), ([1, 0], "other"), ([0, 1, 0], "other")])
def test_shapes(devices: list[int], shape: str) -> None:
    found = Pipeline.of(pipeline(devices))
    assert found.shape == shape
    assert [s for chunk in found.chunks for s in chunk] == sorted(range(len(devices)), key=lambda s: (devices[s], s))


def test_implied_waits_are_fine() -> None:
    more = changed(changed(SPLIT, "w0", after=waits("i0", "i1", "f0")), "i0", after=waits("i1", "f0", "f1"))
    assert Pipeline.of(more).stages == Pipeline.of(SPLIT).stages
    again = changed(SPLIT, "f1", after=(Dependency("f0"), Dependency("f1", distance=1)))
    assert Pipeline.of(again).stages == Pipeline.of(SPLIT).stages


@pytest.mark.parametrize(("problem", "reason"), [
    (changed(VSHAPE, "b01", devices=(0, 1), memory=()), "block 'b01' runs on 2 devices"),
    (changed(VSHAPE, "b01", kind=BlockKind.RECOMPUTE), "block 'b01' is of kind recompute"),
    (changed(VSHAPE, "b00", kind=BlockKind.OTHER), "block 'b00' is of kind other"),
    (changed(VSHAPE, "b02", after=waits("b00")), "block 'b01' and forward block 'b02' do not follow each other"),
    (changed(VSHAPE, "b05", after=waits("b03")), "do not follow each other"),
    (changed(VSHAPE, "b04", after=waits("b02")), "block 'b04' does not wait for the last forward, 'b03'"),
    (changed(VSHAPE, "b05", devices=(0,)), "block 'b05' runs on device 0, but the forward of its stage, 'b02', on "),
    (replace(VSHAPE, blocks=VSHAPE.blocks[:-1]), "it has 4 forward blocks, but 3 backward or input_grad blocks"),
    (blocks(("b", "backward", 0, "")), "it has no forward block"),
    (changed(SPLIT, "w0", after=waits("i0", "w1")), "block 'w0' waits for 'w1', which no pipeline asks for"),
    (changed(SPLIT, "w1", after=waits("i1", "i0")), "which no pipeline asks for"),
    (changed(SPLIT, "w1", after=waits("f1")), "weight_grad block 'w1' waits for no input_grad block"),
    (changed(SPLIT, "w0", devices=(1,)), "block 'w0' runs on device 1"),
    (changed(SPLIT, "f1", after=(Dependency("f0"), Dependency("i0", distance=1))),
     "block 'f1' waits for 'i0' of an earlier micro-batch"),
])
def test_not_a_pipeline_says_why(problem: Problem, reason: str) -> None:
    with pytest.raises(NotAPipeline) as caught:
        Pipeline.of(problem)
    assert reason in str(caught.value)
