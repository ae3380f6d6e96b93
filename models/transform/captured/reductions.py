"""Sums and means over dimensions."""

from __future__ import annotations

import math

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, Writer, rule


def _reduction(mean: bool) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        call = Arguments(step)
        x = w.tensor(step.arguments[0])
        rank = len(w.shape(x))
        given = call.at(1, "dim")
        dims = range(rank) if given is None or given == [] else [given] if isinstance(given, int) else given
        gone = {dim % rank for dim in dims} if rank else set()
        axes = w.axes(w.shape(x))
        keep = bool(call.at(2, "keepdim", False))
        out: list[Axis] = [() if i in gone else axis for i, axis in enumerate(axes) if keep or i not in gone]
        count = math.prod(w.shape(x)[i] for i in gone)
        w.add(step, "einsum", [(x, axes)], out, reduced=[name for i in gone for name in axes[i]],
              scale=1 / count if mean else 1.0)

    return rule

rule("sum")(_reduction(False))
rule("mean")(_reduction(True))
