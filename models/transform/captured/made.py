"""Tensors of no input: one number everywhere, or numbers in a row."""

from __future__ import annotations

import math
from typing import Any

from weft.models.capture.exported import Ref, Step
from weft.models.transform.captured.pointwise import elementwise
from weft.models.transform.captured.writer import Rule, UnknownError, Writer, rule
from weft.models.transform.program import Axis


def _full(value: float | None, place: int = 1) -> Rule:
    """``value``, or the argument at ``place``."""
    def known(w: Writer, step: Step) -> None:
        meta = w.given(step)
        number = step.at(place, "fill_value") if value is None else value
        if not isinstance(number, int | float | bool) or "complex" in meta.dtype:
            raise UnknownError
        axes = w.axes(meta.shape)
        w.add(step, "full", [], axes, sizes={axis[0]: size for axis, size in zip(axes, meta.shape, strict=True)
                                             if axis}, value=number, dtype=meta.dtype)

    return known


for _kind, _number in (("zeros", 0), ("ones", 1)):
    for _name in (_kind, f"new_{_kind}", f"{_kind}_like"):
        rule(_name)(_full(_number))
for _name, _place in (("full", 1), ("new_full", 2), ("full_like", 1), ("scalar_tensor", 0)):
    rule(_name)(_full(None, _place))


@rule("arange")
def _arange(w: Writer, step: Step) -> None:
    numbers = [one for one in step.arguments if isinstance(one, int | float)]
    start, end, stride = {1: (0, *numbers, 1), 2: (*numbers, 1), 3: tuple(numbers)}.get(len(numbers), (0, 0, 0))
    meta = w.given(step)
    if not stride or meta.shape != (max(0, math.ceil((end - start) / stride)),):
        raise UnknownError
    _row(w, step, meta.shape[0], start, stride, meta.dtype)


def _row(w: Writer, step: Step, count: int, start: float, stride: float, dtype: str,
         name: str | None = None) -> str:
    axis: Axis = (w.fresh("n"),)
    return w.add(step, "range", [], [axis], sizes={axis[0]: count}, start=start, stride=stride, dtype=dtype, name=name)


def _triangle(lower: bool) -> Rule:
    def known(w: Writer, step: Step) -> None:
        x, diagonal = w.tensor(step.arguments[0]), step.at(1, "diagonal", 0)
        rows, columns = w.shape(x)[-2:]
        row = _row(w, step, rows, diagonal, 1, "int64", ".rows")
        column = _row(w, step, columns, 0, 1, "int64", ".columns")
        upright = _upright(w, step, row)
        seen = elementwise(w, step, "ge" if lower else "le", [upright, column], name=".seen")
        elementwise(w, step, "where", [seen, x, 0])

    return known


def _upright(w: Writer, step: Step, row: str) -> str:
    axis: Axis = (w.fresh("n"),)
    return w.add(step, "einsum", [(row, [axis])], [axis, ()], name=".upright")


rule("tril")(_triangle(True))
rule("triu")(_triangle(False))


@rule("fill")
def _fill(w: Writer, step: Step) -> None:
    value: Any = step.arguments[1]
    x, meta = w.tensor(step.arguments[0]), w.exported.metas[step.arguments[0].name]
    axes = w.axes(w.shape(x))
    sizes = {axis[0]: size for axis, size in zip(axes, w.shape(x), strict=True) if axis}
    if not isinstance(value, Ref):
        w.add(step, "full", [], axes, sizes=sizes, value=value, dtype=meta.dtype)
        return
    number = w.add(step, "cast", [(w.tensor(value), [])], [], name=".number",
                   dtype=meta.dtype, source=w.exported.metas[value.name].dtype)
    w.add(step, "einsum", [(number, [])], axes, sizes=sizes)
