"""Rows of tables: a table that is cut gives terms of a sum, zeros but for its own rows."""

from __future__ import annotations

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, UnknownError, Writer, rule


@rule("embedding")
def _embedding(w: Writer, step: Step) -> None:
    call = Arguments(step)
    table, ids = (w.tensor(step.arguments[i]) for i in (0, 1))
    padding = call.at(2, "padding_idx", -1)
    if call.at(3, "scale_grad_by_freq", False):
        raise UnknownError
    rows, width = w.fresh("v"), w.fresh("m")
    axes: list[Axis] = [(w.fresh(),) for _ in w.shape(ids)]
    extra = {} if padding < 0 else {"padding": padding}
    w.add(step, "embedding", [(table, [(rows,), (width,)]), (ids, axes)], [*axes, (width,)], reduced=[rows], **extra)
