"""Published training runs asked for as uniform grids, and weft's best grid on the same GPUs beside them.

    python -m experiments.models.grids [--only TEXT] [--seconds 30] [--output grids.json]

The runs, with their sources, are in ``experiments/data/published_runs.yaml``: GPTs on A100s, Llama-3 and mixtures of
experts on H100s and B200s (of Llama-3-8B's on B200s the share of the peak is taken that products reach there), and
DeepSeek-V3 on H800s.
*asked*: the published degrees and layout through ``parallel``, whole backwards under Megatron-LM's own order, the end
of the step included; GiB of states and of activations on the fullest GPU, workspace left out, as published, and whether
all of it fits. *same*: weft's best on the published degrees, any cut, chunks and order. *best*: what ``weft solve``
finds with ``parallel: auto`` and what is no degree as published, within the seconds given, and the bound over all grids
listed.
Writes grids.json.
"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from typing import Any

import weft
from experiments.lib.provenance import Record, Row, given
from experiments.lib.script import script
from weft.models.spec.sections import Spec
from weft.models.spec.spec import SpecError, parse_spec
from weft.solver.feasibility.infeasible import Infeasible

GIB = 1024**3
PUBLISHED: Row = given("published_runs.yaml")


def spec_of(run: Row, parallel: Any, backward: tuple[str, ...] = ("full", "split"), layout: str = "",
            **cluster: str) -> Spec:
    """The run with these degrees."""
    return parse_spec(json.dumps({
        "name": run["name"], "model": PUBLISHED["models"][run["model"]], "parallel": parallel,
        "cluster": {"gpus": run["gpus"], "device": run["device"], "gpus_per_machine": 8, **cluster},
        "training": {"global_batch_size": run["batch"], "gradient_bytes": 4},
        "placement": {"backward": backward, **({"layout": layout} if layout else {})}}))


def seconds_of(run: Row) -> float | None:
    """The published time of a step; ``None`` where the run did not fit."""
    if "rate" in run:
        tokens = run["batch"] * PUBLISHED["models"][run["model"]]["sequence"]
        return float(tokens / run["gpus"] / run["rate"])
    found: float | None = run.get("seconds")
    return found


def asked(run: Row) -> Row:
    """The published degrees on the published cut, or an even one, under the order that the framework runs."""
    layout = run.get("layout", "")
    fits = seconds_of(run) is not None
    roomy = spec_of(run, run["asked"], ("full",), layout, memory="300 GiB")
    try:  # what was not run did not fit
        spec = spec_of(run, run["asked"], ("full",), layout) if fits else roomy
        found = weft.solve(spec, effort=1e-6, time_limit=600)
    except (Infeasible, SpecError):
        fits, found = False, weft.solve(roomy, effort=1e-6, time_limit=600)
    told, problem = found.solver["grid"], found.problem
    kept = replace(found, problem=replace(problem, blocks=tuple(
        replace(block, workspace=(0,) * len(block.devices)) for block in problem.blocks)))
    return {"seconds": round(told["step"], 4), "end": round(told["end"]["seconds"], 4),
            "states": round(max(found.solver["static_memory"]) / GIB, 3),
            "activations": round(max(kept.peak_memory) / GIB, 3), "fits": fits}


def best(run: Row, parallel: Any, seconds: float) -> Row | None:
    """What is found with ``parallel``; ``None`` where nothing fits."""
    try:
        told = weft.solve(spec_of(run, parallel), time_limit=seconds).solver["grid"]
    except (Infeasible, SpecError):
        return None
    return {"title": told["title"], "seconds": round(told["step"], 4), "bound": round(told["bound_over_grids"], 4),
            "grids": told["listed"], "utilization": round(told["model_flops_utilization"], 4)}


def row(run: Row, seconds: float) -> Row:
    """A run as asked, and what is found in so many seconds each."""
    ours = asked(run)
    measured = {"seconds": seconds_of(run), "states": run.get("states"), "activations": run.get("activations")}
    ways = {"same": {**run["asked"], "virtual": "auto"}, "best": run["free"]}
    return {"name": run["name"], "gpus": run["gpus"], "device": run["device"], "asked": ours, "published": measured,
            "ratios": {key: round(ours[key] / value, 4) for key, value in measured.items() if value is not None},
            "reason": run.get("reason", ""), "layout": run.get("layout", ""),
            **{name: best(run, parallel, seconds) if seconds and measured["seconds"] is not None else None
               for name, parallel in ways.items()}}


@script("grids.json", only="", seconds=30.0)
def main(options: Namespace, record: Record) -> None:
    record.rows(row(run, options.seconds) for run in PUBLISHED["runs"] if options.only in run["name"])
