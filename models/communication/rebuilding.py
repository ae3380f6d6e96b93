"""A program with other stages: put into an order in which they can run, all layouts derived again."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from weft.models.communication.inference import made_by
from weft.models.communication.paths import in_order
from weft.models.communication.program import CommunicationError, Program, Stage, Tensor

__all__ = ["gathering", "part_made", "part_of", "rebuilt", "renamed", "require_free", "slicing"]


def rebuilt(program: Program, stages: Iterable[Stage], *, sources: Mapping[str, Tensor] | None = None,
            carried: Mapping[str, str] | None = None) -> Program:
    """``program`` with ``stages`` instead of its own, in any order; ``sources`` and ``carried`` where they change.

    Overlaps stay. Raises :class:`~weft.models.communication.program.CommunicationError` for stages that wait for each
    other, or of layouts that do not fit.
    """
    tensors = {name: tensor for name, tensor in program.tensors.items() if tensor.source != "stage"}
    tensors |= sources or {}
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


def part_made(program: Program, part: Tensor, whole: str, known: Container[str]) -> tuple[str, Stage | None]:
    """A name for ``part``, the slice that is now made of the tensor ``whole``, and a stage that it stands for.

    That is a slice of ``whole`` that is cut alike: it goes, and its name is taken; otherwise one that is not ``known``.
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


def gathering(tensor: str, part: str) -> Stage:
    """The stage that makes the tensor of all ranks' slices."""
    return Stage(f"gather({tensor})", "all_gather", (part,), (tensor,))


def slicing(tensor: str, axis: int | None) -> Stage:
    """The stage that takes a rank's slice of a tensor."""
    return Stage(f"slice({tensor})", "slice", (tensor,), (part_of(tensor),), {"axis": axis})


def renamed(stage: Stage, inputs: Mapping[str, str], outputs: Mapping[str, str] | None = None) -> Stage:
    """``stage``, its parts included, reading and making tensors under other names."""
    made = outputs or {}
    return replace(stage, inputs=tuple(inputs.get(name, name) for name in stage.inputs),
                   outputs=tuple(made.get(name, name) for name in stage.outputs),
                   parts=tuple(renamed(part, {**inputs, **made}, made) for part in stage.parts))


def require_free(program: Program, names: Iterable[str] | str, what: str) -> list[Stage]:
    """The stages of these names (or of one) in the program's order; ``what`` is done to them, so none may run in
    chunks yet.

    Raises :class:`~weft.models.communication.program.CommunicationError` for one that is not there, or does.
    """
    wanted = {program.stage(name).name for name in ([names] if isinstance(names, str) else names)}
    for overlap in program.overlaps:
        for name in overlap.stages:
            if name in wanted:
                raise CommunicationError(f"{what}: the stage {name!r} runs in chunks already: {what} before it is "
                                         "overlapped")
    return [stage for stage in program.stages if stage.name in wanted]
