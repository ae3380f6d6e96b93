"""Chains in chunks: their values, where they are cut, and what is no chain."""

from __future__ import annotations

import pytest

from tests.support.communication import error, pipelined, tensor_parallel
from weft.communication import Builder, CommunicationError, data_parallel, fuse, reorder, split
from weft.models.communication.passes.overlap import overlap, overlaps


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_a_matmul_its_all_reduce_and_what_follows(chunks: int) -> None:
    program = tensor_parallel()
    made = overlap(program, ["xw", "total", "biased", "dropped", "out"], chunks)
    (chain,) = made.overlaps
    assert not chain.by_slices
    assert chain.axes["x"] == chain.axes["out"] == chain.axes["residual"] == 0
    assert not {"w", "bias"} & chain.axes.keys()
    assert error(program, made) < 1e-12


@pytest.mark.parametrize("axis", [0, 1])
def test_a_matmul_and_a_fused_rest_on_slices(axis: int) -> None:
    program = tensor_parallel()
    made = reorder(split(program, "total", axis), ["biased", "dropped", "out"], "gather(total)")
    made = fuse(made, [stage.name for stage in made.stages if stage.name != "xw"], "rest")
    for way in overlaps(made, ["xw", "rest"], 2):
        assert way.by_slices == (way.axes["total"] == axis if "total" in way.axes else way.axes["xw"] == axis)
    made = overlap(made, ["xw", "rest"], 2)
    assert error(program, made) < 1e-12


def test_updates_are_cut_as_the_flattened_slices_are() -> None:
    program = data_parallel("adam", 4, (8, 16))
    made = split(program, "gradient")
    moved = [stage.name for stage in made.stages if stage.kind not in ("reduce_scatter", "all_gather")]
    made = reorder(made, moved, "gather(gradient)")
    computed = [stage.name for stage in made.stages if stage.kind not in ("reduce_scatter", "all_gather")]
    made = fuse(made, computed, "update")
    made = overlap(made, ["gradient", "update", "gather(weight.next)"], 4)
    (chain,) = made.overlaps
    assert chain.by_slices and set(chain.axes.values()) == {None}
    assert error(program, made) < 1e-12
    with pytest.raises(CommunicationError, match="128 elements, which 3 chunks of the slices of 4 ranks do not divide"):
        overlap(fuse(split(program, "gradient"), ["gradient", "gather(gradient)"], "both"), ["both", "mean gradient"],
                3)


def test_a_pipeline_s_send_behind_its_reduce_scatter() -> None:
    program = pipelined()
    made = reorder(split(program, "total", 0), ["there", "biased", "dropped", "out"], "gather(total)")
    made = fuse(made, ["biased", "dropped", "slice(residual)", "out", "gather(out)"], "rest")
    made = overlap(made, ["total", "there", "rest"], 4)
    assert error(program, made) < 1e-12


def test_what_is_no_chain_of_chunks_is_refused() -> None:
    program = tensor_parallel()
    lamb = data_parallel("lamb", 2, (4, 4))
    step = Builder("around", 2)
    total = step.all_reduce("total", step.input("x", (4, 4), "local"))
    around = step.build(step.pointwise("sum", "add", total, step.pointwise("tanh", "tanh", total)),
                        step.matmul("inner", step.parameter("w", (4, 4)), total), step.matmul("self", total, total))
    for made, stages, chunks, why in [
            (program, ["xw"], 2, "at least two stages, a producer and a consumer"),
            (program, ["xw", "biased"], 2, "'biased' reads nothing that 'xw' makes"),
            (program, ["xw", "total"], 3, "16 elements, which 3 chunks do not divide"),
            (program, ["xw", "total"], 0, "0 chunks are too few"),
            (overlap(program, ["xw", "total"], 2), ["total", "biased"], 2, "runs in chunks already"),
            (lamb, ["weight.decayed", "weight.direction.norm"], 2, "is a norm, which needs all chunks at once"),
            (around, ["total", "sum"], 2, "the stage 'sum' waits for all of 'total' over 'tanh'"),
            (around, ["total", "self"], 2, "multiplies 'total' by itself")]:
        with pytest.raises(CommunicationError, match=why):
            overlap(made, stages, chunks)
    assert overlap(around, ["total", "inner"], 2).overlaps[0].axes["total"] == 1
