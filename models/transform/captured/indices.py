"""Elements by indices that are computed, rows of tables, and order.

One indexed dimension of numbers may be cut: parts are terms of a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.captured.products import broadcast_all
from weft.models.transform.captured.writer import UnknownError, Writer, rule
from weft.models.transform.program import Axis


def _cut(w: Writer, step: Step, name: str) -> dict[str, Any]:
    """Of numbers, parts of the indexed dimension are terms; of others it is frozen."""
    return {"reduced": [name]} if "float" in w.exported.metas[step.made[0]].dtype else {"frozen": [name]}


@rule("index")
def _index(w: Writer, step: Step) -> None:
    x, given = w.tensor(step.arguments[0]), step.arguments[1]
    at = [i for i, one in enumerate(given) if one is not None]
    if any(w.exported.metas[given[i].name].dtype == "bool" for i in at):
        raise UnknownError  # how many elements come out is in the numbers
    _indexed(w, step, x, at, [w.tensor(given[i]) for i in at])


def _indexed(w: Writer, step: Step, x: str, at: Sequence[int], indices: Sequence[str]) -> str:
    """Dimensions of indices stand where the first of theirs stood, in front where theirs are apart."""
    axes = w.every(x)
    sides, shared = broadcast_all(w, [w.shape(one) for one in indices])
    place = at[0] if list(at) == list(range(at[0], at[0] + len(at))) else 0
    rest = [axis for i, axis in enumerate(axes) if i not in at]
    output = [*rest[:place], *shared, *rest[place:]]
    names = [axes[i][0] for i in at]
    extra = _cut(w, step, names[0]) if len(at) == 1 else {"frozen": names}
    return w.add(step, "index", [(x, axes), *zip(indices, sides, strict=True)], output, at=tuple(at),
                 length=w.shape(x)[at[0]], **extra)


@rule("index_select")
def _index_select(w: Writer, step: Step) -> None:
    x, dim, index = step.arguments
    tensor = w.tensor(x)
    _indexed(w, step, tensor, [dim % len(w.shape(tensor))], [w.tensor(index)])


def _along(w: Writer, x: str, index: str, axis: int) -> tuple[list[Axis], list[Axis]]:
    """Names of a tensor and of indices along one axis of it; the other dimensions must be alike."""
    if len(w.shape(x)) != len(w.shape(index)) or any(
            a != b for i, (a, b) in enumerate(zip(w.shape(x), w.shape(index), strict=True)) if i != axis):
        raise UnknownError
    axes = w.every(x)
    return axes, [*axes[:axis], (w.fresh(),), *axes[axis + 1:]]


@rule("gather")
def _gather(w: Writer, step: Step) -> None:
    x, index = w.tensor(step.arguments[0]), w.tensor(step.arguments[2])
    gathered(w, step, x, index, step.arguments[1] % max(1, len(w.shape(x))))


def gathered(w: Writer, step: Step, x: str, index: str, axis: int, name: str | None = None) -> str:
    """Elements of ``x`` by indices along an axis, which the step gives but where they have a ``name``."""
    axes, own = _along(w, x, index, axis)
    return w.add(step, "gather", [(x, axes), (index, own)], own, axis=axis, length=w.shape(x)[axis], name=name,
                 **_cut(w, step, axes[axis][0]))


@rule("scatter")
def _scatter(w: Writer, step: Step) -> None:
    x, index, source = w.tensor(step.arguments[0]), w.tensor(step.arguments[2]), step.arguments[3]
    axis = step.arguments[1] % len(w.shape(x))
    axes, own = _along(w, x, index, axis)
    inputs: dict[str, Sequence[Axis]] = {x: axes, index: own}
    if isinstance(source, Ref):
        if w.shape(w.tensor(source)) != w.shape(index) or w.tensor(source) in inputs:
            raise UnknownError
        inputs[w.tensor(source)] = own
    w.call(step, list(inputs.items()), axes, frozen=[axes[axis][0], own[axis][0]])


@rule("scatter_add")
def _scatter_add(w: Writer, step: Step) -> None:
    """What is scattered is added to the tensor; indices that are cut give terms."""
    x, index, source = (w.tensor(step.arguments[i]) for i in (0, 2, 3))
    axis = step.arguments[1] % len(w.shape(x))
    if w.shape(source) != w.shape(index):
        raise UnknownError
    axes, own = _along(w, x, index, axis)
    _added(w, step, x, w.add(
        step, "gather_grad", [(source, own), (index, own)], axes, reduced=own[axis], axis=axis,
        sizes={axes[axis][0]: w.shape(x)[axis]}, length=w.shape(x)[axis], name=".scattered"))


def _added(w: Writer, step: Step, x: str, more: str) -> None:
    axes = w.axes(w.shape(x))
    w.add(step, "add", [(x, axes), (more, axes)], axes)


@rule("index_add")
def _index_add(w: Writer, step: Step) -> None:
    x, index, source = (w.tensor(step.arguments[i]) for i in (0, 2, 3))
    axis = step.arguments[1] % len(w.shape(x))
    if step.keywords.get("alpha", 1) != 1 or len(w.shape(index)) != 1:
        raise UnknownError
    axes = w.every(x)
    place = w.fresh()
    own = [*axes[:axis], (place,), *axes[axis + 1:]]
    _added(w, step, x, w.add(
        step, "index_grad", [(source, own), (index, [(place,)])], axes, reduced=[place], at=(axis,),
        sizes={axes[axis][0]: w.shape(x)[axis]}, length=w.shape(x)[axis], name=".scattered"))


@rule("masked_scatter")
def _masked_scatter(w: Writer, step: Step) -> None:
    """How many elements of the source come before a place is in the numbers: all is frozen."""
    x, mask, source = (w.tensor(one) for one in step.arguments)
    if source in (x, mask):
        raise UnknownError
    (own, hidden), output = broadcast_all(w, [w.shape(x), w.shape(mask)])
    given = w.axes(w.shape(source))
    w.call(step, [(x, own), (mask, hidden), (source, given)], output,
           frozen=[name for axis in (*output, *given) for name in axis])


# -- order -----------------------------------------------------------------------------------------------------------


@rule("topk", "sort", "argsort")
def _ordered(w: Writer, step: Step) -> None:
    """Where the largest (or smallest) elements are; these are gathered, so that a gradient flows back through them."""
    x, top = w.tensor(step.arguments[0]), step.kind == "topk"
    at = 2 if top or (step.kind == "sort" and "stable" in step.target) else 1
    axis = step.at(at, "dim", -1) % len(w.shape(x))
    count = step.arguments[1] if top else w.shape(x)[axis]
    largest = step.at(3, "largest", True) if top else step.at(at + 1, "descending", False)
    axes = w.every(x)
    short = w.fresh()
    found = w.add(step, "places", [(x, axes)], [*axes[:axis], (short,), *axes[axis + 1:]], name=".places",
                  frozen=[axes[axis][0], short], sizes={short: count}, axis=axis, count=count, largest=largest)
    w.used = set()
    if step.kind == "argsort":
        w.gives(step, found)
        return
    values, places = step.outputs
    if places is not None:
        w.names[places] = found
    if values is not None:
        w.names[values] = gathered(w, step, x, found, axis, values)


@rule("embedding")
def _embedding(w: Writer, step: Step) -> None:
    table, ids = (w.tensor(step.arguments[i]) for i in (0, 1))
    padding = step.at(2, "padding_idx", -1)
    if step.at(3, "scale_grad_by_freq", False):
        raise UnknownError
    rows, width = w.fresh("v"), w.fresh("m")
    axes = w.every(ids)
    extra = {} if padding < 0 else {"padding": padding}
    w.add(step, "embedding", [(table, [(rows,), (width,)]), (ids, axes)], [*axes, (width,)], reduced=[rows], **extra)
