"""Fusion of several stages: one launch, and intermediate tensors are never written to memory."""

from __future__ import annotations

from collections.abc import Iterable

from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import detour, is_needed, rebuilt, require_free


def fuse(program: CommunicationProgram, stages: Iterable[str] | str, name: str | None = None) -> CommunicationProgram:
    """``program`` with ``stages`` as one stage of kind ``fused``, named ``name`` (by default theirs joined by +).

    Raises :class:`~weft.models.communication.program.CommunicationError` if no output depends on one of them, if the
    set is not convex (a path leaves it and returns: the fused stage would wait for itself), and for stages of several
    pipeline groups without the send between them.
    """
    chosen = require_fusable(program, stages)
    names = {stage.name for stage in chosen}
    parts = tuple(part for stage in chosen for part in stage.leaves())
    made = [tensor for part in parts for tensor in part.outputs]
    read = {tensor for stage in program.stages if stage.name not in names for tensor in stage.inputs} | program.kept
    inputs = dict.fromkeys(tensor for part in parts for tensor in part.inputs if tensor not in made)
    fused = ProgramStage(name or " + ".join(part.name for part in parts), "fused", tuple(inputs),
                         tuple(tensor for tensor in made if tensor in read), {}, parts)
    if fused.name in program.by_name.keys() - names:
        raise CommunicationError(f"fuse: the stage name {fused.name!r} is taken")
    return rebuilt(program, [*(stage for stage in program.stages if stage.name not in names), fused])


def require_fusable(program: CommunicationProgram, stages: Iterable[str]) -> list[ProgramStage]:
    """The stages of these names in the program's order. Raises as :func:`fuse` if they cannot be fused."""
    chosen = require_free(program, stages, "fuse")
    if len(chosen) < 2:
        raise CommunicationError("fuse: at least two stages make one")
    for stage in chosen:
        if not is_needed(program, stage.name):
            raise CommunicationError(f"fuse: no output depends on the stage {stage.name!r}")
    names = {stage.name for stage in chosen}
    path = detour(program, names)
    if path is not None:
        raise CommunicationError(f"fuse: the stages are not convex: a path leaves at {path[0]!r} and comes back at "
                                 f"{path[2]!r} over {path[1]!r}: fuse that as well, or less")
    if len({program.group_of(stage) for stage in chosen}) > 1 and not any(
            part.kind == "send" for stage in chosen for part in stage.leaves()):
        raise CommunicationError("fuse: the stages run on different pipeline groups, and no send is among them")
    return chosen
