"""Softmax and attention: the keys of a query are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.models.capture.exported import Step
from weft.models.transform.annotation import Axis
from weft.models.transform.captured.writer import Arguments, Rule, UnknownError, Writer, rule


def _softmax(kind: str) -> Rule:
    def known(w: Writer, step: Step) -> None:
        w.require_numbers(step)
        x = w.tensor(step.arguments[0])
        axes: list[Axis] = [(w.fresh(),) for _ in w.shape(x)]
        over = axes[step.arguments[1]][0]
        w.add(step, kind, [(x, axes)], axes, frozen=[over], over=over)

    return known


rule("softmax", "_softmax")(_softmax("softmax"))
rule("log_softmax", "_log_softmax")(_softmax("log_softmax"))


@rule("scaled_dot_product_attention")
def _attention(w: Writer, step: Step) -> None:
    """Heads that share keys are (keys' heads, heads of each); a mask may lack any of the names."""
    call = Arguments(step)
    q, k, v = (w.tensor(step.arguments[i]) for i in range(3))
    mask, rank = call.at(3, "attn_mask"), len(w.shape(q))
    if call.at(4, "dropout_p", 0.0) or rank < 2 or rank != len(w.shape(k)) or w.shape(k)[:-2] != w.shape(v)[:-2]:
        raise UnknownError
    shared = bool(call.at(7, "enable_gqa", False)) and w.shape(q)[-3] != w.shape(k)[-3]
    leading = rank - 3 if shared else rank - 2
    if w.shape(q)[:leading] != w.shape(k)[:leading]:
        raise UnknownError
    lead: list[Axis] = [(w.fresh({2: "bh", 1: "b"}.get(leading, "")[i:i + 1]),) for i in range(leading)]
    s, t, d, e = (w.fresh(name) for name in "stde")
    heads: tuple[list[Axis], list[Axis]] = (lead, lead)
    sizes: dict[str, int] = {}
    if shared:
        h, r = w.fresh("h"), w.fresh("r")
        heads = [*lead, (h, r)], [*lead, (h,)]
        sizes = {h: w.shape(k)[-3], r: w.shape(q)[-3] // w.shape(k)[-3]}
    scale = step.keywords.get("scale", call.at(6, "scale"))
    extra: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    inputs: list[tuple[str, Sequence[Axis]]] = [
        (q, [*heads[0], (s,), (d,)]), (k, [*heads[1], (t,), (d,)]), (v, [*heads[1], (t,), (e,)])]
    if mask is not None:
        given, whole = w.tensor(mask), [*heads[0], (s,), (t,)]
        own = whole[len(whole) - len(w.shape(given)):]
        if len(own) < len(w.shape(given)):
            raise UnknownError
        full = [*w.shape(q)[:-1], w.shape(k)[-2]][len(whole) - len(own):]
        if any(size not in (1, wanted) for size, wanted in zip(w.shape(given), full, strict=True)):
            raise UnknownError
        inputs.append((given, [() if size == 1 else axis for size, axis in zip(w.shape(given), own, strict=True)]))
        extra["mask"] = "truths" if w.exported.metas[mask.name].dtype == "bool" else "added"
    w.add(step, "attention", inputs, [*heads[0], (s,), (e,)], frozen=[t, d, e], sizes=sizes,
          causal=bool(call.at(5, "is_causal", False)), **extra)
