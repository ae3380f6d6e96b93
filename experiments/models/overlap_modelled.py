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
The cases are in ``experiments/data/overlapped.yaml``. Writes overlap_modelled.json.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace

from experiments.lib.provenance import Record, Row, given
from experiments.lib.script import script
from weft import solve
from weft.models.overlap.data_parallel import ALL_REDUCE, GRADIENTS, SCATTERED
from weft.models.spec.spec import Spec, parse_spec
from weft.solver.judge.validate import validate
from weft.solver.schedule import Schedule

GIVEN: Row = given("overlapped.yaml")
#: The collectives of each framework's step among weft's own.
_COLLECTIVES = {"ddp": ALL_REDUCE, "zero-1": SCATTERED}


def spec_of(model: str, shape: str, count: int, size: int, recompute: bool) -> Spec:
    """The spec of a case."""
    return parse_spec(json.dumps({
        "name": model, **GIVEN["models"][model], "costs": "roofline", "placement": {"shapes": [shape]},
        "training": {"micro_batches": count, "micro_batch_size": size, "recompute": recompute}}))


def _row(effort: float, model: str, shape: str, count: int, size: int, recompute: bool) -> Row:
    """One case, in seconds."""
    began = time.process_time()
    spec = spec_of(model, shape, count, size, recompute)
    found: Schedule = solve(spec, overlap="auto", effort=effort, time_limit=300.0)
    validate(found)
    told = found.solver["overlap"]
    assert isinstance(told, dict)
    return {"model": model, "shape": shape, "micro_batches": count, "micro_batch_size": size, "recompute": recompute,
            "without": _rounded(told.get("without")), "with": _rounded(found.makespan),
            "bound": _rounded(told["bound_over_placements"]), "placement": found.solver.get("placement"),
            "chosen": dict(found.choices), **(_beside_frameworks(spec, found, effort) if shape == "data" else {}),
            "cpu_seconds": round(time.process_time() - began, 1)}


def _beside_frameworks(spec: Spec, step: Schedule, effort: float) -> Row:
    """What frameworks' steps and weft's with their collectives take, seconds: one step alone, and in steady state."""
    steady: Schedule = solve(spec, overlap="auto", effort=effort, time_limit=300.0, objective="rate")
    validate(steady)
    found: Row = {"steady": _rounded(steady.value), "steady_bound": _rounded(steady.value_bound)}
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


@script("overlap_modelled.json", only=["data", "tensor", "groups"], models=("GPT", "Llama"), effort=4.0)
def main(options: Namespace, record: Record) -> None:
    rows, published = ([_row(options.effort, *case) for case in cases
                        if case[1] in options.only and case[0].startswith(tuple(options.models))]
                       for cases in (GIVEN["cases"], GIVEN["published"]))
    record.write({"effort": options.effort, "rows": rows, "published_batch": published})
