"""Pooling, padding, rolling and interpolation: maps along dimensions that are frozen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.convolutions import repeated
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule

__all__ = ["along"]

#: Shares of elements that come in, by element that comes out.
_Weights = tuple[tuple[tuple[int, float], ...], ...]


def along(w: Writer, step: Step, kind: str, x: str, axis: int, count: int, *, name: str | None = None,
          last: bool = True, **attributes: Any) -> str:
    """A map of one dimension to ``count`` elements."""
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
    short = w.fresh()
    output = [*axes[:axis], (short,), *axes[axis + 1:]]
    return w.add(step, kind, [(x, axes)], output, frozen=[axes[axis][0], short], sizes={short: count}, axis=axis,
                 name=name, last=last, **attributes)


def _several(w: Writer, step: Step, x: str, maps: Sequence[tuple[str, int, int, dict[str, Any]]]) -> None:
    """One dimension after the other."""
    if not maps:
        w.gives(step, x)
    for i, (kind, axis, count, attributes) in enumerate(maps):
        end = i == len(maps) - 1
        x = along(w, step, kind, x, axis, count, name=step.name if end else f"{step.name}.{i}", last=end, **attributes)


def _picked(w: Writer, step: Step, indices: Sequence[tuple[int, Sequence[int]]], fill: float = 0.0) -> None:
    x = w.tensor(step.arguments[0])
    same = [(axis, one) for axis, one in indices if list(one) != list(range(w.shape(x)[axis]))]
    _several(w, step, x, [("pick", axis, len(one), {"indices": tuple(one), "fill": fill}) for axis, one in same])


@rule("pad", "constant_pad_nd")
def _pad(w: Writer, step: Step) -> None:
    call = Arguments(step)
    x, amounts, mode = w.tensor(step.arguments[0]), step.arguments[1], call.at(2, "mode", "constant")
    value = call.at(3, "value")
    if "constant_pad_nd" in step.target:
        mode, value = "constant", call.at(2, "value", 0)
    rank, indices = len(w.shape(x)), []
    for i in range(len(amounts) // 2):
        axis = rank - 1 - i
        size, (low, high) = w.shape(x)[axis], amounts[2 * i:2 * i + 2]
        indices.append((axis, [_source(at, size, mode) for at in range(-low, size + high)]))
    _picked(w, step, indices, float(value or 0.0))


def _source(at: int, size: int, mode: str) -> int:
    """Which element stands at a place beside the tensor."""
    if 0 <= at < size:
        return at
    if mode == "constant":
        return -1
    if mode == "replicate":
        return min(max(at, 0), size - 1)
    if mode == "circular":
        return at % size
    if mode == "reflect":
        return -at if at < 0 else 2 * (size - 1) - at
    raise UnknownError


@rule("roll")
def _roll(w: Writer, step: Step) -> None:
    call = Arguments(step)
    x, shifts, dims = w.tensor(step.arguments[0]), call.at(1, "shifts"), call.at(2, "dims", [])
    if not dims:
        raise UnknownError
    found = []
    for shift, dim in zip(repeated(shifts, 1), repeated(dims, 1), strict=True):
        axis = dim % len(w.shape(x))
        size = w.shape(x)[axis]
        found.append((axis, [(i - shift) % size for i in range(size)]))
    _picked(w, step, found)


@rule("flip")
def _flip(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axes = [dim % len(w.shape(x)) for dim in step.arguments[1]]
    _picked(w, step, [(axis, list(reversed(range(w.shape(x)[axis])))) for axis in axes])


@rule("cumsum")
def _cumsum(w: Writer, step: Step) -> None:
    x = w.tensor(step.arguments[0])
    axis = step.arguments[1] % len(w.shape(x))
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
    if "bool" in w.exported.metas[step.arguments[0].name].dtype:
        x = w.add(step, "cast", [(x, axes)], axes, name=f"{step.name}.number", last=False, dtype="int64",
                  source="bool")
    w.add(step, "running_sum", [(x, axes)], axes, frozen=axes[axis], axis=axis)


# -- pooling ---------------------------------------------------------------------------------------------------------


def _max_pool(rank: int) -> Rule:
    def known(w: Writer, step: Step) -> None:
        call = Arguments(step)
        x, given = w.tensor(step.arguments[0]), step.outputs[0]
        window = repeated(step.arguments[1], rank)
        stride = repeated(call.at(2, "stride") or window, rank)
        padding, dilation = (repeated(call.at(*where), rank) for where in ((3, "padding", 0), (4, "dilation", 1)))
        if len(w.shape(x)) != rank + 2 or call.at(5, "ceil_mode", False) or given is None:
            raise UnknownError
        n, c = w.fresh("n"), w.fresh("c")
        places, made = ([w.fresh(name) for _ in range(rank)] for name in "yu")
        w.add(step, "window_largest", [(x, [(n,), (c,), *((name,) for name in places)])],
              [(n,), (c,), *((name,) for name in made)], frozen=[*places, *made],
              sizes=dict(zip(made, w.exported.metas[given].shape[2:], strict=True)), window=window, stride=stride,
              padding=padding, dilation=dilation)

    return known


def _sizes(w: Writer, step: Step) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The tensor that is read, and the shapes before and after."""
    x, given = w.tensor(step.arguments[0]), step.outputs[0]
    assert given is not None
    return x, w.shape(x), w.exported.metas[given].shape


def _mixed(rank: int, weights: Callable[[Writer, Step, int, int, int], _Weights]) -> Rule:
    """Each of the last ``rank`` dimensions on its own; ``weights`` of the i-th, from and to its sizes."""
    def known(w: Writer, step: Step) -> None:
        x, before, after = _sizes(w, step)
        first = len(before) - rank
        _several(w, step, x, [
            ("mix", first + i, after[first + i], {"weights": weights(w, step, i, before[first + i], after[first + i])})
            for i in range(rank)])

    return known


def _average(w: Writer, step: Step, i: int, size: int, count: int) -> _Weights:
    call = Arguments(step)
    rank = int(step.target.partition("avg_pool")[2][0])
    window = repeated(step.arguments[1], rank)[i]
    stride = repeated(call.at(2, "stride") or step.arguments[1], rank)[i]
    padding = repeated(call.at(3, "padding", 0), rank)[i]
    padded = call.at(5, "count_include_pad", True)
    if call.at(4, "ceil_mode", False) or call.at(6, "divisor_override") is not None:
        raise UnknownError
    rows = []
    for at in range(count):
        low = at * stride - padding
        inside = [j for j in range(low, low + window) if 0 <= j < size]
        rows.append(tuple((j, 1 / (window if padded else len(inside))) for j in inside))
    return tuple(rows)


def _adaptive(w: Writer, step: Step, i: int, size: int, count: int) -> _Weights:
    rows = []
    for at in range(count):
        low, high = at * size // count, -(-(at + 1) * size // count)
        rows.append(tuple((j, 1 / (high - low)) for j in range(low, high)))
    return tuple(rows)


def _scale(step: Step, place: int, i: int, size: int, count: int) -> float:
    """Elements that come in for each that comes out: as given, or as the sizes are."""
    at = place if step.target.endswith(".vec") else place + i  # one list, or an argument for each
    given = step.arguments[at] if len(step.arguments) > at else None
    if isinstance(given, list | tuple):
        given = given[i]
    return 1 / given if isinstance(given, int | float) and given else size / count


def _linear(w: Writer, step: Step, i: int, size: int, count: int) -> _Weights:
    if step.arguments[2]:
        places = [at * (size - 1) / (count - 1) if count > 1 else 0.0 for at in range(count)]
    else:
        scale = _scale(step, 3, i, size, count)
        places = [max((at + 0.5) * scale - 0.5, 0.0) for at in range(count)]
    rows = []
    for place in places:
        low = min(int(place), size - 1)
        rows.append(((low, 1 - (place - low)), (min(low + 1, size - 1), place - low)))
    return tuple(rows)


def _nearest(rank: int) -> Rule:
    def known(w: Writer, step: Step) -> None:
        _, before, after = _sizes(w, step)
        first = len(before) - rank
        found = []
        for i in range(rank):
            size, count = before[first + i], after[first + i]
            scale = _scale(step, 2, i, size, count)
            found.append((first + i, [min(math.floor(at * scale), size - 1) for at in range(count)]))
        _picked(w, step, found)

    return known


for _rank, _kind in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    rule(f"max_pool{_rank}d")(_max_pool(_rank))
    rule(f"avg_pool{_rank}d")(_mixed(_rank, _average))
    rule(f"adaptive_avg_pool{_rank}d")(_mixed(_rank, _adaptive))
    rule(f"upsample_nearest{_rank}d")(_nearest(_rank))
    rule(f"upsample_{_kind}{_rank}d")(_mixed(_rank, _linear))
