"""A stage's outputs: shape, layout and size from those of its inputs, or the reason why it is invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.models.communication.functions import function_named
from weft.models.communication.program import CommunicationError, CommunicationTensor, ProgramStage
from weft.models.transform.program import Annotation


def made_by(stage: ProgramStage, tensors: Mapping[str, CommunicationTensor], ranks: int) -> tuple[CommunicationTensor,
                                                                                                  ...]:
    """The tensors that ``stage`` makes from the known ``tensors``, including those inside a fused stage.

    Raises :class:`~weft.models.communication.program.CommunicationError` if inputs do not match the stage.
    """
    if stage.parts:
        inside = dict(tensors)
        for part in stage.parts:
            inside |= {tensor.name: tensor for tensor in made_by(part, inside, ranks)}
        made = [inside[name] for part in stage.parts for leaf in part.leaves() for name in leaf.outputs]
        return tuple(made)
    if stage.kind not in _RULES:
        raise CommunicationError(f"stage {stage.name!r}: there is no kind {stage.kind!r} without parts; take one of "
                                 f"{', '.join(_RULES)}")
    inputs = [tensors[name] for name in stage.inputs]
    _require_inputs(stage, inputs)
    made_one = in_a_row(replace(_RULES[stage.kind](stage, inputs), name=stage.outputs[0], source="stage"))
    if stage.kind in ("reduce", "broadcast") and not 0 <= stage.attributes["root"] < ranks:
        raise _refused(stage, f"the root {stage.attributes['root']} is none of the {ranks} ranks")
    require_slices(made_one, ranks, f"stage {stage.name!r}")
    return (made_one,)


def in_a_row(tensor: CommunicationTensor) -> CommunicationTensor:
    """``tensor``, sliced along its only axis if flattening changes nothing."""
    flat = tensor.layout == "sliced" and tensor.axis is None and len(tensor.shape) == 1
    return replace(tensor, axis=0) if flat else tensor


def require_slices(tensor: CommunicationTensor, ranks: int, where: str) -> None:
    """Raise :class:`~weft.models.communication.program.CommunicationError` unless N ranks can hold equal slices."""
    if tensor.layout != "sliced":
        return
    if tensor.axis is None:
        if tensor.elements % ranks:
            raise CommunicationError(f"{where}: {tensor.name!r} has {tensor.elements} elements, which {ranks} ranks do "
                                     "not divide: pad it")
    elif not 0 <= tensor.axis < len(tensor.shape):
        raise CommunicationError(f"{where}: {tensor.name!r} has {len(tensor.shape)} dimensions and no axis "
                                 f"{tensor.axis}")
    elif tensor.shape[tensor.axis] % ranks:
        raise CommunicationError(f"{where}: axis {tensor.axis} of {tensor.name!r} has {tensor.shape[tensor.axis]} "
                                 f"elements, which {ranks} ranks do not divide: take another axis, or None")


def broadcast_shape(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """The shape to which ``shapes`` broadcast; ``None`` if they do not."""
    size = max(map(len, shapes))
    wide = [(1,) * (size - len(shape)) + tuple(shape) for shape in shapes]
    found = tuple(max(lengths) for lengths in zip(*wide, strict=True))
    return found if all(length in (1, most) for shape in wide for length, most in zip(shape, found, strict=True)
                        ) else None


def _require_inputs(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> None:
    _require_attributes(stage)
    wanted = {"matmul": 2, "update": 2}.get(stage.kind, 1)
    if stage.kind == "pointwise":
        wanted = function_named(stage.attributes["function"]).arity
    if len(inputs) != wanted or len(stage.outputs) != 1:
        raise CommunicationError(f"stage {stage.name!r}: {_what(stage)} reads {wanted} "
                                 f"tensor{'s' * (wanted > 1)} and makes one, not {len(inputs)} and "
                                 f"{len(stage.outputs)}")
    groups = sorted({tensor.group for tensor in inputs})
    if len(groups) > 1:
        raise CommunicationError(f"stage {stage.name!r} reads tensors of the groups {groups[0]} and {groups[1]}: send "
                                 "what comes from the earlier one")


def _require_attributes(stage: ProgramStage) -> None:
    wanted = {"pointwise": {"function"}, "dropout": {"rate", "seed"}, "cast": {"itemsize"}, "reduce": {"root"},
              "reduce_scatter": {"axis"}, "slice": {"axis"}, "broadcast": {"root"}}.get(stage.kind, set())
    given = set(stage.attributes)
    if stage.kind == "pointwise" and "function" in given:
        try:
            function_named(stage.attributes["function"]).require(given - wanted)
        except CommunicationError as error:
            raise _refused(stage, str(error)) from None
    elif given != wanted:
        raise _refused(stage, f"{stage.kind} takes " + (" and ".join(sorted(wanted)) or "tensors alone")
                       + (f", not {' and '.join(sorted(given))}" if given else ""))


def _what(stage: ProgramStage) -> str:
    return str(stage.attributes["function"]) if stage.kind == "pointwise" else stage.kind


def _refused(stage: ProgramStage, why: str) -> CommunicationError:
    return CommunicationError(f"stage {stage.name!r}: {why}")


# -- a rule for each kind: the tensor made, apart from its name -----------------------------------------------------


def annotated(stage: ProgramStage, shapes: Sequence[Sequence[int]]) -> Annotation:
    """The split annotation of a compute stage, as for operators of plans: a matmul sums over ``k``; for all others,
    dimensions aligned at the ends of the shapes share a name."""
    size = max(map(len, shapes))
    aligned = tuple(tuple((f"d{size - len(shape) + i}",) for i in range(len(shape))) for shape in shapes)
    if stage.kind != "matmul":
        return Annotation(aligned, (tuple((f"d{i}",) for i in range(size)),), {})
    rows = aligned[0][:-1]
    return Annotation(((*rows, ("k",)), (("k",), ("n",))), ((*rows, ("n",)),), {"k": "+"})


def cut_with(stage: ProgramStage, tensors: Mapping[str, CommunicationTensor], axis: int | None, why: str
             ) -> dict[str, int | None]:
    """The cuts of a stage's inputs if its output is cut along ``axis`` (``None``: flattened); inputs not named are
    needed whole. Raises :class:`~weft.models.communication.program.CommunicationError`, whose sentence begins with
    ``why``, if a part of an input is not contiguous."""
    made, found = tensors[stage.outputs[0]], dict[str, int | None]()
    if axis is None and stage.kind == "matmul":
        raise CommunicationError(f"{why}: the stage {stage.name!r} is a matmul, of which no flattened part can be made")
    how = annotated(stage, [tensors[name].shape for name in stage.inputs])
    for name, dimensions in zip(stage.inputs, how.inputs, strict=True):
        tensor = tensors[name]
        if axis is not None and how.outputs[0][axis] in dimensions:
            own = dimensions.index(how.outputs[0][axis])
            found |= {name: own} if tensor.shape[own] > 1 else {}
        elif axis is None and tensor.elements > 1:
            if tensor.shape != made.shape:
                raise CommunicationError(f"{why}: the stage {stage.name!r} broadcasts {name!r}, of which there is no "
                                         "flattened part to go with: cut along an axis")
            found[name] = None
    return found


def _computed(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    """For a matmul or a pointwise stage: cut like the inputs, which must agree; terms if the cut dimension is summed
    over."""
    how, shape = annotated(stage, [tensor.shape for tensor in inputs]), _shape(stage, inputs)
    made = CommunicationTensor(stage.name, shape, itemsize=max(tensor.itemsize for tensor in inputs),
                               group=inputs[0].group)
    local, sliced, replicated = ([tensor for tensor in inputs if tensor.layout == layout]
                                 for layout in ("local", "sliced", "replicated"))

    def refused(why: str) -> CommunicationError:
        return _refused(stage, why if stage.kind != "matmul" else "matmul cannot read " + " and ".join(
            f"{tensor.name!r} {tensor.lies}" for tensor in inputs)
            + ": both are cut where they are summed, or one of them elsewhere")

    if local:
        if sliced:
            raise refused(f"{local[0].name!r} is local and {sliced[0].name!r} is sliced: reduce-scatter the local one "
                          "first")
        if replicated and stage.kind != "matmul" and not function_named(stage.attributes["function"]).scales:
            raise refused(f"{local[0].name!r} is local and {replicated[0].name!r} replicated, and {_what(stage)} does "
                          "not scale: all-reduce the local one first")
        return replace(made, layout="local")
    if not sliced:
        return made
    cuts = {None if tensor.axis is None else dimensions[tensor.axis]
            for tensor, dimensions in zip(inputs, how.inputs, strict=True) if tensor.layout == "sliced"}
    if len(cuts) > 1:
        raise refused(f"{sliced[0].name!r} is {sliced[0].lies} and {sliced[-1].name!r} is {sliced[-1].lies}: cut them "
                      "alike")
    cut = cuts.pop()
    if cut is None and (stage.kind == "matmul" or any(tensor.shape != shape for tensor in sliced)):
        raise refused(f"{sliced[0].name!r} is flattened and cannot be broadcast: slice along an axis")
    for tensor, dimensions in zip(inputs, how.inputs, strict=True):
        extends = tensor.elements > 1 if cut is None else cut in dimensions and tensor.shape[dimensions.index(cut)] > 1
        if tensor.layout == "replicated" and extends:
            raise refused(f"{tensor.name!r} is replicated where {sliced[0].name!r} is {sliced[0].lies}: slice it, or "
                          "gather the other")
    if cut is not None and cut not in how.outputs[0]:
        return replace(made, layout="local")
    return replace(made, layout="sliced", axis=None if cut is None else how.outputs[0].index(cut))


def _shape(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> tuple[int, ...]:
    if stage.kind == "matmul":
        left, right = inputs
        if len(left.shape) < 2 or len(right.shape) != 2 or left.shape[-1] != right.shape[0]:
            raise _refused(stage, f"matmul multiplies (..., m, k) by (k, n), not {left.shape} by {right.shape}")
        return *left.shape[:-1], right.shape[1]
    shape = broadcast_shape([tensor.shape for tensor in inputs])
    if shape is None:
        raise _refused(stage, "the shapes " + ", ".join(str(tensor.shape) for tensor in inputs)
                       + " do not broadcast to one")
    return shape


def _norm(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    return replace(inputs[0], shape=(), axis=None, layout="local" if inputs[0].layout == "local" else "replicated")


def _dropout(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    if not 0 <= stage.attributes["rate"] < 1:
        raise _refused(stage, f"the rate {stage.attributes['rate']} is not from 0 to below 1")
    return inputs[0]


def _cast(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    if stage.attributes["itemsize"] not in (1, 2, 4, 8):
        raise _refused(stage, f"an element of {stage.attributes['itemsize']} bytes is none of 1, 2, 4 and 8")
    return replace(inputs[0], itemsize=stage.attributes["itemsize"])


def _update(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    old, new = inputs
    if (old.shape, old.itemsize) != (new.shape, new.itemsize):
        raise _refused(stage, f"{old.name!r} has the shape {old.shape} in elements of {old.itemsize} bytes, its new "
                              f"value {new.name!r} {new.shape} of {new.itemsize}: cast or reshape it")
    if (old.layout, old.axis) != (new.layout, new.axis):
        raise _refused(stage, f"{old.name!r} is {old.lies}, its new value {new.name!r} is {new.lies}: bring both to "
                              "one layout")
    if old.layout == "local":
        raise _refused(stage, f"the new value {new.name!r} is local, so that each rank would go on with its own: "
                              "all-reduce it first")
    return new


def _sliced(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    if inputs[0].layout == "local":
        raise _refused(stage, f"{inputs[0].name!r} is local, and parts of different tensors are no slices of one: "
                              "reduce-scatter it instead")
    if inputs[0].layout == "sliced":
        raise _refused(stage, f"{inputs[0].name!r} is {inputs[0].lies} already: gather it first")
    return replace(inputs[0], layout="sliced", axis=stage.attributes["axis"])


def _collective(stage: ProgramStage, inputs: Sequence[CommunicationTensor]) -> CommunicationTensor:
    """For all_gather slices put together; for the others a sum, in slices, everywhere, or at the root with zeros
    elsewhere, or the root's value."""
    wanted = "sliced" if stage.kind == "all_gather" else "local"
    if inputs[0].layout != wanted:
        raise _refused(stage, f"{stage.kind} reads a {wanted} tensor, {inputs[0].name!r} is {inputs[0].lies}")
    if stage.kind == "reduce":
        return inputs[0]
    return replace(inputs[0], layout="sliced" if stage.kind == "reduce_scatter" else "replicated",
                   axis=stage.attributes.get("axis"))


Rule = Callable[[ProgramStage, Sequence[CommunicationTensor]], CommunicationTensor]
_RULES: Mapping[Any, Rule] = {
    "matmul": _computed, "pointwise": _computed, "norm": _norm, "dropout": _dropout, "cast": _cast, "update": _update,
    **dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"), _collective),
    "slice": _sliced, "send": lambda stage, inputs: replace(inputs[0], group=inputs[0].group + 1)}
