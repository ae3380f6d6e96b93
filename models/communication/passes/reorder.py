"""Computation after an all-gather moves before it, onto the slices; its result is gathered where it is read whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.models.communication.inference import cut_with, made_by
from weft.models.communication.program import (
    CommunicationError,
    CommunicationProgram,
    CommunicationTensor,
    ProgramStage,
)
from weft.models.communication.rebuilding import gathering, part_made, rebuilt, renamed, require_free, slicing

_MOVED = ("matmul", "pointwise", "norm", "dropout", "cast", "update", "slice", "send")


def reorder(program: CommunicationProgram, stages: Iterable[str] | str, gather: str) -> CommunicationProgram:
    """``program`` with ``stages``, which read the output of the all-gather ``gather``, computed on slices before it.

    Their replicated operands are sliced first, unless they are broadcast along the cut. Outputs, and tensors read by
    others, are gathered; ``gather`` itself is removed if it has no readers left. A stage that reads only tensors of the
    gathered one's shape (a norm of the weights) may be among ``stages`` too. Raises
    :class:`~weft.models.communication.program.CommunicationError` for a local operand, for a stage not after the
    gather, and for one that needs more than a slice.
    """
    (first,) = require_free(program, [gather], "reorder")
    if first.kind != "all_gather":
        raise CommunicationError(f"reorder: the stage {gather!r} is of kind {first.kind}, computation is moved before "
                                 "an all_gather")
    moved = require_free(program, stages, "reorder")
    if not moved:
        raise CommunicationError("reorder: no stage is named that is to run before the gather")
    return _Moving(program, first, moved).program()


class _Moving:
    """``parts``: by tensor, the slice of each tensor computed on slices; ``tensors`` includes these."""

    def __init__(self, old: CommunicationProgram, gather: ProgramStage, moved: list[ProgramStage]) -> None:
        self.old, self.gather, self.moved = old, gather, moved
        self.tensors = dict(old.tensors)
        self.parts = {gather.outputs[0]: gather.inputs[0]}
        self.made: list[ProgramStage] = []
        self.computed: set[str] = set()
        self.passed: set[str] = set()  # gathers whose slices are now used directly
        self.stood_for: set[str] = set()  # slices of tensors now made in slices

    def program(self) -> CommunicationProgram:
        for stage in self.moved:
            self._move(stage)
        names = {stage.name for stage in self.moved} | {self.gather.name}
        left = [stage for stage in self.old.stages if stage.name not in names | self.stood_for]
        read = {name for stage in (*left, *self.made) for name in stage.inputs} | self.old.kept
        left = [stage for stage in left if stage.name not in self.passed or read.intersection(stage.outputs)]
        gathers = [gathering(whole, part) for whole, part in self.parts.items()
                   if whole in read and whole in self.computed]
        gathers += [self.gather] * (self.gather.outputs[0] in read)
        return rebuilt(self.old, [*left, *self.made, *gathers])

    def _move(self, stage: ProgramStage) -> None:
        self._require(stage)
        behind = {name for moved in self.made for name in moved.outputs}
        if not self.parts.keys() & set(stage.inputs):
            if not behind & set(stage.inputs):
                self._beside(stage)
            else:
                self.made.append(stage)  # it reads only scalars that are whole on every rank, such as norms
            return
        if stage.kind == "slice" and stage.attributes["axis"] == self.tensors[self.parts[stage.inputs[0]]].axis:
            raise CommunicationError(f"reorder: the stage {stage.name!r} slices what {self.gather.name!r} gathers: "
                                     "leave both out")
        self._on_slices(stage)

    def _require(self, stage: ProgramStage) -> None:
        if stage.kind not in _MOVED:
            raise CommunicationError(f"reorder: the stage {stage.name!r} is of kind {stage.kind}, only computation and "
                                     "sends are moved before a gather")
        local = [name for name in stage.inputs if self.tensors[name].layout == "local"]
        if local:
            raise CommunicationError(f"reorder: the stage {stage.name!r} reads {local[0]!r}, which is local: a slice "
                                     "of it means nothing")

    def _beside(self, stage: ProgramStage) -> None:
        """A stage that reads no gathered tensor, but only tensors of its shape: slices of these suffice."""
        whole = self.tensors[self.gather.outputs[0]]
        given = [self.tensors[name] for name in stage.inputs]
        if any(tensor.shape != whole.shape or tensor.layout != "replicated" or tensor.group != whole.group
               for tensor in given):
            raise CommunicationError(f"reorder: the stage {stage.name!r} does not read what {self.gather.name!r} "
                                     "gathers, nor anything of that shape")
        for tensor in given:
            self._slice(tensor, self.tensors[self.gather.inputs[0]].axis)
        self._on_slices(stage)

    def _on_slices(self, stage: ProgramStage) -> None:
        if stage.kind in ("pointwise", "update"):
            self._slice_others(stage)
        sliced = renamed(stage, self.parts)
        (made,) = made_by(sliced, self.tensors, self.old.ranks)
        if made.layout == "local":
            raise CommunicationError(f"reorder: the stage {stage.name!r} sums over the axis that is cut, and slices "
                                     "make terms of its result alone: split along another axis")
        if made.layout == "sliced":
            whole = stage.outputs[0]
            part, same = part_made(self.old, made, whole, self.tensors)
            if same is not None:
                self.stood_for.add(same.name)
            sliced, made = replace(sliced, outputs=(part,)), replace(made, name=part)
            self.parts[whole] = part
            self.computed.add(whole)
        self.tensors[made.name] = made
        self.made.append(sliced)

    def _slice_others(self, stage: ProgramStage) -> None:
        """Slice every operand that extends along the cut."""
        shape = self.old.tensors[stage.outputs[0]].shape
        name = next(name for name in stage.inputs if name in self.parts)
        cut = self.tensors[self.parts[name]]
        axis = None if cut.axis is None else cut.axis + len(shape) - len(cut.shape)
        for other, along in cut_with(stage, self.tensors, axis, "reorder").items():
            if other not in self.parts:
                self._slice(self.tensors[other], along)

    def _slice(self, tensor: CommunicationTensor, axis: int | None) -> None:
        if tensor.name in self.parts:
            return
        gather = self.old.by_name.get(self.old.producer.get(tensor.name, ""))
        if gather is not None and gather.kind == "all_gather" and self.tensors[gather.inputs[0]].axis == axis:
            self.parts[tensor.name] = gather.inputs[0]
            require_free(self.old, [gather.name], "reorder")
            self.passed.add(gather.name)
            return
        sliced = slicing(tensor.name, axis)
        (made,) = made_by(sliced, self.tensors, self.old.ranks)
        name, there = part_made(self.old, made, tensor.name, self.tensors)
        self.parts[tensor.name] = name
        if there is None:
            number = name.removeprefix(sliced.outputs[0])  # it may be cut another way as well
            self.tensors[name] = replace(made, name=name)
            self.made.append(replace(sliced, name=sliced.name + number, outputs=(name,)))
