"""The search: known schedules, periods, cuts, bounds, and problems with choices."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean
from typing import Any

from experiments.readings.writing import Fields, listed, most, require, span, table

# -- known schedules ---------------------------------------------------------------------------------------------------


def never_worse(d: Any) -> Fields:
    whole, rows = d["summary"]["all"], d["rows"]
    require(not d["summary"]["worse"] and not d["summary"]["failed"], "no known schedule that fits is better")
    rivals = whole["all_baselines"]
    return {
        "problems": whole["problems"], "fitting": whole["fixed_schedules"]["with_a_rival"],
        "saved_of_fitting": 100 * whole["fixed_schedules"]["mean_gain"],
        "greedy": sum(row["best_baseline"] == "greedy" for row in rows),
        "blocks": sum(row["best_baseline"] == "v-block" for row in rows),
        "better": 100 * rivals["share_better"], "saved": 100 * rivals["mean_gain"],
        "better_unequal": 100 * d["summary"]["unequal_stages"]["all_baselines"]["share_better"],
        "tied_open": rivals["tied"] - rivals["tied_and_proven"],
        "proven": 100 * whole["proven_optimal"] / whole["problems"],
        "near": 100 * mean(row["weft"] <= 1.01 * row["bound"] for row in rows),
        "widest": most((100 * (row["weft"] / row["bound"] - 1) for row in rows), 0)}


def published_costs(d: Any) -> Fields:
    whole = d["summary"]["all"]
    require(whole["worse"] == 0, "no known schedule is better")
    require(d["summary"]["memory 0.5p"]["largest_gap"] == whole["largest_gap"], "the gap is widest at half the memory")
    return {"problems": whole["problems"], "devices": span((row["devices"] for row in d["rows"]), 0),
            "better": whole["better"], "proven": whole["proven_optimal"], "median_gap": 100 * whole["median_gap"],
            "largest_gap": most((100 * row["gap"] for row in d["rows"]), 1)}


def rivals(d: Any) -> Fields:
    whole = d["summary"]["all"]
    require(whole["worse"] == 0, "no published schedule is better")
    return {"problems": whole["problems"], "fitting": whole["with_a_rival"], "better": whole["better_than_fixed"],
            "saved": 100 * whole["mean_gain"], "proven": whole["proven"]}


def objectives(d: Any) -> Fields:
    whole = d["summary"]
    require(whole["published span below weft's"] == 0, "no published schedule has a shorter span")
    return {"problems": whole["problems"], "makespans": whole["makespan proven"], "spans": whole["span proven"],
            "rates": whole["rate proven"]}


def transfers(d: Any) -> Fields:
    saved: dict[int, dict[str, float]] = {}
    for copies in (1, 2):
        for case, rows in d["results"].items():
            mine = [row for row in rows if row["copies"] == copies and row["fits"] and case != "not counted"]
            if mine:
                own = next(row for row in mine if row["schedule"] == "weft")
                best = min(row["makespan"] for row in mine if not row["schedule"].startswith("weft"))
                saved.setdefault(copies, {})[case] = 100 * (1 - own["makespan"] / best)
                require(copies == 2 or own["makespan"] <= own["bound"] * (1 + 1e-9), "proven with the model once")
    tie = saved[2].pop("10 Gbit/s, links")
    require(tie == 0, "a tie at 10 Gbit/s over links")
    return {"once": span(saved[1].values(), 1), "twice": span(saved[2].values(), 1)}


# -- the search --------------------------------------------------------------------------------------------------------


def cut_search(d: Any) -> Fields:
    whole = d["summary"]
    require(whole["equal_to_brute_force"] == whole["against_brute_force"], "equal to brute force over cuts")
    return {"fit": whole["fit"], "gpus": span((row["gpus"] for row in d["rows"]), 0), "longer": whole["shorter"],
            "shorter": whole["longer"], "brute": whole["against_brute_force"], **whole["listed_takes_times"]}


def cut_ablation(d: Any) -> Fields:
    times = {part: found["takes_times"] for part, found in d["rows"][0].items()
             if isinstance(found, dict) and "takes_times" in found}
    return {"listed": times["cuts not listed"], "tries": times["tries"], "polishing": times["polishing"],
            "two_stages": times["third chunk"]}


def tessel_search(d: Any) -> Fields:
    require(all(row["proven"] and row["cpu_seconds"] < 0.1 and row["gap"] == 0 for row in d["rows"]),
            "all periods proven in 0.1 CPU seconds, and all makespans")
    return {"problems": len(d["rows"])}


def scale(d: Any) -> Fields:
    def of(devices: Iterable[int], key: str) -> int:
        return sum(d["summary"][str(count)][key] for count in devices)

    few, still_open = (8, 16, 32), [row for row in d["rows"] if not row["proven"]]
    require(of(few, "gap_under_1_percent") == of(few, "instances"), "all within 1 % up to 32 devices")
    return {"periods": of(few, "instances"), "proven": of(few, "proven"), "soon": of(few, "proven_within_10_s"),
            "on_64": of([64], "instances"), "proven_64": of([64], "proven"), "near_64": of([64], "gap_under_1_percent"),
            "proven_128": of([128], "proven"), "near_128": of([128], "gap_under_1_percent"), "open": len(still_open),
            "two_chunks": sum(row["shape"] in ("V2", "loop2") for row in still_open),
            **{f"worst_{count}": 100 * d["summary"][str(count)]["worst_gap"][0] for count in (64, 128)}}


def ablation(d: Any) -> Fields:
    found = d["summary"]
    same = [name for name, of in found.items() if not of["none found"] + of["longer"] + of["shorter"]
            and of["bound"] == of["lowest bound"] == 1]
    most_first = sorted((name for name in found if found[name]["answer"] > 1), key=lambda name: -found[name]["answer"])
    return {"problems": len(d["rows"]), "effort": d["effort"], "techniques": len(found), "same": len(same),
            "largest": listed(f"without *{name}* {found[name]['answer']:.3f} times as long (at most "
                              f"{found[name]['longest']:.2f} times)" for name in most_first[:3])}


def small_problems(d: Any) -> Fields:
    whole = d["summary"]["all"]
    require(whole["proven"] == whole["problems"] and not whole["refused"], "all small problems proven")
    return {"problems": whole["problems"], "most": most([whole["cpu_seconds"]["largest"]], 2)}


def streams(d: Any) -> Fields:
    whole = d["summary"]
    require(not whole["over_plain"], "no stream is longer than a plain streamer makes it")
    require(not whole["worse_with_more_memory"], "more memory makes no stream longer")
    return {"problems": whole["problems"], "seconds": d["seconds"], "proven": whole["proven"],
            "mean": whole["makespan"]["mean"], "largest": most([whole["makespan"]["largest"]], 2),
            "known": whole["known"]["mean"], "plain": whole["plain"]["mean"]}


def bounds(d: Any) -> Fields:
    whole = d["summary"]["all"]
    return {"problems": whole["problems"], **{way: 100 * whole[way]["mean"] for way in ("basic", "static", "windows")}}


def open_gaps(d: Any) -> Fields:
    whole = d["summary"]
    require(not whole["longer"] and not whole["lower_bound"], "nothing is worse than before")
    return {"problems": whole["problems"], "effort": d["effort"], "proven": whole["proven"],
            "before": 100 * whole["mean_gap_before"], "gap": 100 * whole["mean_gap"]}


def large_specs(d: Any) -> Fields:
    head = ("model", "micro-batches", "first schedule, s", "step, s", "bound over the cuts considered, s", "gap")
    return {"table": table(head, ((row["case"].partition(",")[0], row["micro_batches"],
                                      f"{row['seconds_to_first']:.1f}", f"{row['makespan']:.2f}",
                                      f"{row['bound']:.2f}", f"{100 * row['gap']:.1f} %") for row in d["rows"]))}


def time_limit(d: Any) -> Fields:
    require(all(row["status"] == 0 and not row["killed"] for row in d["rows"]), "all end by themselves")
    require({row["clock"] for row in d["rows"]} == {"cpu"}, "limits are counted in CPU seconds")
    return {"inputs": len(d["rows"]), "over": most((row["overrun"] for row in d["rows"]), 1),
            "limits": span((row["limit"] for row in d["rows"]), 0)}


def signals(d: Any) -> Fields:
    require(not any(row["lost"] or row["faults"] for row in d["rows"]), "no answer is lost")
    return {"commands": len({row["command"] for row in d["rows"]}), "moments": sum(row["moments"] for row in d["rows"]),
            "seconds": most((row["worst seconds to the end"] for row in d["rows"]), 1)}


# -- problems with choices, jobs and classes ---------------------------------------------------------------------------


def worked_examples(d: Any) -> Fields:
    require(all(row["proven"] for rows in (d["chunks"], d["jobs"]) for row in rows), "all proven")
    first = d["chunks"][0]
    return {"value": first["value"], "chunks": first["choices"]["chunks"],
            "jobs": listed(f"{row['value']:g}" for row in d["jobs"])}


def never_worse_wide(d: Any) -> Fields:
    whole = d["summary"]["all"]
    require(not d["summary"]["worse"] and not d["summary"]["failed"], "no known schedule is better")
    return {"problems": whole["problems"], "proven": whole["proven_optimal"], "gap": 100 * whole["mean_gap"]}


def wide_random(d: Any) -> Fields:
    require(not d["unequal"], "all equal to brute force")
    return {"problems": d["problems"]}


def lengths(d: Any) -> Fields:
    whole = d["summary"]
    return {"draws": whole["settings"], "lengths": d["micro_batches"],
            "gained": 100 * whole["mean share gained by order"],
            "below_dynapipe": 100 * whole["mean share below DynaPipe's order"]}


def activation_choices(d: Any) -> Fields:
    gained = {cap: d["summary"][f"{cap} GiB"]["shorter than all alike"] for cap in (9, 12, 15, 18, 24)}
    require(gained[9] == gained[24] == 0, "as long as all stages alike at 9 and 24 GiB")
    require(all(d["summary"][f"{cap} GiB"]["shorter than decided"] < 0 for cap in (9, 12, 15)),
            "`memory: decide` is faster at 9 to 15 GiB")
    return {f"at_{cap}": 100 * gained[cap] for cap in (12, 15, 18)}


def recompute_classes(d: Any) -> Fields:
    return {"most": 100 * d["summary"]["largest gain"]}
