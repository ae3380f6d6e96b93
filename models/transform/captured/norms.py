"""Norms: what is normalized over is frozen."""

from __future__ import annotations

from collections.abc import Sequence

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule


def _norm(centred: bool) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        call = Arguments(step)
        x, normalized = w.tensor(step.arguments[0]), step.arguments[1]
        weight = call.at(2, "weight")
        bias, eps = (call.at(3, "bias"), call.at(4, "eps", 1e-5)) if centred else (None, call.at(3, "eps"))
        if len(normalized) != 1 or eps is None or (weight is None and bias is not None):
            raise UnknownError
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        inputs: list[tuple[str, Sequence[Axis]]] = [(x, axes)]
        inputs += [(w.tensor(one), axes[-1:]) for one in (weight, bias) if one is not None]
        w.add(step, "norm", inputs, axes, frozen=axes[-1], eps=float(eps), centred=centred)

    return rule

rule("layer_norm")(_norm(True))
rule("rms_norm")(_norm(False))
