"""The figures of docs/RESULTS.md: one function for each file of ``experiments/results``, by its name.

In comes the content of a file, out come the fields that ``experiments/results.md`` writes as ``{NAME.field}`` beside
what the file itself holds, and ``{NAME.count}``, the number of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean, median
from typing import Any

from experiments.lib.writing import listed, most, ms, small, span, table
from weft.app.lib.placements import SEARCHES
from weft.solver.schedule import RELATIVE_TOLERANCE

#: By name; numbers are formatted in the template.
Fields = dict[str, Any]

# -- searches ----------------------------------------------------------------------------------------------------------


def _gains(rows: Sequence[Mapping[str, Any]], *, fixed: bool = False) -> list[float]:
    """Of each row with a rival, or a fixed schedule, the share of the best one's makespan that weft saves."""
    found = []
    for row in rows:
        rivals = [time for name, time in row["rivals"].items() if not (fixed and name in SEARCHES)]
        if rivals and row["weft"] is not None:
            gain = 1 - row["weft"] / min(rivals)
            found.append(0.0 if abs(gain) <= RELATIVE_TOLERANCE else gain)
    return found


def _better(gains: Sequence[float]) -> int:
    return sum(gain > 0 for gain in gains)


def known_schedules(d: Any) -> Fields:
    """Of a family of problems, weft beside all known schedules."""
    rows = d["rows"]
    gains, fixed = _gains(rows), _gains(rows, fixed=True)
    gaps = [row["weft"] / row["bound"] - 1 for row in rows if row["weft"] is not None]
    return {
        "worse": sum(gain < 0 for gain in gains) + sum("error" in row for row in rows),
        "better": _better(gains), "saved": 100 * mean(gains), "fitting": len(fixed),
        "better_than_fixed": _better(fixed), "saved_of_fitting": 100 * mean(fixed),
        "proven": sum(row.get("proven", False) for row in rows), "gap": 100 * mean(gaps),
        "median_gap": 100 * median(gaps), "largest_gap": most((100 * gap for gap in gaps), 1)}


def never_worse(d: Any) -> Fields:
    rows = d["rows"]
    unequal = _gains([row for row in rows if row["stages"] != "uniform"])
    best = [min(row["rivals"], key=row["rivals"].get) for row in rows if row["rivals"]]
    found, gains = known_schedules(d), _gains(rows)
    return {**found, "greedy": best.count("greedy"), "blocks": best.count("v-block"),
            "better": 100 * found["better"] / len(gains), "better_unequal": 100 * _better(unequal) / len(unequal),
            "tied_open": sum(not row["proven"] and not gain for row, gain in zip(rows, gains, strict=True)),
            "proven": 100 * found["proven"] / len(rows),
            "near": 100 * mean(row["weft"] <= 1.01 * row["bound"] for row in rows),
            "widest": most((100 * (row["weft"] / row["bound"] - 1) for row in rows), 0)}


def published_costs(d: Any) -> Fields:
    return {**known_schedules(d), "devices": span((row["devices"] for row in d["rows"]), 0)}


def readme(d: Any) -> Fields:
    step = {row["name"]: row["makespan"] for row in d["rows"]}
    return {"blocks": most([100 * (step["v-block"] / step["weft"] - 1)], 0)}


def streams(d: Any) -> Fields:
    return {"largest": most([d["summary"]["makespan"]["largest"]], 2)}


def annealer(d: Any) -> Fields:
    return {"far": sum(1 - row["annealer"] / row["weft"] > 0.003 for row in d["rows"]),
            "most": most([100 * d["summary"]["most"]], 1)}


def cut_search(d: Any) -> Fields:
    rows = [row for row in d["rows"] if "refused" not in row]
    times = [row["takes_times"] for row in rows]
    brute = [row for row in rows if row.get("brute_force") is not None]
    return {"fit": len(rows), "gpus": span((row["gpus"] for row in rows), 0), "mean": mean(times),
            "least": min(times), "most": max(times), "longer": sum(ratio > 1 + 1e-6 for ratio in times),
            "shorter": sum(ratio < 1 - 1e-6 for ratio in times), "brute": len(brute),
            "equal": sum(abs(row["all_cuts"]["makespan"] / row["brute_force"] - 1) < 1e-9 for row in brute)}


def cut_ablation(d: Any) -> Fields:
    times = {part: found["takes_times"] for part, found in d["rows"][0].items()
             if isinstance(found, dict) and "takes_times" in found}
    return {"listed": times["cuts not listed"], "tries": times["tries"], "polishing": times["polishing"],
            "two_stages": times["third chunk"]}


def tessel_search(d: Any) -> Fields:
    rows = d["rows"]
    return {"proven": sum(row["proven"] for row in rows),
            "most": most((row["cpu_seconds"] for row in rows), 2), "makespans": sum(row["gap"] == 0 for row in rows)}


def scale(d: Any) -> Fields:
    def of(devices: Iterable[int], key: str) -> int:
        return sum(d["summary"][str(count)][key] for count in devices)

    few, still_open = (8, 16, 32), [row for row in d["rows"] if not row["proven"]]
    return {"periods": of(few, "instances"), "proven": of(few, "proven"), "soon": of(few, "proven_within_10_s"),
            "near": of(few, "gap_under_1_percent"), "on_64": of([64], "instances"), "open": len(still_open),
            "two_chunks": sum(row["shape"] in ("V2", "loop2") for row in still_open),
            **{f"{name}_{count}": of([count], key) for count in (64, 128)
               for name, key in (("proven", "proven"), ("near", "gap_under_1_percent"))},
            **{f"worst_{count}": 100 * d["summary"][str(count)]["worst_gap"][0] for count in (64, 128)}}


def ablation(d: Any) -> Fields:
    found = d["summary"]
    same = [name for name, of in found.items() if not of["none found"] + of["longer"] + of["shorter"]
            and of["bound"] == of["lowest bound"] == 1]
    most_first = sorted((name for name in found if found[name]["answer"] > 1), key=lambda name: -found[name]["answer"])
    return {"techniques": len(found), "same": len(same),
            "largest": listed(f"without *{name}* {found[name]['answer']:.3f} times as long (at most "
                              f"{found[name]['longest']:.2f} times)" for name in most_first[:3])}


# -- costs, placements, memory -----------------------------------------------------------------------------------------


def roofline(d: Any) -> Fields:
    judged = d["shipped"]["judged on gpt-1.3b-v100"]

    def together(model: str) -> list[float]:
        return [100 * found["layer forward and backward"]["median_absolute"]
                for name, found in d["GPUs that compute together"][model].items() if name.endswith("modelled")]

    return {"operator": 100 * judged["operator forward and backward"]["median_absolute"],
            "layer": 100 * judged["layer forward and backward"]["median_absolute"],
            "gpt": span(together("gpt-1.3b-v100"), 0),
            "t5": listed(f"{error:.0f}" for error in together("t5-770m-v100"))}


def configs(d: Any) -> Fields:
    return {part: sum(part in row for row in d["models"].values()) for part in ("predict", "head")}


def collectives(d: Any) -> Fields:
    return {"errors": span((100 * found["median_absolute_error"] for found in d.values()), 0)}


def grids(d: Any) -> Fields:
    def off(key: str, rows: Sequence[Any] = d["rows"]) -> list[float]:
        return [100 * row["ratios"][key] - 100 for row in rows if key in row["ratios"] and not row["reason"]]

    on = {device: off("seconds", [row for row in d["rows"] if row["device"] == device])
          for device in ("a100", "h100", "h800", "b200")}
    found = [row for row in d["rows"] if row["best"] is not None]
    far = [f"{row['name']} on {row['gpus']} {row['device'].upper()}s {row['ratios']['seconds']:.2f}"
           for row in d["rows"] if row["reason"]]
    layouts = [f"{row['name']}'s on {row['gpus']} {row['device'].upper()}s {row['asked']['seconds']:.2f} s under "
               f"Megatron-LM's order and {row['same']['seconds']:.2f} under weft's best ({row['same']['bound']:.2f})"
               for row in d["rows"] if row["layout"] and row["same"]]
    return {"steps": len(on["a100"]), "a100": span(on["a100"], 0), "h100": span(on["h100"], 0),
            "on_h100": len(on["h100"]), "b200": span(on["b200"], 0), "on_b200": len(on["b200"]),
            "h800": "".join(f"{value:.1f}" for value in on["h800"]),
            "states": span(off("states"), 0), "activations": span(off("activations"), 0),
            "far": listed(far),
            "same": sum(row["same"] is not None and row["same"]["seconds"] <= row["asked"]["seconds"]
                        for row in found),
            "layouts": listed(layouts), "searched": len(found),
            "better": sum(row["best"]["seconds"] < row["asked"]["seconds"] for row in found),
            "less": most((100 * (1 - row["best"]["seconds"] / row["asked"]["seconds"]) for row in found), 0)}


def tessel_evaluation(d: Any) -> Fields:
    training = d["training"]

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
    large = [row for name, row in d["rows"].items() if "10,000" in name]
    proven = [row for row in large if row["status"] == "optimal"]
    return {"published": len(published), "large": len(large), "proven": len(proven),
            "reached": sum(row["status"] == "optimal" and row["objective"] <= row["published"] * (1 + 1e-5)
                           for row in published),
            "quick": most((row["cpu_seconds"] for row in published), 1),
            "medium": span((row["cpu_seconds"] for name, row in d["rows"].items() if name.startswith("bert, 2,012")),
                           1),
            "seconds": span((row["cpu_seconds"] for row in proven), 0),
            "gap": most((100 * row["gap"] for row in large), 1),
            "skips": 100 * d["rows"]["nasnet, 8 accelerators"]["gap"]}


def offload(d: Any) -> Fields:
    best = {way: found["samples_per_second"] for way, found in d["best"].items()}
    added = [row["decided, with offload"]["samples_per_second"] / row["decided"]["samples_per_second"]
             for row in d["sizes"].values()]
    return {"added": max(added), "chain": best["decided"] / best["kept"],
            "size": listed(sorted({found["micro_batch_size"] for found in d["best"].values()})),
            "one": best["decided"] / best["1F1B"], "at_best": best["decided, with offload"] / best["decided"],
            "anywhere": best["decided with offload, any placement"] / best["kept, any placement"]}


# -- communication, jobs, plans ----------------------------------------------------------------------------------------


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


def share(d: Any) -> Fields:
    return {"table": table(("jobs", "times as fast"), ((row["pair"], f"{row['speedup']:.2f}") for row in d["rows"]))}


def annotated(d: Any) -> Fields:
    return {"known": sum(row.get("known") == row.get("operators", 0) for row in d["rows"])}


def plans_found(d: Any) -> Fields:
    found, rivals_of = d["evoformer"], d["evoformer"]["rivals"]
    step = {row["plan"]: row for row in d["at_size"]}
    return {
        "table": table(("plan", "by hand, ms", "found, ms", "proven", "communications derived"), (
            (row["title"], ", ".join(f"{1e3 * seconds:.2f} ({name})" for name, seconds in row["by_hand"].items()),
             f"{1e3 * row['seconds']:.2f}", "yes" if row["proven"] else "no",
             ", ".join(name.replace("_", "-") for name in row["communications"]) or "none")
            for row in d["rows"])),
        "plain": ms(step["plain"]["seconds"]), "plain_by_hand": ms(min(step["plain"]["by_hand"].values())),
        "interlaced": ms(step["interlaced"]["seconds"]), "interlaced_bound": ms(step["interlaced"]["bound"]),
        "ratio": step["interlaced"]["seconds"] / step["plain"]["seconds"], "evoformer": ms(found["seconds"]),
        "evoformer_bound": ms(found["bound_over_placements"]), "placements": found["placements"],
        "own": ms(rivals_of["3f1b"]["seconds"])}


# -- runs --------------------------------------------------------------------------------------------------------------


def equality(d: Any) -> Fields:
    return {dtype: small(max(row["gradient_error"] for row in d["rows"] if row["dtype"] == dtype))
            for dtype in ("fp64", "fp32", "bf16")} | {"shapes": len({row["shape"] for row in d["rows"]})}


def any_model_ranks(d: Any) -> Fields:
    rows = [row for row in d["rows"] if row["dtype"] == "fp64"]
    trained = [row for row in rows if "failed" not in row]
    return {"models": len({row["model"] for row in trained}), "runs": len(trained), "tried": len(rows),
            "error": small(max(row["error"] for row in trained))}


def model_types_ranks(d: Any) -> Fields:
    found: dict[str, Any] = {}
    for name, ranks in (("two", 2), ("three", 3), ("copies", 4)):
        rows = [row for row in d["rows"] if row["ranks"] == ranks]
        found[name] = f"{sum('failed' not in row for row in rows)} of {len(rows)}"
    refused = {row["model"].partition(" (")[0]: row["failed"].partition(": ")[2] for row in d["rows"]
               if "failed" in row}
    return {**found, "types": len({row["model"] for row in d["rows"]}),
            "error": small(max(row["error"] for row in d["rows"] if "failed" not in row)),
            "refused": "; ".join(f"{name} ({why})" for name, why in refused.items()) or "none"}


def beside_torch(d: Any) -> Fields:
    kinds = ("Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleZBVZeroBubble", "DDP")
    return {"table": table(("model", "busiest rank of the layers' best cut over half", *kinds), (
        (row["model"], f"{row['balance']:.2f}", *(f"{row['ratios'][kind]:.3f}" for kind in kinds))
        for row in d["rows"]))}


def overlap_sums(d: Any) -> Fields:
    return {"ratio": span([row["ratio"] for row in d["rows"]], 3)}


def overhead(d: Any) -> Fields:
    ratio = {row["method"]: row["cpu_ratio_to_weft"] for row in d["methods"]}
    return {"own": ratio["PyTorch, Schedule1F1B"], "any": ratio["PyTorch, schedule from CSV"]}


def family(d: Any) -> Fields:
    def saved(row: Any) -> str:
        return "none fits" if row["saved"] is None else f"{100 * row['saved']:.1f} %"

    return {"above": most((100 * row["above_bound"] for row in d["rows"]), 3), "table": table(
        ("training", "plans found", "switches", "hours", "best single plan, hours", "less"),
        ((row["case"], row["plans"], len(row["switches"]), f"{row['total'] / 3600:.3f}",
          "-" if row["alone_total"] is None else f"{row['alone_total'] / 3600:.3f}", saved(row)) for row in d["rows"]))}


def switching(d: Any) -> Fields:
    parts: dict[int, list[Any]] = {}
    for row in d["rows"]:
        parts.setdefault(row["first"], []).append(row)
    best = [min(rows, key=lambda row: row["predicted"]) for rows in parts.values()]
    return {"apart": most((100 * abs(row["apart"]) for row in d["rows"]), 1), "parts": len(parts), "table": table(
                ("from step", "sequence", "micro-batches", "plans", "best, ms", "emulated over predicted, of all"),
                ((row["first"], row["sequence"], row["micro_batches"], len(rows), f"{1e3 * row['predicted']:.2f}",
                  span([1 + each["apart"] for each in rows], 4))
                 for row, rows in zip(best, parts.values(), strict=True))),
            "same": "the same steps" if d["predicted_switches"] == d["emulated_switches"] else "other steps"}


def backends(d: Any) -> Fields:
    rows = d["rows"]
    return {
        "models": len({row["model"] for row in rows}), "worst": most((row["over_single"] for row in rows), 3),
        "apart": most((100 * abs(row["predicted_over_measured"] - 1) for row in rows), 1),
        "kinds": span([row["kinds"] for row in rows], 0),
        "mixed": sum(len(row["backends"]) > 1 for row in rows), "table": table(
            ("model", "batch", "eager, ms", "best single backend", "over eager", "over the best single",
             "predicted over measured"),
            ((row["model"], row["batch"], f"{row['eager_ms']:.2f}", row["single"], f"{row['over_eager']:.3f}",
              f"{row['over_single']:.3f}", f"{row['predicted_over_measured']:.3f}") for row in rows))}


def experts(d: Any) -> Fields:
    names = {"dts": "dense to sparse", "switch": "Switch", "top2": "best two"}
    return {"table": table(
        ("gate", "steps to the loss", "GFLOP", "best loss"),
        ((names[kind], f"{found['steps']:.0f}", f"{found['gflops']:.0f}", f"{found['best']:.3f}")
         for kind, found in d["gates"].items())),
        "quiet": most((row["with"] for row in d["monitor"] if row["noise"] == 0.1), 0),
        "noisy": most((row["with"] for row in d["monitor"] if row["noise"] == 0.2), 0),
        "without": span([row["without"] for row in d["monitor"] if row["noise"] == 0.1], 0)}


def graph_network(d: Any) -> Fields:
    limited, stages = d["limited"], d["stages"]
    fused = [row for row in stages if row["fused"] is not None]
    return {
        "budgets": table(("share of the whole", "chunks", "the fewest, proven", "peak of the budget"), (
            (f"{row['share']:.0%}", f"{row['chunks']} x {row['chunks']}", "yes" if row["least_proven"] else "no",
             f"{row['of_budget']:.0%}") for row in d["budgets"])),
        "edges": limited["streamed"]["edges"] / 1e6, "limit": limited["streamed"]["limit"] / 2**20,
        "whole": limited["streamed"]["whole"] / 2**20, "chunks": limited["streamed"]["chunks"],
        "room": d["overlap"][0]["room"],
        "overlap": table(("chunks", "sources that stay", "loads over computations", "serial over overlapped",
                          "over the longer of both", "bound over the longer", "plan over run"), (
            (f"{row['chunks']} x {row['chunks']}", row["resident"], f"{row['loads']:g}", f"{row['gain']:.2f}",
             f"{row['over_largest'] - 1:.1%}", f"{row['bound'] / max(row['lanes'].values()) - 1:.1%}",
             f"{row['planned_over_measured']:.3f}") for row in d["overlap"])),
        "accuracy": listed([f"{100 * row['accuracy']:.1f} % on {row['graph']}" for row in d["accuracy"]]),
        "epochs": d["accuracy"][0]["epochs"], "dropout": d["accuracy"][0]["dropout"],
        "apart": small(max(row["largest_apart"] for row in d["accuracy"])),
        "pyg": listed([f"{row['ratio']:.1f} times on {row['graph']}" for row in d["pyg"]]),
        "edges_alone": span([row["edges_alone"] for row in fused], 1),
        "fused": span([row["fused"] for row in fused], 1),
        "stages": table(("graph", *dict.fromkeys(row["kind"] for row in stages)), (
            (graph, *(f"{row['most'].replace('_', ' ')} "
                      f"{row['seconds'][row['most']] / sum(row['seconds'].values()):.0%}"
                      for row in stages if row["graph"] == graph))
            for graph in dict.fromkeys(row["graph"] for row in stages)))}


def gpu_plan(d: Any) -> Fields:
    def ratios(optimizer: str) -> list[float]:
        return [100 * (row[plan]["time_ratio"] - 1) for name, row in d.items() if name.endswith(f" {optimizer}")
                for plan in ("1F1B", "weft")]

    peaks = [ratio for row in d.values() if "1F1B" in row for plan in ("1F1B", "weft")
             for ratio in row[plan]["peak_ratios"]]
    return {"adam": most(map(abs, ratios("adam")), 1), "adama": span(ratios("adama"), 1),
            "peaks": most((100 * abs(ratio - 1) for ratio in peaks), 1)}


def gpu(d: Any) -> Fields:
    parts = {part["name"]: part["found"] for part in d["parts"]}
    found = parts["planned"]["1.3b adam"]
    errors = {row["model"]: row.get("error") for row in parts["foreign models"]["rows"]}
    close = [error for error in errors.values() if error is not None and error < 1e-12]
    (beside,), (backends,) = parts["beside torch"]["rows"], parts["backends"]["rows"]
    both = [found[plan] for plan in ("1F1B", "weft")]
    return {"device": found["device"], "1f1b": both[0]["time_ratio"], "weft": both[1]["time_ratio"],
            "peaks": most((100 * abs(ratio - 1) for row in both for ratio in row["peak_ratios"]), 1),
            "close": len(close), "models": len(errors), "error": max(close), "resnet": errors["ResNet-50"],
            "beside": span((1 / ratio for name, ratio in beside["ratios"].items() if name != "DDP"), 2),
            "ddp": 1 / beside["ratios"]["DDP"], "backends": backends["over_eager"],
            "own": most((100 * row["own_share"] for row in both), 2)}


def gpu_layers(d: Any) -> Fields:
    def cell(row: Any) -> list[str]:
        times, kept = row["modelled"], row["measured"]["kept"]
        return [row["model"].rpartition("/")[2], f"{row['batch']} x {row['tokens']}",
                f"{1e3 * (row['measured']['forward'] + row['measured']['backward']):.2f}", f"{times['both']:.2f}",
                f"{kept / 2**20:.0f}", f"{times['kept']:.2f}"]

    return {"table": table(
        ["a layer of", "tokens", "ms", "modelled over it", "kept, MiB", "modelled over it"], map(cell, d["rows"]))}


READINGS: dict[str, Callable[[Any], Fields]] = {
    "ablation_period": ablation,
    "never_worse_wide": known_schedules, "rivals": known_schedules, "equality_gpu": equality, "annotations": annotated,
    **{function.__name__: function for function in (
        never_worse, published_costs, readme, streams, annealer, cut_search, cut_ablation, tessel_search, scale,
        ablation, roofline, configs, collectives, grids, tessel_evaluation, placement, offload,
        overlap_modelled, share, plans_found, equality, any_model_ranks, model_types_ranks, overhead, beside_torch,
        overlap_sums, family, graph_network, backends, experts, switching, gpu_plan, gpu, gpu_layers)}}
