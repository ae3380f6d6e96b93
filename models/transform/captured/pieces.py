"""What cuts along a dimension, or joins: that dimension is frozen."""

from __future__ import annotations

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule

__all__ = ["taken"]


@rule("slice")
def _slice(w: Writer, step: Step) -> None:
    call = Arguments(step)
    x = w.tensor(step.arguments[0])
    axis = call.at(1, "dim", 0) % len(w.shape(x))
    size, stop = w.shape(x)[axis], call.at(3, "end")
    start = call.at(2, "start") or 0
    span = slice(start, stop, call.at(4, "step", 1)).indices(size)
    taken(w, step, x, axis, span, step.outputs[0], drop=False)


@rule("select")
def _select(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axis = step.arguments[1] % len(w.shape(x))
    at = step.arguments[2] % w.shape(x)[axis]
    taken(w, step, x, axis, (at, at + 1, 1), step.outputs[0], drop=True)


def taken(w: Writer, step: Step, x: str, axis: int, span: tuple[int, int, int], given: str | None, *,
           drop: bool) -> None:
    """Elements along an axis; the other axes may be cut."""
    if given is None:
        return
    if span[1] - span[0] == w.shape(x)[axis] and span[2] == 1 and not drop:
        w.names[given] = x
        return
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
    short = w.fresh()
    out = [*axes[:axis], (short,), *axes[axis + 1:]]
    count = len(range(*span))
    made = w.add(step, "take", [(x, axes)], out, frozen=[axes[axis][0], short], sizes={short: count}, span=span,
                 axis=axis, name=f"{given}.taken" if drop else given, last=False)
    if drop:
        rest = [() if i == axis else one for i, one in enumerate(axes)]
        made = w.add(step, "einsum", [(made, rest)], [one for i, one in enumerate(axes) if i != axis], name=given,
                     last=False)
    if w.exported.metas[given].shape != w.shape(made):
        raise UnknownError
    w.names[given] = made


@rule("split", "chunk", "split_with_sizes")
def _pieces(w: Writer, step: Step) -> None:
    """``split`` and ``chunk``: several outputs, each a part."""
    x = w.tensor(step.arguments[0])
    axis = Arguments(step).at(2, "dim", 0) % len(w.shape(x))
    at = 0
    for given in step.outputs:
        if given is None:
            raise UnknownError
        size = w.exported.metas[given].shape[axis]
        taken(w, step, x, axis, (at, at + size, 1), given, drop=False)
        at += size


@rule("cat")
def _join(w: Writer, step: Step) -> None:
    tensors = [w.tensor(one) for one in step.arguments[0]]
    rank = len(w.shape(tensors[0]))
    axis = Arguments(step).at(1, "dim", 0) % rank
    axes: list[Axis] = [(w.fresh(),) for _ in range(rank)]
    inputs, sizes, own = [], [], {}
    for tensor in tensors:
        name = w.fresh()
        inputs.append((tensor, [*axes[:axis], (name,), *axes[axis + 1:]]))
        sizes.append(w.shape(tensor)[axis])
        own[name] = sizes[-1]
    w.add(step, "join", inputs, axes, frozen=[axes[axis][0], *own], sizes={axes[axis][0]: sum(sizes)}, axis=axis,
          lengths=tuple(sizes))


@rule("unbind")
def _unbind(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axis = Arguments(step).at(1, "dim", 0) % len(w.shape(x))
    for at, given in enumerate(step.outputs):
        taken(w, step, x, axis, (at, at + 1, 1), given, drop=True)
