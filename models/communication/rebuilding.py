"""A program with other stages: sorted into an executable order, with all layouts derived again.

Waits between stages: successors of a stage, convex sets, execution orders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace
from typing import ParamSpec

from weft.models.communication.inference import made_by
from weft.models.communication.program import (
    CommunicationError,
    CommunicationProgram,
    CommunicationTensor,
    Overlap,
    ProgramStage,
)

_P = ParamSpec("_P")


def rebuilt(program: CommunicationProgram, stages: Iterable[ProgramStage], *,
            sources: Mapping[str, CommunicationTensor] | None = None,
            carried: Mapping[str, str] | None = None) -> CommunicationProgram:
    """``program`` with ``stages`` instead of its own, in any order; ``sources`` and ``carried`` if they change.

    Overlaps stay. Raises :class:`~weft.models.communication.program.CommunicationError` for stages that wait for each
    other, or have mismatched layouts.
    """
    tensors = program.given | dict(sources or {})
    rest, done = list(stages), []
    while rest:
        at = next((i for i, stage in enumerate(rest) if all(name in tensors for name in stage.inputs)), None)
        if at is None:
            raise CommunicationError(f"the stages {', '.join(repr(stage.name) for stage in rest)} wait for each other")
        stage = rest.pop(at)
        tensors |= {tensor.name: tensor for tensor in made_by(stage, tensors, program.ranks)}
        done.append(stage)
    made = replace(program, stages=tuple(done), tensors=tensors,
                   carried=program.carried if carried is None else carried)
    if made.overlaps:
        in_order(made)
    return made


def part_of(name: str) -> str:
    """The name of a rank's slice of the tensor ``name``."""
    return f"{name}.slice"


def part_made(program: CommunicationProgram, part: CommunicationTensor, whole: str,
              known: Container[str]) -> tuple[str, ProgramStage | None]:
    """A name for ``part``, the slice now made of the tensor ``whole``, and the stage that it replaces.

    That stage is a slice of ``whole`` with the same cut: it is removed, and its name is reused; otherwise the name is
    one not in ``known``.
    """
    busy = {name for overlap in program.overlaps for name in overlap.stages}
    for name in program.readers.get(whole, ()):
        stage = program.by_name[name]
        if stage.kind == "slice" and program.tensors[stage.outputs[0]].axis == part.axis and name not in busy:
            return stage.outputs[0], stage
    found, number = part_of(whole), 1
    while found in known:
        number += 1
        found = f"{part_of(whole)} {number}"
    return found, None


def gathering(tensor: str, part: str) -> ProgramStage:
    """The stage that gathers all ranks' slices."""
    return ProgramStage(f"gather({tensor})", "all_gather", (part,), (tensor,))


def slicing(tensor: str, axis: int | None) -> ProgramStage:
    """The stage that takes a rank's slice of a tensor."""
    return ProgramStage(f"slice({tensor})", "slice", (tensor,), (part_of(tensor),), {"axis": axis})


def renamed(stage: ProgramStage, inputs: Mapping[str, str]) -> ProgramStage:
    """``stage`` with its parts, with renamed inputs."""
    return replace(stage, inputs=tuple(inputs.get(name, name) for name in stage.inputs),
                   parts=tuple(renamed(part, inputs) for part in stage.parts))


def attempted(rewrite: Callable[_P, CommunicationProgram], *arguments: _P.args,
              **keywords: _P.kwargs) -> CommunicationProgram | None:
    """What a pass makes of a program; ``None`` where it is illegal."""
    try:
        return rewrite(*arguments, **keywords)
    except CommunicationError:
        return None


def require_free(program: CommunicationProgram, names: Iterable[str] | str, what: str) -> list[ProgramStage]:
    """The stages of these names (or of one) in the program's order; ``what`` names the rewrite, for which none may run
    in chunks yet.

    Raises :class:`~weft.models.communication.program.CommunicationError` for one that is missing, or does.
    """
    wanted = {program.stage(name).name for name in ([names] if isinstance(names, str) else names)}
    for overlap in program.overlaps:
        for name in overlap.stages:
            if name in wanted:
                raise CommunicationError(f"{what}: the stage {name!r} runs in chunks already: {what} before it is "
                                         "overlapped")
    return [stage for stage in program.stages if stage.name in wanted]


def followers(program: CommunicationProgram, stage: str) -> tuple[str, ...]:
    """The stages that read the output of ``stage``."""
    return tuple(dict.fromkeys(reader for name in program.by_name[stage].outputs for reader in program.readers[name]))


def is_needed(program: CommunicationProgram, stage: str) -> bool:
    """Whether any output, or tensor carried to the next step, depends on ``stage``."""
    return any(program.kept.intersection(program.by_name[name].outputs) for name in _behind(program, [stage], ()))


def detour(program: CommunicationProgram, stages: Collection[str]) -> tuple[str, str, str] | None:
    """A path that leaves ``stages`` and returns: the stage where it leaves, a stage outside, the stage where it
    returns.

    ``None`` if there is none: the set is convex, and can be fused.
    """
    for stage in (stage.name for stage in program.stages if stage.name in stages):
        for outside in followers(program, stage):
            if outside in stages:
                continue
            for name in _behind(program, [outside], stages):
                back = [reader for reader in followers(program, name) if reader in stages]
                if back:
                    return stage, name, back[0]
    return None


def _behind(program: CommunicationProgram, stages: Iterable[str], around: Collection[str]) -> list[str]:
    """``stages`` and all that depend on them through stages not in ``around``."""
    found = dict.fromkeys(stages)
    rest = list(found)
    while rest:
        for name in followers(program, rest.pop()):
            if name not in found and name not in around:
                found[name] = None
                rest.append(name)
    return list(found)


def in_order(program: CommunicationProgram) -> list[ProgramStage | Overlap]:
    """Stages, and each chain in chunks as one unit, after all their external inputs, as early as the first of them in
    the program.

    Raises :class:`~weft.models.communication.program.CommunicationError` for two chains that wait for each other.
    """
    chain_of = {overlap.stages[0]: overlap for overlap in program.overlaps}
    later = {name for overlap in program.overlaps for name in overlap.stages[1:]}
    known = set(program.given)
    rest = [chain_of.get(stage.name, stage) for stage in program.stages if stage.name not in later]
    done = []
    while rest:
        for unit in rest:
            stages = program.members(unit)
            made = {name for stage in stages for name in stage.outputs}
            if all(name in known or name in made for stage in stages for name in stage.inputs):
                break
        else:
            names = [name for unit in rest if isinstance(unit, Overlap) for name in unit.stages]
            raise CommunicationError(f"the chains in chunks wait for each other: {', '.join(map(repr, names))}: run "
                                     "one of them whole")
        known |= made
        done.append(unit)
        rest.remove(unit)
    return done
