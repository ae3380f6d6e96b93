"""An all-reduce in two steps."""

from __future__ import annotations

import pytest

from tests.support.communication import error, tensor_parallel
from weft.models.communication.builder import Builder
from weft.models.communication.passes.overlap import overlap
from weft.models.communication.passes.split import split
from weft.models.communication.program import CommunicationError


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
    with pytest.raises(CommunicationError, match="the stage 'xw' is of kind matmul, only an all_reduce is split"):
        split(program, "xw")
    with pytest.raises(CommunicationError, match="no way into 'scatter': take reduce_scatter or reduce"):
        split(program, "total", into="scatter")  # type: ignore[arg-type]
    with pytest.raises(CommunicationError, match="there is no stage 'sum'"):
        split(program, "sum")
    with pytest.raises(CommunicationError, match="18 elements, which 4 ranks do not divide"):
        split(program, "total", 1)
    with pytest.raises(CommunicationError, match="'total' runs in chunks already: split before it is overlapped"):
        split(overlap(program, ["xw", "total"], 2), "total", 0)
