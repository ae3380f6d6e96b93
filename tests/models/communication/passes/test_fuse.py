"""Several stages as one, and the cases in which that is not legal."""

from __future__ import annotations

import pytest

from tests.support.communication import error, pipelined, tensor_parallel
from weft.communication import Builder, overlap, reorder, split
from weft.models.communication.passes.fuse import fuse
from weft.models.communication.program import CommunicationError, CommunicationProgram


def gathered() -> CommunicationProgram:
    """A gather, an update that reads it, an output that reads both, and a stage that nothing depends on."""
    step = Builder("cases", 2)
    gather = step.all_gather("gather", step.input("part", (8,), "sliced"))
    update = step.update("update", step.parameter("weight", (8,)), gather)
    step.pointwise("unread", "tanh", gather)
    return step.build(step.pointwise("output", "add", gather, update))


@pytest.mark.parametrize(("stages", "why"), [
    (["gather", "update"], None), (["gather", "update", "output"], None),
    (["gather", "unread"], "no output depends on the stage 'unread'"),
    (["gather", "output"], "not convex: a path leaves at 'gather' and comes back at 'output' over 'update'")])
def test_the_four_cases(stages: list[str], why: str | None) -> None:
    if why is None:
        made = fuse(gathered(), stages)
        assert [stage.name for stage in made.by_name[" + ".join(stages)].parts] == stages
        assert error(gathered(), made) < 1e-12
    else:
        with pytest.raises(CommunicationError, match=why):
            fuse(gathered(), stages)


def test_what_leaves_a_fused_stage_is_what_others_read() -> None:
    program = tensor_parallel()
    made = fuse(program, ["biased", "dropped"], "together")
    stage = made.by_name["together"]
    assert (stage.kind, stage.inputs, stage.outputs) == ("fused", ("total", "bias"), ("dropped",))
    assert error(program, made) < 1e-12
    again = fuse(made, ["together", "out"])
    assert [part.name for part in again.stages[-1].leaves()] == ["biased", "dropped", "out"]
    assert error(program, again) < 1e-12


def test_a_send_is_fused_with_what_stands_on_both_sides() -> None:
    program = pipelined()
    made = reorder(split(program, "total", 0), ["there", "biased", "dropped", "out"], "gather(total)")
    behind = [stage.name for stage in made.stages if stage.name != "total"]
    made = fuse(made, behind, "send, compute, gather")
    assert error(program, made) < 1e-12
    assert error(program, overlap(made, ["total", "send, compute, gather"], 2)) < 1e-12


def test_what_cannot_be_one_stage_is_refused() -> None:
    program = tensor_parallel()
    with pytest.raises(CommunicationError, match="at least two stages make one"):
        fuse(program, ["out"])
    with pytest.raises(CommunicationError, match="the stage name 'xw' is taken"):
        fuse(program, ["biased", "dropped"], "xw")
    with pytest.raises(CommunicationError, match="runs in chunks already: fuse before it is overlapped"):
        fuse(overlap(program, ["xw", "total"], 2), ["total", "biased"])
    step = Builder("groups", 2)
    sent = step.send("sent", step.pointwise("before", "tanh", step.input("x", (4,))))
    apart = step.build(step.pointwise("after", "tanh", sent), step.pointwise("beside", "tanh", "x"))
    with pytest.raises(CommunicationError, match="run on different pipeline groups, and no send is among them"):
        fuse(apart, ["after", "beside"])
