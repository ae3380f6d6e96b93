"""What collectives beside computation bring, modelled: GPT-1.3B on four V100 and Llama-3-8B on eight H100.

    python -m experiments.models.overlap_modelled [--only tensor] [--effort 4]

Each row is one way to use all GPUs: the whole model on every one (``data``, with recomputation where its activations
need it), all GPUs computing every layer (``tensor``), or two or more groups that do (``groups``, the placement with the
best overlapped step of those listed). It is solved without overlap and as ``weft solve --overlap auto`` does; the bound
is proven over all options of the row's placements.

Where every GPU has the whole model, ``frameworks`` is what frameworks do today at the same costs
(:mod:`weft.models.overlap.frameworks`): DDP's buckets of 25 MiB beside the backward, and ZeRO-1 with both overlaps;
``ours`` is weft's best with the same collectives, searched. A ``step`` is one alone; a ``steady`` one follows another,
so that gathers run beside the next forward. ``published_batch``: the same with gradients accumulated over more
micro-batches, up to a published batch of GPT-1.3B (1024 sequences).

Costs are modelled: V100's by the roofline fitted to its measured operators and with its measured collectives, H100's
from its data sheet with V100's shares of the peaks, so its rows say what such a machine would do, not what one did.
Writes overlap_modelled.json.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from experiments.lib.provenance import begun
from weft import solve
from weft.models.overlap.data_parallel import ALL_REDUCE, GRADIENTS, SCATTERED
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.judge.validate import validate
from weft.solver.schedule import Schedule

SPECS = {
    "GPT-1.3B on 4 V100": """
name: GPT-1.3B on 4 V100
model: {{family: gpt, layers: 24, hidden: 2048, heads: 32, sequence: 1024, vocabulary: 51200}}
costs: roofline
cluster: {{gpus: 4, device: v100, memory: 32 GiB}}
training: {{micro_batches: {count}, micro_batch_size: {size}, recompute: {recompute}}}
placement: {{shapes: [{shape}]}}
""",
    "Llama-3-8B on 8 H100": """
name: Llama-3-8B on 8 H100
model: {{family: gpt, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, feed_forward: 14336, sequence: 8192,
         vocabulary: 128256, positions: rotary, norm: rms_norm, activation: swiglu, bias: false, tied: false,
         attention: fused, dropout: false}}
costs: roofline
cluster: {{gpus: 8, device: h100, memory: 80 GiB}}
training: {{micro_batches: {count}, micro_batch_size: {size}, recompute: {recompute}}}
placement: {{shapes: [{shape}]}}
"""}
#: Model, shape, micro-batches, samples of each, whether layers recompute.
CASES = (("GPT-1.3B on 4 V100", "data", 8, 4, True), ("GPT-1.3B on 4 V100", "data", 4, 2, True),
         ("GPT-1.3B on 4 V100", "tensor", 8, 4, False), ("GPT-1.3B on 4 V100", "groups", 8, 4, False),
         ("Llama-3-8B on 8 H100", "data", 8, 1, True), ("Llama-3-8B on 8 H100", "tensor", 8, 1, False),
         ("Llama-3-8B on 8 H100", "groups", 8, 1, False))
#: The same with more micro-batches to a step.
PUBLISHED = (("GPT-1.3B on 4 V100", "data", 32, 4, True), ("GPT-1.3B on 4 V100", "data", 256, 4, True),
             ("Llama-3-8B on 8 H100", "data", 128, 1, True))
#: The collectives of each framework's step among weft's own.
_COLLECTIVES = {"ddp": ALL_REDUCE, "zero-1": SCATTERED}


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    options, record = begun(__doc__, arguments, "overlap_modelled.json", only=["data", "tensor", "groups"],
                            models=("GPT", "Llama"), effort=4.0)
    rows, published = ([_row(*case, options.effort) for case in cases
                        if case[1] in options.only and case[0].startswith(tuple(options.models))]
                       for cases in (CASES, PUBLISHED))
    record.write({"effort": options.effort, "rows": rows, "published_batch": published})
    return 0


def _row(model: str, shape: str, count: int, size: int, recompute: bool, effort: float) -> dict[str, Any]:
    """One case, in seconds."""
    began = time.process_time()
    spec = parse_spec(SPECS[model].format(shape=shape, count=count, size=size, recompute=str(recompute).lower()))
    found: Schedule = solve(spec, overlap="auto", effort=effort, time_limit=300.0)
    validate(found)
    told = found.solver["overlap"]
    assert isinstance(told, dict)
    without = [value for value in (told.get("without"), told.get("best_without_options")) if value is not None]
    row = {"model": model, "shape": shape, "micro_batches": count, "micro_batch_size": size, "recompute": recompute,
           "without": _rounded(told.get("without")), "best_without": _rounded(min(without, default=None)),
           "with": _rounded(found.makespan), "bound": _rounded(told["bound_over_placements"]),
           "placement": found.solver.get("placement"), "chosen": dict(found.choices),
           "options": [{**option, "bound": _rounded(option["bound"]), "makespan": _rounded(option["makespan"])}
                       for option in found.solver.get("options", ())] if found.choices else [],
           "peak_gib": round(max(float(peak) + float(held) for peak, held in zip(
               found.peak_memory, found.solver["static_memory"], strict=True)) / 2**30, 3),
           **(_beside_frameworks(spec, found, effort) if shape == "data" else {}),
           "notes": list(found.solver.get("notes", ())), "cpu_seconds": round(time.process_time() - began, 1)}
    print(json.dumps({key: value for key, value in row.items() if key != "options"}), flush=True)
    return row


def _beside_frameworks(spec: Spec, step: Schedule, effort: float) -> dict[str, Any]:
    """What frameworks' steps and weft's with their collectives take, seconds: one step alone, and in steady state."""
    steady: Schedule = solve(spec, overlap="auto", effort=effort, time_limit=300.0, objective="rate")
    validate(steady)
    found: dict[str, Any] = {"steady": _rounded(steady.value), "steady_bound": _rounded(steady.value_bound)}
    for name, schedule in (("step", step), ("steady", steady)):
        told = schedule.solver["overlap"]
        assert isinstance(told, dict)
        ways = {option["option"]: option["makespan"] for option in step.solver.get("options", ())
                if option["choice"] == GRADIENTS}
        for entry in told["frameworks"]:
            one = found.setdefault("frameworks", {}).setdefault(entry["name"], {})
            one[name] = _rounded(entry["with"])
            if entry["with"] is not None:
                one[f"{name}_saved"] = round(1 - schedule.value / entry["with"], 5)
            ours = ways.get(_COLLECTIVES[entry["name"]])
            if name == "step" and ours is not None:
                one |= {"ours": _rounded(ours), "ours_saved": round(1 - step.value / ours, 5)}
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 9)


if __name__ == "__main__":
    main()
