"""What cuts along a dimension, joins or works along it (pooling, padding, running sums): that dimension is frozen.

In views a dimension that is merged or cut is split as far as its parts stay in one piece.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from weft.models.capture.exported import Step
from weft.models.transform.captured.products import expanded, repeated, upright
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule
from weft.models.transform.program import Axis, Dimensions


@rule("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze",
      "view_as", "reshape_as")
def _reshape(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    before, after = w.shape(x), w.given(step).shape
    if w.given(step).dtype != w.exported.metas[step.arguments[0].name].dtype or not math.prod(before):
        raise UnknownError
    one, other, frozen, sizes = _common_axes(w, before, after)
    w.add(step, "reshape", [(x, one)], other, frozen=frozen, sizes=sizes)


def _common_axes(w: Writer, before: Sequence[int],
                 after: Sequence[int]) -> tuple[Dimensions, Dimensions, list[str], dict[str, int]]:
    """Names that both shapes are made of; where sizes do not nest, both sides' are frozen."""
    sides: tuple[list[Axis], list[Axis]] = ([], [])
    frozen: list[str] = []
    sizes: dict[str, int] = {}
    at, to = 0, 0
    while at < len(before) or to < len(after):
        one, other = list(before[at:at + 1]), list(after[to:to + 1])
        while math.prod(one) != math.prod(other):
            if math.prod(one) < math.prod(other):
                one.append(before[at + len(one)])
            else:
                other.append(after[to + len(other)])
        at, to = at + len(one), to + len(other)
        edges = [[math.prod(sizes_[:i]) for i in range(len(sizes_) + 1)] for sizes_ in (one, other)]
        every = sorted({*edges[0], *edges[1]})
        nested = all(b % a == 0 for a, b in itertools.pairwise(every))
        if nested:
            atoms = {low: w.fresh() for low in every[:-1]}
            sizes |= {atoms[low]: high // low for low, high in itertools.pairwise(every)}
            for side, edge in zip(sides, edges, strict=True):
                side += [tuple(atoms[e] for e in every if low <= e < high) for low, high in itertools.pairwise(edge)]
        else:
            for side, lengths in zip(sides, (one, other), strict=True):
                for length in lengths:
                    name = w.fresh()
                    side.append((name,))
                    frozen.append(name)
                    sizes[name] = length
    return tuple(sides[0]), tuple(sides[1]), frozen, sizes


def _permute(order: Callable[[Step, int], Sequence[int]]) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        x, axes = w.first(step)
        w.add(step, "einsum", [(x, axes)], [axes[i] for i in order(step, len(axes))])

    return rule


def _swapped(step: Step, rank: int) -> list[int]:
    order = list(range(rank))
    a, b = (int(i) % rank for i in step.arguments[1:3])
    order[a], order[b] = order[b], order[a]
    return order


@rule("expand", "expand_as", "broadcast_to")
def _expand(w: Writer, step: Step) -> None:
    expanded(w, step, w.tensor(step.arguments[0]), w.given(step).shape)


rule("permute")(_permute(lambda step, rank: [int(i) % rank for i in step.arguments[1]]))
for _kind in ("transpose", "swapaxes", "swapdims"):
    rule(_kind)(_permute(_swapped))
rule("mT")(_permute(lambda step, rank: [*range(rank - 2), rank - 1, rank - 2]))
for _kind in ("t", "numpy_T"):
    rule(_kind)(_permute(lambda step, rank: list(reversed(range(rank)))))


@rule("slice", "select", "narrow", "split", "chunk", "split_with_sizes", "unbind")
def _taken(w: Writer, step: Step) -> None:
    """The captured operator itself, for each of its outputs; the other dimensions may be cut."""
    x = w.tensor(step.arguments[0])
    axis = step.at(2 if step.kind in ("split", "chunk", "split_with_sizes") else 1, "dim", 0) % len(w.shape(x))
    for place, given in enumerate(step.outputs):
        if given is None:
            continue
        if w.exported.metas[given].shape == w.shape(x):
            w.names[given] = x
        else:
            w.names[given] = _short(w, step, axis, w.exported.metas[given].shape, given, place)


@rule("cat", "concat", "concatenate")
def _join(w: Writer, step: Step) -> None:
    tensors = [w.tensor(one) for one in step.arguments[0]]
    axis = step.at(1, "dim", 0) % len(w.shape(tensors[-1]))
    some = [tensor for tensor in tensors if w.shape(tensor) != (0,)]
    _joined(w, step, some, axis)


def _joined(w: Writer, step: Step, tensors: Sequence[str], axis: int) -> None:
    """One tensor behind the other along an axis, which is frozen."""
    if len(tensors) == 1:
        w.gives(step, tensors[0])
        return
    axes = w.every(tensors[0])
    own = [w.fresh() for _ in tensors]
    lengths = tuple(w.shape(tensor)[axis] for tensor in tensors)
    w.add(step, "join", [(tensor, [*axes[:axis], (one,), *axes[axis + 1:]]) for tensor, one in zip(
        tensors, own, strict=True)], axes, frozen=[axes[axis][0], *own], sizes={axes[axis][0]: sum(lengths)}, axis=axis,
          lengths=lengths)


@rule("stack")
def _stack(w: Writer, step: Step) -> None:
    """Each tensor gets a dimension of one element; these are joined."""
    tensors = [w.tensor(one) for one in step.arguments[0]]
    axis = step.at(1, "dim", 0) % (len(w.shape(tensors[0])) + 1)
    rows = [upright(w, step, tensor, axis, f".{i}") for i, tensor in enumerate(tensors)]
    w.used = set()
    _joined(w, step, rows, axis)


@rule("repeat", "tile")
def _repeat(w: Writer, step: Step) -> None:
    """A dimension that is repeated is (times, itself)."""
    x, given = w.tensor(step.arguments[0]), step.arguments[1]
    times = [1] * (len(w.shape(x)) - len(given)) + list(given)
    first = len(times) - len(w.shape(x))
    axes = w.axes(w.shape(x))
    sizes: dict[str, int] = {}
    output: list[Axis] = []
    for i, count in enumerate(times):
        own = axes[i - first] if i >= first else ()
        name = (w.fresh("r"),) if count > 1 else ()
        sizes |= dict.fromkeys(name, count)
        output.append((*name, *own))
    w.add(step, "einsum", [(x, axes)], output, sizes=sizes)


@rule("repeat_interleave")
def _repeat_interleave(w: Writer, step: Step) -> None:
    """A dimension each of whose elements is repeated is (itself, times)."""
    x, count, dim = w.tensor(step.arguments[0]), step.arguments[1], step.at(2, "dim")
    if not isinstance(count, int) or (dim is None and len(w.shape(x)) != 1):
        raise UnknownError
    axis = (dim or 0) % len(w.shape(x))
    axes = w.axes(w.shape(x))
    times = w.fresh("r")
    w.add(step, "einsum", [(x, axes)], [(*one, times) if i == axis else one for i, one in enumerate(axes)],
          sizes={times: count})


@rule("diff")
def _diff(w: Writer, step: Step) -> None:
    axis = step.at(2, "dim", -1) % len(w.shape(w.tensor(step.arguments[0])))
    given = [one for one in (step.arguments[0], step.at(3, "prepend"), step.at(4, "append")) if one is not None]
    axes = w.every(w.tensor(given[0]))
    sides: dict[str, Sequence[Axis]] = {w.tensor(one): [*axes[:axis], (w.fresh(),), *axes[axis + 1:]] for one in given}
    w.call(step, list(sides.items()), axes, frozen=[axes[axis][0], *(own[axis][0] for own in sides.values())],
           sizes={axes[axis][0]: w.given(step).shape[axis]}, linear=len(sides) == 1)


def _short(w: Writer, step: Step, axis: int, shape: Sequence[int], name: str, place: int = 0) -> str:
    """What ``step`` takes along an axis of what it reads first; without that axis where ``shape`` has not as many."""
    x = w.tensor(step.arguments[0])
    axes = w.every(x)
    short = [w.fresh()] if len(shape) == len(axes) else []
    return w.call(step, [(x, axes)], [*axes[:axis], *((one,) for one in short), *axes[axis + 1:]], name=name,
                  frozen=[axes[axis][0], *short], sizes={one: shape[axis] for one in short}, linear=True, place=place)


@rule("slice_scatter")
def _slice_scatter(w: Writer, step: Step) -> None:
    """What is before a slice, what is put there, and what is behind it."""
    x, source = w.tensor(step.arguments[0]), w.tensor(step.arguments[1])
    axis = step.at(2, "dim", 0) % len(w.shape(x))
    size = w.shape(x)[axis]
    start, stop, stride = slice(step.at(3, "start"), step.at(4, "end"), step.at(5, "step", 1)).indices(size)
    if stride != 1 or stop < start:
        raise UnknownError
    _put_between(w, step, x, source, axis, start, stop)


@rule("select_scatter")
def _select_scatter(w: Writer, step: Step) -> None:
    x, source = w.tensor(step.arguments[0]), w.tensor(step.arguments[1])
    axis = step.arguments[2] % len(w.shape(x))
    at = step.arguments[3] % w.shape(x)[axis]
    _put_between(w, step, x, upright(w, step, source, axis), axis, at, at + 1)


def _put_between(w: Writer, step: Step, x: str, source: str, axis: int, start: int, stop: int) -> None:
    shape = w.shape(x)

    def kept(low: int, high: int, name: str) -> list[str]:
        part = replace(step, target="torch.ops.aten.slice.Tensor", arguments=(step.arguments[0], axis, low, high),
                       keywords={})
        return [_short(w, part, axis, [*shape[:axis], high - low, *shape[axis + 1:]], name)] if low < high else []

    _joined(w, step, [*kept(0, start, ".before"), source, *kept(stop, shape[axis], ".behind")], axis)


@rule("broadcast_tensors")
def _broadcast_tensors(w: Writer, step: Step) -> None:
    for given, one in zip(step.outputs, step.arguments[0], strict=True):
        if given is None:
            raise UnknownError
        x, shape = w.tensor(one), w.exported.metas[given].shape
        w.names[given] = x if w.shape(x) == shape else expanded(w, step, x, shape, given)


def _along(which: Callable[[Step, int], Collection[int]], *, linear: bool = True) -> Rule:
    """``which`` dimensions, of the arguments and how many there are."""
    def known(w: Writer, step: Step) -> None:
        x = w.tensor(step.arguments[0])
        before, after = w.shape(x), w.given(step).shape
        frozen = {dim % len(before) for dim in which(step, len(before))}
        if len(before) != len(after) or not frozen:
            raise UnknownError
        axes = w.every(x)
        output = [(w.fresh(),) if i in frozen else axis for i, axis in enumerate(axes)]
        ends = [name for i in frozen for name in (*axes[i], *output[i])]
        w.call(step, [(x, axes)], output, frozen=ends, sizes={output[i][0]: after[i] for i in frozen}, linear=linear)

    return known


@rule("pad", "constant_pad_nd")
def _pad(w: Writer, step: Step) -> None:
    amounts = step.arguments[1]
    if any(amounts):
        _along(lambda step, rank: [-1 - i for i in range(len(amounts) // 2) if any(amounts[2 * i:2 * i + 2])])(w, step)
    else:
        w.gives(step, w.tensor(step.arguments[0]))


rule("roll")(_along(lambda step, rank: repeated(step.at(2, "dims", []) or (), 1)))
rule("flip")(_along(lambda step, rank: step.arguments[1]))
rule("cumsum")(_along(lambda step, rank: [step.arguments[1]]))


def _last(step: Step, rank: int) -> range:
    """As many of the last as the operator's name says: ``avg_pool2d``."""
    return range(-int(step.kind[-2]), 0)


rule(*(f"max_pool{rank}d" for rank in (1, 2, 3)))(_along(_last, linear=False))
rule(*(f"{kind}{rank}d" for kind in ("avg_pool", "adaptive_avg_pool", "upsample_nearest") for rank in (1, 2, 3)),
     "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")(_along(_last))
