"""Computation before a gather."""

from __future__ import annotations

import pytest

from tests.support.communication import error, pipelined, tensor_parallel
from weft.communication import Builder, data_parallel, split
from weft.models.communication.passes.reorder import reorder
from weft.models.communication.program import CommunicationError, CommunicationProgram


def test_what_follows_an_all_reduce_runs_on_slices() -> None:
    program = tensor_parallel()
    made = reorder(split(program, "total", 0), ["biased", "dropped", "out"], "gather(total)")
    assert [stage.name for stage in made.stages] == ["xw", "total", "biased", "dropped", "slice(residual)", "out",
                                                     "gather(out)"]
    assert [made.tensors[made.by_name[name].outputs[0]].lies for name in ("biased", "out", "gather(out)")] == [
        "sliced along axis 0", "sliced along axis 0", "replicated"]
    assert error(program, made) < 1e-12


def test_what_is_broadcast_along_the_cut_is_sliced_too() -> None:
    program = tensor_parallel()
    made = reorder(split(program, "total", 1), "biased", "gather(total)")  # one name is one stage
    assert made.tensors["bias.slice"].axis == 0
    assert error(program, made) < 1e-12


def test_a_send_sends_the_slice_and_the_receiver_gathers() -> None:
    program = pipelined()
    made = reorder(split(program, "total", 0), ["there", "biased", "dropped", "out"], "gather(total)")
    assert [stage.kind for stage in made.stages] == ["reduce_scatter", "send", "pointwise", "dropout", "slice",
                                                     "pointwise", "all_gather"]
    assert made.group_of("there") == 0 and made.group_of("gather(out)") == 1
    assert made.tensors["there.slice"].held_bytes(2) * 2 == program.tensors["there"].held_bytes(2)
    assert error(program, made) < 1e-12


def test_one_stage_after_the_other_is_all_at_once() -> None:
    program = tensor_parallel()
    made = split(program, "total", 0)
    at_once = reorder(made, ["biased", "dropped", "out"], "gather(total)")
    for stage, gather in [("biased", "total"), ("dropped", "biased"), ("out", "dropped")]:
        made = reorder(made, [stage], f"gather({gather})")
    assert set(map(str, made.stages)) == set(map(str, at_once.stages))


def test_norms_of_weights_go_along() -> None:
    program = split(data_parallel("lamb", 4, (8, 16)), "gradient")
    moved = [stage.name for stage in program.stages if stage.kind not in ("reduce_scatter", "all_gather")]
    made = reorder(program, moved, "gather(gradient)")
    assert made.by_name["weight.norm"].inputs == ("weight.slice",)
    assert made.tensors["weight.norm"].layout == "replicated"
    assert error(program, made) < 1e-12


def test_what_others_read_whole_is_gathered_still() -> None:
    step = Builder("two readers", 2)
    total = step.all_reduce("total", step.input("x", (4, 4), "local"))
    program = step.build(step.pointwise("one", "tanh", total), step.matmul("other", total, total))
    made = reorder(split(program, "total", 0), ["one"], "gather(total)")
    assert {"gather(total)", "gather(one)"} <= made.by_name.keys()
    assert error(program, made) < 1e-12


def gathered() -> CommunicationProgram:
    step = Builder("gathered", 2)
    total = step.all_gather("total", step.input("x", (4, 4), "sliced", 0))
    right = step.all_gather("right", step.input("y", (4, 4), "sliced", 1))
    local = step.input("local", (4, 4), "local")
    scaled = step.pointwise("scaled", "mul", local, total)
    flat = step.all_gather("flat", step.input("z", (4, 4), "sliced"))
    return step.build(step.matmul("inner", step.parameter("w", (4, 4)), total), step.all_reduce("sum", scaled),
                      step.matmul("outer", total, right), step.pointwise("wide", "add", flat,
                                                                         step.parameter("bias", (4,))),
                      step.pointwise("apart", "tanh", step.parameter("v", (3,))), step.slice("part", total, 0))


@pytest.mark.parametrize(("stages", "gather", "why"), [
    (["scaled"], "total", "the stage 'scaled' reads 'local', which is local"),
    (["inner"], "total", "both are cut where they are summed"),
    (["apart"], "total", "does not read what 'total' gathers, nor anything of that shape"),
    (["sum"], "total", "is of kind all_reduce, only computation and sends are moved"),
    (["part"], "total", "leave both out"),
    (["wide"], "flat", "broadcasts 'bias', of which there is no flattened part to go with"),
    ([], "total", "no stage is named"),
    (["outer"], "inner", "is of kind matmul, computation is moved before an all_gather")])
def test_what_a_slice_is_not_enough_for_is_refused(stages: list[str], gather: str, why: str) -> None:
    with pytest.raises(CommunicationError, match=why):
        reorder(gathered(), stages, gather)


def test_rows_and_columns_of_a_product_are_slices() -> None:
    made = reorder(gathered(), ["outer"], "right")
    assert made.tensors["outer.slice"].axis == 1
    assert error(gathered(), made) < 1e-12
    made = reorder(gathered(), ["outer"], "total")
    assert made.tensors["outer.slice"].axis == 0
    assert error(gathered(), made) < 1e-12
