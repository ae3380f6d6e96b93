"""Communication, jobs on the same GPUs, and plans by hand."""

from __future__ import annotations

from typing import Any

from experiments.readings.writing import Fields, listed, most, ms, require, small, span, table


def overlap_modelled(d: Any) -> Fields:
    kinds = {"data": "whole model on every GPU", "tensor": "all GPUs share every layer", "groups": "groups of GPUs"}

    def beside(row: Any, framework: str, key: str) -> str:
        found = row["frameworks"][framework]
        return "does not fit" if found.get(key) is None else f"{ms(found[key])} ({100 * found[f'{key}_saved']:.1f} %)"

    whole = [row for row in (*d["rows"], *d["published_batch"]) if "frameworks" in row]
    worst = min(row["frameworks"]["zero-1"]["steady_saved"] for row in whole)
    return {"table": table(
        ("model", "placement, micro-batches", "no overlap, ms", "weft, ms", "bound, ms", "less", "chosen"),
        ((row["model"], f"{kinds[row['shape']]}, {row['micro_batches']} of {row['micro_batch_size']}",
          ms(row["without"]), ms(row["with"]),
          "proven" if row["bound"] >= row["with"] * (1 - 1e-6) else ms(row["bound"]),
          f"{100 * (1 - row['with'] / row['without']):.1f} %",
          listed(sorted({f"{name} {value}" if name == "buckets" else value for name, value in row["chosen"].items()})))
         for row in d["rows"])),
        "frameworks": table(
            ("model, micro-batches", "weft", "DDP", "ZeRO-1", "weft with DDP's collectives", "weft with ZeRO-1's",
             "weft, steady state", "ZeRO-1, steady state"),
            ((f"{row['model']}, {row['micro_batches']} of {row['micro_batch_size']}", ms(row["with"]),
              beside(row, "ddp", "step"), beside(row, "zero-1", "step"), beside(row, "ddp", "ours"),
              beside(row, "zero-1", "ours"), ms(row["steady"]), beside(row, "zero-1", "steady")) for row in whole)),
        "slower": most([-100 * worst], 3)}


def overlap_programs(d: Any) -> Fields:
    require(all(row["found_us"] == row["known_us"] for row in d["known"]), "the known optima are found")
    return {"known": listed(f"{row['found_us']:g}" for row in d["known"]),
            "chunks": listed(row["chunks"] for row in d["known"]),
            "all": listed(f"{row['all_us']:g}" for row in d["known"])}


def overlap(d: Any) -> Fields:
    counts = list(d["chunks"][0]["milliseconds"])
    require(all(row["best"] == row["chosen"] for row in d["chunks"]), "the number chosen is the best measured")
    rows = ((", ".join(f"{row['setting'][part]:.0f}" for part in ("compute", "collective", "after")),
             *(f"{row['milliseconds'][count]:.0f}" for count in counts), row["chosen"]) for row in d["chunks"])
    require(d["values"]["2"]["bit_identical"], "two ranks have the same bits")
    head = ("computation, all-reduce, after it (ms)", "in one", *(f"in {count}" for count in counts[1:]), "chosen")
    return {"table": table(head, rows), "real": d["real"]["ratio"]}


def share(d: Any) -> Fields:
    machines, machine, pipelines = d["modelled"][:3]
    require(f"{pipelines['speedup']:.2f}" == "1.00", "pipelines gain nothing")
    return {"machines": machines["speedup"], "machine": machine["speedup"]}


def shared_jobs(d: Any) -> Fields:
    require(all(all(row["losses_identical"].values()) for row in d["rows"]), "losses are identical")
    return {"faster": d["speedup"], "planned": d["planned_speedup"]}


def shared_kinds(d: Any) -> Fields:
    first, second, *others = d["rows"]
    return {"machines": first["speedup"], "machine": second["speedup"], "pairs": len(d["rows"]),
            "others": span((row["speedup"] for row in others), 2)}


def shared_periods(d: Any) -> Fields:
    require(not d["faults"], "periods are those of an exhaustive search")
    return {"sets": d["counts"]["compared"]}


def killed_jobs(d: Any) -> Fields:
    require(not d["wrong"], "jobs that are not killed keep their losses")
    return {"ranks": d["ranks"]}


def layouts(d: Any) -> Fields:
    require(all(row["equal_to_exhaustive"] == row["pairs"] for row in d["pairs"]), "least costs are found")
    return {"devices": d["pairs"][-1]["devices"], "plans": sum(row["plans"] for row in d["plans"]),
            "error": small(max(row["largest_error"] for row in d["plans"]))}


def annotations_(d: Any) -> Fields:
    require(all(row["known"] == row["operators"] for row in d["rows"]), "all operators are known")
    return {"models": len(d["rows"])}


def plans_found(d: Any) -> Fields:
    found, rivals_of = d["evoformer"], d["evoformer"]["rivals"]
    step = {row["plan"]: row for row in d["at_size"]}
    require(found["bound_over_placements"] >= found["seconds"] * (1 - 1e-6), "the Evoformer's step is proven")
    require(all(row["proven"] for row in d["rows"]), "all small plans are proven")
    return {
        "table": table(("plan", "by hand, ms", "found, ms (proven)", "communications derived"), (
            (row["title"], ", ".join(f"{1e3 * seconds:.2f} ({name})" for name, seconds in row["by_hand"].items()),
             f"{1e3 * row['seconds']:.2f}",
             ", ".join(name.replace("_", "-") for name in row["communications"]) or "none")
            for row in d["rows"])),
        "plain": ms(step["plain"]["seconds"]), "plain_by_hand": ms(min(step["plain"]["by_hand"].values())),
        "interlaced": ms(step["interlaced"]["seconds"]), "interlaced_bound": ms(step["interlaced"]["bound"]),
        "ratio": step["interlaced"]["seconds"] / step["plain"]["seconds"], "evoformer": ms(found["seconds"]),
        "placements": found["placements"], "own": ms(rivals_of["3f1b"]["seconds"])}
