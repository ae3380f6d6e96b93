"""An all-reduce becomes a reduce-scatter and an all-gather, or a reduce and a broadcast."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from weft.models.communication.inference import made_by
from weft.models.communication.program import CommunicationError, Program, Stage
from weft.models.communication.rebuilding import gathering, part_made, rebuilt, require_free

__all__ = ["split"]


def split(program: Program, stage: str, axis: int | None = None, *,
          into: Literal["reduce_scatter", "reduce"] = "reduce_scatter") -> Program:
    """``program`` with the all-reduce ``stage`` in two steps; the first bears its name.

    A reduce-scatter cuts along ``axis`` (``None``: flattened), and ``gather(NAME)`` puts the slices together. Raises
    :class:`~weft.models.communication.program.CommunicationError` for a stage that is no all-reduce, and an axis that
    the ranks do not divide.
    """
    (whole,) = require_free(program, [stage], "split")
    if whole.kind != "all_reduce":
        raise CommunicationError(f"split: the stage {stage!r} is of kind {whole.kind}, only an all_reduce is split")
    if into not in ("reduce_scatter", "reduce"):
        raise CommunicationError(f"split: there is no way into {into!r}: take reduce_scatter or reduce")
    (made,) = whole.outputs
    gone: set[str] = {stage}
    if into == "reduce_scatter":
        first = Stage(stage, "reduce_scatter", whole.inputs, (made,), {"axis": axis})
        part, same = part_made(program, made_by(first, program.tensors, program.ranks)[0], made, program.tensors)
        first, second = replace(first, outputs=(part,)), gathering(made, part)
        gone |= {same.name} if same else set()
    else:
        first = Stage(stage, "reduce", whole.inputs, (f"{made}.sum",), {"root": 0})
        second = Stage(f"broadcast({made})", "broadcast", (f"{made}.sum",), (made,), {"root": 0})
    others = [old for old in program.stages if old.name not in gone]
    unread = second.kind == "all_gather" and made not in program.kept and not any(made in old.inputs for old in others)
    return rebuilt(program, [*others, first, *([] if unread and len(gone) > 1 else [second])])
