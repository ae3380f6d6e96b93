"""Softmax and attention: the keys of a query are frozen."""

from __future__ import annotations

from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule


def _softmax(kind: str) -> Rule:
    def rule(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        x = w.tensor(step.arguments[0])
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        over = axes[step.arguments[1]][0]
        w.add(step, kind, [(x, axes)], axes, frozen=[over], over=over)

    return rule


@rule("scaled_dot_product_attention")
def _attention(w: Writer, step: Step) -> None:
    call = Arguments(step)
    q, k, v = (w.tensor(step.arguments[i]) for i in range(3))
    if (call.at(3, "attn_mask") is not None or call.at(4, "dropout_p", 0.0) or call.at(7, "enable_gqa", False)
            or len(w.shape(q)) != 4 or w.shape(q)[:2] != w.shape(k)[:2]):
        raise UnknownError
    b, h, s, t, d, e = (w.fresh(name) for name in "bhstde")
    scale = step.keywords.get("scale", call.at(6, "scale"))
    extra: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    w.add(step, "attention", [(q, [(b,), (h,), (s,), (d,)]), (k, [(b,), (h,), (t,), (d,)]),
                              (v, [(b,), (h,), (t,), (e,)])], [(b,), (h,), (s,), (e,)], frozen=[t, d, e],
          causal=bool(call.at(5, "is_causal", False)), **extra)

rule("softmax")(_softmax("softmax"))
rule("log_softmax")(_softmax("log_softmax"))
