"""Step time and memory of published training runs, as the model of costs predicts them from data sheets.

    python -m experiments.models.published [--only TEXT] [--output published.json]

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", MLSys 2023, table 5 and figure 1:
GPT with a vocabulary of 51,200 and sequences of 2,048 on A100s of 80 GB, groups of 8 GPUs compute each layer together,
interleaved 1F1B between groups. Each run is taken as it was: the same cuts, chunks and micro-batches, Megatron-LM's own
order, 18 bytes a parameter. *Full* recomputation keeps layers' inputs; *selective* keeps all but what is between
queries and the context, which runs a second time, with sequence parallelism. Collectives within groups and between
them overlap nothing. The optimizer's step is not counted. The seconds of GPT-530B and GPT-1T are quoted from memory.
Writes published.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.models.candidates.stages import StageCost
from weft.models.hardware.devices import DEVICES
from weft.models.layers.cluster import AffineLink, two_tiers
from weft.models.layers.collectives import collective_time
from weft.models.layers.costs import LayerCost
from weft.models.layers.layering import layers_of
from weft.models.spec.families import GptModel
from weft.models.tensor_parallel.part_times import PartTimes
from weft.models.tensor_parallel.parts import Part, part_problem, stage_cost
from weft.models.tensor_parallel.shard import Sharded, shard
from weft.models.times.roofline import Roofline
from weft.models.zoo.gpt import gpt_graph
from weft.solver.baselines import BASELINES
from weft.solver.judge.validate import validate
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

GIB, GROUP, BYTES_PER_PARAMETER = 1024**3, 8, 18
#: What runs again with selective recomputation, by the end of its name.
_AGAIN = ("attention.score", "attention.softmax", "attention.dropout", "attention.context")


@dataclass(frozen=True)
class Published:
    """One run: sizes, groups in the pipeline and chunks of each, sequences in a step and in a micro-batch, and what was
    measured: seconds of a step, GiB of parameters with optimizer and of activations on the fullest GPU."""

    model: str
    layers: int
    hidden: int
    heads: int
    groups: int
    chunks: int
    batch: int
    micro_batch: int
    recompute: str
    seconds: float | None
    static: float | None = None
    activations: float | None = None


RUNS = [
    Published("GPT-22B", 48, 6144, 64, 1, 1, 4, 4, "full", 1.42, 45.56),
    Published("GPT-22B", 48, 6144, 64, 1, 1, 4, 4, "none", None, 45.56, 59.25),
    Published("GPT-22B", 48, 6144, 64, 1, 1, 4, 4, "selective", 1.10, 45.56, 9.56),
    Published("GPT-175B", 96, 12288, 96, 8, 3, 64, 1, "full", 18.13, 45.56),
    Published("GPT-175B", 96, 12288, 96, 8, 3, 64, 1, "none", None, 45.56, 66.84),
    Published("GPT-175B", 96, 12288, 96, 8, 3, 64, 1, "selective", 13.75, 45.56, 12.35),
    Published("GPT-530B", 105, 20480, 128, 35, 3, 280, 1, "full", 49.05),
    Published("GPT-530B", 105, 20480, 128, 35, 3, 280, 1, "selective", 37.83),
    Published("GPT-1T", 128, 25600, 160, 64, 1, 512, 1, "full", 94.42),
    Published("GPT-1T", 128, 25600, 160, 64, 1, 512, 1, "selective", 71.49),
]


def divided(run: Published, attention: str) -> Sharded:
    """The graph of one GPU of a group."""
    model = GptModel.model_validate({"family": "gpt", "layers": run.layers, "hidden": run.hidden, "heads": run.heads,
                                     "vocabulary": 51200, "sequence": 2048, "attention": attention})
    device, graph = DEVICES["a100"], gpt_graph(model, run.micro_batch)
    parts = PartTimes(graph, Roofline(device).times(graph), GROUP, Roofline(device))
    return shard(graph, parts, lambda kind, size: collective_time(kind, size, GROUP, device).seconds,
                 recompute=run.recompute == "full", sliced=run.recompute == "selective")


def layer_costs(run: Published) -> tuple[Sharded, list[LayerCost]]:
    """What one GPU of a group has of each layer; with selective recomputation the times of unfused attention that runs
    twice, and what fused attention keeps."""
    found = divided(run, "unfused")
    costs = layers_of(found.graph, found.times, training=True, recompute=run.recompute == "full")
    if run.recompute != "selective":
        return found, costs
    fused = divided(run, "fused")
    keeping = layers_of(fused.graph, fused.times, training=True)
    again = {cost.name: sum(found.times[operator.name].forward for operator in found.graph.operators
                            if operator.layer == cost.name and operator.name.endswith(_AGAIN)) for cost in costs}
    return found, [replace(cost, backward=cost.backward + again[cost.name], activation_bytes=kept.activation_bytes,
                           shared_activations=kept.shared_activations)
                   for cost, kept in zip(costs, keeping, strict=True)]


def predicted(run: Published) -> dict[str, Any]:
    """Seconds of a step, GiB of parameters with optimizer state and of activations on the fullest GPU."""
    found, costs = layer_costs(run)
    names, device = [cost.name for cost in costs], DEVICES["a100"]
    network = two_tiers(AffineLink(device.link_latency, device.link),
                        AffineLink(device.network_latency, GROUP * device.network), GROUP)
    stages = run.groups * run.chunks
    each = run.layers // stages
    bounds = [0, *(1 + each * (k + 1) for k in range(stages - 1)), len(costs)]
    parts = []
    for k in range(stages):
        layers, group = tuple(range(bounds[k], bounds[k + 1])), k % run.groups
        cost: StageCost = stage_cost(costs, layers)
        parts.append(Part(str(k), layers, tuple(range(GROUP * group, GROUP * (group + 1))), cost))
    static = dict.fromkeys(range(GROUP * run.groups), 0)
    problem, _ = part_problem(run.model, found.graph, names, parts, 2**50, static, "full", network)
    count = run.batch // run.micro_batch
    name = "interleaved" if run.chunks > 1 else "1f1b"
    problem = replace(problem, blocks=tuple(replace(block, workspace=(0,) * len(block.devices))
                                            for block in problem.blocks))  # activations alone are published
    schedule = Schedule(problem, count, time_orders(problem, count, BASELINES[name].orders(problem, count)), 0.0)
    validate(schedule)
    first = {operator.name for operator in found.graph.operators
             if operator.layer in {names[i] for part in parts[::run.groups] for i in part.layers}}
    return {"seconds": schedule.makespan,
            "static": found.graph.parameter_count(sorted(first)) * BYTES_PER_PARAMETER / GIB,
            "activations": max(schedule.peak_memory) / GIB}


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="runs whose name contains this")
    parser.add_argument("--output", type=Path, default=RESULTS / "published.json")
    options = parser.parse_args(arguments)
    record, rows = Record(options.output), []
    for run in RUNS:
        title = f"{run.model}, {'no' if run.recompute == 'none' else run.recompute} recomputation"
        if options.only not in title:
            continue
        ours = predicted(run)
        measured = {"seconds": run.seconds, "static": run.static, "activations": run.activations}
        ratios = {key: round(ours[key] / value, 4) for key, value in measured.items() if value is not None}
        rows.append({"name": title, "predicted": {key: round(value, 4) for key, value in ours.items()},
                     "measured": measured, "ratios": ratios})
        print(title, rows[-1]["predicted"], ratios, flush=True)
    record.write({"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
