"""Runs on ranks and on a GPU."""

from __future__ import annotations

from typing import Any

from experiments.readings.writing import Fields, listed, most, require, small, span


def _exactness(d: Any) -> Fields:
    return {dtype: small(max(row["gradient_error"] for row in d["rows"] if row["dtype"] == dtype))
            for dtype in ("fp64", "fp32", "bf16")} | {"shapes": len({row["shape"] for row in d["rows"]})}


def equality(d: Any) -> Fields:
    require(d["equal"] and {row["ranks"] for row in d["rows"]} == {2, 4}, "2 and 4 ranks are equal to one process")
    require(max(row["replicas"] for row in d["rows"]) == 2, "two replicas are tried")
    return _exactness(d)


def equality_gpu(d: Any) -> Fields:
    require(d["equal"], "ranks on a GPU are equal to one process")
    return _exactness(d)


def gpu_plan(d: Any) -> Fields:
    def ratios(optimizer: str) -> list[float]:
        return [100 * (row[plan]["time_ratio"] - 1) for name, row in d.items() if name.endswith(f" {optimizer}")
                for plan in ("1F1B", "weft")]

    peaks = [ratio for row in d.values() if "1F1B" in row for plan in ("1F1B", "weft")
             for ratio in row[plan]["peak_ratios"]]
    return {"adam": most(map(abs, ratios("adam")), 1), "adama": span(ratios("adama"), 1),
            "peaks": most((100 * abs(ratio - 1) for ratio in peaks), 1)}


def any_model(d: Any) -> Fields:
    exact, close = ([row for row in d["rows"] if row["dtype"] == dtype] for dtype in ("float64", "float32"))
    return {"models": len({row["model"] for row in exact}), "fp64": small(max(row["error"] for row in exact)),
            "fp32": small(max(row["error"] for row in close))}


def any_model_ranks(d: Any) -> Fields:
    rows = [row for row in d["rows"] if row["dtype"] == "fp64"]
    trained = [row for row in rows if "failed" not in row]
    return {"models": len({row["model"] for row in trained}), "runs": len(trained), "tried": len(rows),
            "error": small(max(row["error"] for row in trained))}


def mutants(d: Any) -> Fields:
    rooms = d["rooms"]
    require(all(room["killed_at_first"] <= room["killed"] <= room["mutants"] for room in rooms.values()),
            "no room's tests notice less than before")
    return {"mutants": sum(room["mutants"] for room in rooms.values()),
            "at_first": sum(room["killed_at_first"] for room in rooms.values()),
            "killed": sum(room["killed"] for room in rooms.values()), "rooms": listed(rooms)}


def replay_gpt(d: Any) -> Fields:
    require(d["equal"], "planned pipelines train as one process")
    errors = [row["gradient_error"] for row in d["runs"] if row["dtype"] == "fp64"]
    return {"runs": len(d["runs"]), "error": small(max(errors)),
            "schedules": listed(dict.fromkeys(row["schedule"] for row in d["runs"]))}


def captured_costs(d: Any) -> Fields:
    return {"models": len(d["rows"]), "times": d["within_10_percent"], "peaks": d["peaks_within_5_percent"]}


def transports(d: Any) -> Fields:
    def against(method: str, over: str = "over_rpc") -> str:
        found = [row[over] for row in d["results"] if row["method"] == method]
        return f"{min(found):.2g} to {max(found):.2g}"

    return {"gloo": against("gloo"), "shared": against("shared"), "sockets": against("gloo:sockets", "over_rpc_tcp")}


def overhead(d: Any) -> Fields:
    ratio = {row["method"]: row["cpu_ratio_to_weft"] for row in d["methods"]}
    return {"own": ratio["PyTorch, Schedule1F1B"], "any": ratio["PyTorch, schedule from CSV"]}


def heavy_head(d: Any) -> Fields:
    plans = {case["micro_batches"]: {row["plan"]: row for row in case["runs"][1]} for case in d["cases"]}
    return {f"{name}_{count}": value for count, rows in plans.items() for name, value in (
        ("measured", rows["weft"]["measured_ratio"]), ("planned", rows["weft"]["predicted_ratio"]["fitted"]),
        ("cut", rows["1F1B, best cut in two"]["measured_ratio"]))}


def replay_emulated(d: Any) -> Fields:
    return {"schedules": len(d["rows"]), "off": most((100 * abs(row["ratio"] - 1) for row in d["rows"]), 1)}


def faults(d: Any) -> Fields:
    return {"killed": most((row["seconds"] for row in d["faults"] if row["fault"] == "killed"), 1)}


def readme(d: Any) -> Fields:
    step = {row["name"]: row["makespan"] for row in d["rows"]}
    return {"blocks": most([100 * (step["v-block"] / step["weft"] - 1)], 0)}
