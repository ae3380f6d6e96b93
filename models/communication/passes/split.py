"""An all-reduce becomes a reduce-scatter and an all-gather, or a reduce and a broadcast.

A replicated tensor that is only read in slices is stored in slices: 1/N of its bytes, without a gather.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from weft.models.communication.inference import made_by
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import gathering, part_made, rebuilt, renamed, require_free


def split(program: CommunicationProgram, stage: str, axis: int | None = None, *,
          into: Literal["reduce_scatter", "reduce"] = "reduce_scatter") -> CommunicationProgram:
    """``program`` with the all-reduce ``stage`` in two steps; the first keeps its name.

    A reduce-scatter cuts along ``axis`` (``None``: flattened), and ``gather(NAME)`` assembles the slices. Raises
    :class:`~weft.models.communication.program.CommunicationError` for a stage other than an all-reduce, and an axis not
    divisible by the ranks.
    """
    (whole,) = require_free(program, [stage], "split")
    if whole.kind != "all_reduce":
        raise CommunicationError(f"split: the stage {stage!r} is of kind {whole.kind}, only an all_reduce is split")
    if into not in ("reduce_scatter", "reduce"):
        raise CommunicationError(f"split: there is no way into {into!r}: take reduce_scatter or reduce")
    (made,) = whole.outputs
    gone: set[str] = {stage}
    if into == "reduce_scatter":
        first = ProgramStage(stage, "reduce_scatter", whole.inputs, (made,), {"axis": axis})
        part, same = part_made(program, made_by(first, program.tensors, program.ranks)[0], made, program.tensors)
        first, second = replace(first, outputs=(part,)), gathering(made, part)
        gone |= {same.name} if same else set()
    else:
        first = ProgramStage(stage, "reduce", whole.inputs, (f"{made}.sum",), {"root": 0})
        second = ProgramStage(f"broadcast({made})", "broadcast", (f"{made}.sum",), (made,), {"root": 0})
    others = [old for old in program.stages if old.name not in gone]
    unread = second.kind == "all_gather" and made not in program.kept and not any(made in old.inputs for old in others)
    return rebuilt(program, [*others, first, *([] if unread and len(gone) > 1 else [second])])


def as_slice(program: CommunicationProgram, tensor: str) -> CommunicationProgram:
    """``program`` with the input, parameter or state ``tensor`` sliced in the same way as by all its readers.

    If it is updated, the gather of its new value is removed, and the slice is carried to the next step. Raises
    :class:`~weft.models.communication.program.CommunicationError` if a stage reads it, or its new value, whole.
    """
    found = program.tensors.get(tensor)
    if found is None or found.source == "stage" or found.layout != "replicated":
        raise CommunicationError(f"as_slice: {tensor!r} is no replicated input, parameter or state")
    axis, slices = _cut(program, tensor)
    carried = dict(program.carried)
    gathers: list[ProgramStage] = []
    for made in [made for made, old in carried.items() if old == tensor]:
        gather = _gather(program, made, axis)
        gathers.append(gather)
        carried = {gather.inputs[0] if name == made else name: old for name, old in carried.items()}
    gone = {stage.name for stage in require_free(program, [stage.name for stage in (*slices, *gathers)], "as_slice")}
    names = {stage.outputs[0]: tensor for stage in slices}
    return rebuilt(program, [renamed(stage, names) for stage in program.stages if stage.name not in gone],
                   sources={tensor: replace(found, layout="sliced", axis=axis)}, carried=carried)


def _cut(program: CommunicationProgram, tensor: str) -> tuple[int | None, list[ProgramStage]]:
    """The common cut of a tensor by all readers, and their stages."""
    readers = [program.stage(name) for name in program.readers[tensor]]
    whole = [stage.name for stage in readers if stage.kind != "slice"]
    if whole or tensor in program.outputs:
        reader = f"the stage {whole[0]!r} reads it" if whole else "it is an output"
        raise CommunicationError(f"as_slice: {tensor!r} is needed whole: {reader}")
    axes = {program.tensors[stage.outputs[0]].axis for stage in readers}
    if len(axes) != 1:
        how = "cut in different ways" if axes else "read by no stage"
        raise CommunicationError(f"as_slice: {tensor!r} is {how}")
    kept = [stage.name for stage in readers if stage.outputs[0] in program.kept]
    if kept:
        raise CommunicationError(f"as_slice: what the stage {kept[0]!r} makes leaves the program, and keeps its name")
    return axes.pop(), readers


def _gather(program: CommunicationProgram, made: str, axis: int | None) -> ProgramStage:
    """The gather of a tensor's new value, which is not needed."""
    gather = program.by_name.get(program.producer.get(made, ""))
    if gather is None or gather.kind != "all_gather" or program.tensors[gather.inputs[0]].axis != axis:
        raise CommunicationError(f"as_slice: the new value {made!r} is not gathered from slices that are cut alike: "
                                 "reorder what makes it before a gather")
    readers = program.readers[made]
    if readers or made in program.outputs:
        reader = f"the stage {readers[0]!r} reads it" if readers else "it is an output"
        raise CommunicationError(f"as_slice: the new value {made!r} is needed whole: {reader}")
    return gather
