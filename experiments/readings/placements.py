"""Costs, placements, and memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from experiments.readings.writing import Fields, listed, most, require, span, table

# -- costs and placements ----------------------------------------------------------------------------------------------


def roofline(d: Any) -> Fields:
    judged = d["shipped"]["judged on gpt-1.3b-v100"]

    def together(model: str) -> list[float]:
        return [100 * found["layer forward and backward"]["median_absolute"]
                for name, found in d["GPUs that compute together"][model].items() if name.endswith("modelled")]

    return {"operator": 100 * judged["operator forward and backward"]["median_absolute"],
            "layer": 100 * judged["layer forward and backward"]["median_absolute"],
            "gpt": span(together("gpt-1.3b-v100"), 0),
            "t5": listed(f"{error:.0f}" for error in together("t5-770m-v100"))}


def zoo_counts(d: Any) -> Fields:
    exact = [row for row in d["rows"] if row["exact"]]
    require(all(row["published"] == row["counted"] for row in exact), "exact counts are met")
    return {"models": sum(row["published"] is not None for row in d["rows"]), "exact": len(exact)}


def unequal_gpus(d: Any) -> Fields:
    return {"cases": d["summary"]["cases"], **d["summary"]["as_if_alike_takes_times"]}


def tessel_evaluation(d: Any) -> Fields:
    training = d["training"]
    require(all("sizes" in row for row in training.values()), "each known schedule in its best micro-batches")

    def faster(title: str) -> str:
        return span((row["speedup"][title] for row in training.values() if title in row.get("speedup", {})), 2)

    def saved(text: int, batches: Callable[[int], bool]) -> list[float]:
        return [100 * min(row["less_latency"].values()) for row in d["inference"].values()
                if row["text"] == text and batches(row["batch"])]

    return {
        **{model: listed(row["gpus"] for name, row in training.items() if name.startswith(model))
           for model in ("GPT", "mT5")},
        "tensor": faster("tensor parallel"), "plus": faster("1F1B+"), "one": faster("1F1B"),
        "gap": most((100 * (row["weft"]["seconds"] / row["weft"]["bound_over_placements"] - 1)
                     for row in training.values() if "weft" in row), 0),
        "first": span(saved(512, lambda batch: batch == 1) + saved(197, lambda batch: batch == 1), 0),
        "long": most(saved(512, lambda batch: batch > 1), 0),
        "two": saved(197, lambda batch: batch == 2)[0], "many": saved(197, lambda batch: batch == 128)[0]}


def placement(d: Any) -> Fields:
    published = [row for row in d["rows"].values() if row["published"] is not None]
    require(all(row["status"] == "optimal" and row["cpu_seconds"] < 0.1 and math.isclose(
        row["objective"], row["published"], rel_tol=1e-5) for row in published), "published optima are reached")
    large = [row for name, row in d["rows"].items() if "10,000" in name]
    proven = [row for row in large if row["status"] == "optimal"]
    return {"published": len(published), "large": len(large), "proven": len(proven),
            "medium": span((row["cpu_seconds"] for name, row in d["rows"].items() if name.startswith("bert, 2,012")),
                           1),
            "seconds": span((row["cpu_seconds"] for row in proven), 0),
            "gap": most((100 * row["gap"] for row in large), 1),
            "skips": 100 * d["rows"]["nasnet, 8 accelerators"]["gap"]}


def graph_pipelines(d: Any) -> Fields:
    def ratios(model: str, replicated: bool, key: str = "ratio") -> list[float]:
        return [row[key] for row in d["rows"] if (row["model"], row["replicated"]) == (model, replicated)]

    return {**{model: span(ratios(model, False), 2) for model in ("mmt", "dlrm", "uno")},
            **{f"{model}_replicated": span(ratios(model, True), 2) for model in ("mmt", "dlrm", "uno")},
            "room": most(ratios("mmt", False, "ratio_at_most"), 2),
            "piper": listed(f"{row['search']['ratio']:.0f}" for row in d["rows"]
                            if row.get("search") and row["search"]["piper"]["done"])}


def graph_pipeline_steps(d: Any) -> Fields:
    rows = [row for row in d["rows"] if row["devices"] == 8]
    require(all(row["gain_of_sizes"] < 5e-4 for row in rows if row["model"] == "dlrm"), "one size is enough for DLRM")
    return {"gain": 100 * next(row["gain_of_sizes"] for row in rows if row["model"] == "mmt" and row["memory"] == 1.0)}


# -- memory ------------------------------------------------------------------------------------------------------------


def offload(d: Any) -> Fields:
    best = {way: found["samples_per_second"] for way, found in d["best"].items()}
    size, = {found["micro_batch_size"] for found in d["best"].values()}
    added = [100 * (row["decided, with offload"]["samples_per_second"] / row["decided"]["samples_per_second"] - 1)
             for row in d["sizes"].values()]
    require(abs(best["decided, with offload"] / best["decided"] - 1) < 5e-4, "offloading adds nothing at the best size")
    return {"samples": d["samples_per_step"], "size": size, "added": most(added, 0),
            **{field: 100 * (best["decided"] / best[way] - 1)
               for field, way in (("chain", "kept"), ("anywhere", "kept, any placement"), ("one", "1F1B"))}}


def memory_plan(d: Any) -> Fields:
    def size(row: Any, planner: str) -> int:
        return int(row[planner]["trainable"])

    head = ("model and devices", "PipeDream-like", "vPipe-like", "weft", "vPipe-like, as executed",
            "weft, as executed", "speed-up over vPipe-like")
    return {"table": table(head, (
        (name, *(size(row, planner) for planner in ("PipeDream-like", "vPipe-like", "weft", "vPipe-like, strict")),
         f"{size(row, 'weft, strict')}{' *' * bool(row['weft, strict']['unfinished'])}",
         f"{row['compared']['best speed']:.2f}") for name, row in d["rows"].items())),
        "rows": len(d["rows"]),
        "below": sum(row["compared"]["x vPipe, strict"] < 1 for row in d["rows"].values()),
        "seconds": listed({f"{row['seconds_a_search']:g}" for row in d["rows"].values()})}


def co_shard(d: Any) -> Fields:
    require(any((row["tokens"], row["gpus"], row["gib"]) == (16384, 2, 32) and "refused" in row["whole"]
                and "seconds" in row["in_parts"] for row in d["rows"]), "16,384 tokens fit in parts alone")
    return {}


def co_shard_run(d: Any) -> Fields:
    return {"saved": 100 * (1 - next(row["measured_of_whole"] for row in d["rows"] if row["plan"] == "4 parts"))}


def executed_memory(d: Any) -> Fields:
    *three, last = ({planner: found["runs"] for planner, found in model["planners"].items()}
                    for model in d["models"].values())
    operators, = {model["operators"] for model in three}
    both, = {last["operators"], last["whole layers"]}
    return {"operators": operators, "layers": listed(model["whole layers"] for model in three), "both": both}


def adama(d: Any) -> Fields:
    least = {name: found / 2**30 for name, found in d["planned"]["least_memory"].items()}
    return {"adama": least["adama"], "adam": least["adam"],
            "loss": most((100 * abs(run["difference"]) for run in d["trained"]["runs"]), 1)}
