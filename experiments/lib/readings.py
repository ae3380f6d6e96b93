"""What the files of the experiments hold, and how the README writes numbers: helpers of its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# -- how numbers are written -------------------------------------------------------------------------------------------


def percent(share: float, digits: int = 0) -> str:
    return f"{100 * share:.{digits}f}"


def most(values: Iterable[float], digits: int) -> str:
    """The largest, rounded up: nothing is above it."""
    return f"{math.ceil(max(values) * 10**digits) / 10**digits:.{digits}f}"


def span(values: Iterable[float], digits: int) -> tuple[str, str]:
    found = sorted(values)
    return f"{found[0]:.{digits}f}", f"{found[-1]:.{digits}f}"


def small(value: float) -> str:
    """Two digits, rounded up, with the exponent as it is written by hand: 2.3e-16."""
    exponent = math.floor(math.log10(value))
    return f"{math.ceil(value / 10.0**exponent * 10) / 10:.1f}e{exponent}"


# -- what the files hold -----------------------------------------------------------------------------------------------


def suite(rows: str, of: str, key: str) -> Callable[[Any], Any]:
    return lambda suite: suite["summary"][rows][of][key]


def best_rival(suite: Any, name: str) -> int:
    return sum(row["best_baseline"] == name for row in suite["rows"])


def demo(comparison: Any) -> dict[str, float]:
    return {row["name"]: row["makespan"] for row in comparison["rows"]}


def training(evaluation: Any, title: str) -> list[float]:
    return [row["speedup"][title] for row in evaluation["training"].values() if title in row.get("speedup", {})]


def gaps(evaluation: Any) -> list[float]:
    """Of weft's steps to the bound over the placements, the widest first."""
    return sorted((row["weft"]["seconds"] / row["weft"]["bound_over_placements"] - 1
                   for row in evaluation["training"].values() if "weft" in row), reverse=True)


def gpus(evaluation: Any, model: str) -> str:
    """The numbers of GPUs on which ``model`` is trained, as a list for people."""
    *most, last = (str(row["gpus"]) for name, row in evaluation["training"].items() if name.startswith(model))
    return f"{', '.join(most)} and {last}" if most else last


def flava(evaluation: Any, text: int, batches: Callable[[int], bool]) -> list[float]:
    """Latency saved against the better of the two."""
    return [min(row["less_latency"].values()) for row in evaluation["inference"].values()
            if row["text"] == text and batches(row["batch"])]


def layers(roofline: Any, model: str) -> list[float]:
    return [found["layer forward and backward"]["median_absolute"] for name, found in
            roofline["GPUs that compute together"][model].items() if name.endswith("modelled")]


def placed(rows: Mapping[str, Any], some: Callable[[str, Any], bool]) -> list[Any]:
    return [row for name, row in rows.items() if some(name, row)]


def graphs(pipelines: Any, model: str, replicated: bool, key: str = "ratio") -> list[float]:
    return [row[key] for row in pipelines["rows"] if (row["model"], row["replicated"]) == (model, replicated)]


def searches(pipelines: Any) -> list[Any]:
    return [row["search"] for row in pipelines["rows"] if "search" in row and row["search"]["piper"]["done"]]


def buys(offload: Any, way: str, other: str) -> float:
    return float(offload["best"][way]["samples_per_second"] / offload["best"][other]["samples_per_second"]) - 1


def offloading(offload: Any) -> dict[str, float]:
    """What offloading adds, by size of micro-batch."""
    return {size: row["decided, with offload"]["samples_per_second"] / row["decided"]["samples_per_second"] - 1
            for size, row in offload["sizes"].items()}


def compared(plans: Any, key: str, models: tuple[str, ...] = ("",)) -> list[float]:
    return [row["compared"][key] for name, row in plans["rows"].items() if name.startswith(models)]


def unfinished(plans: Any, models: tuple[str, ...]) -> tuple[str, ...] | bool:
    """The seconds of each search on ``models`` if each, as an executor can hold memory, left some size open."""
    rows = [row for name, row in plans["rows"].items() if name.startswith(models)]
    limits = {f"{row['seconds_a_search']:g}" for row in rows}
    return tuple(limits) if all(row["weft, strict"]["unfinished"] for row in rows) and len(limits) == 1 else False


def captured(models: Any) -> tuple[str, ...]:
    """How many models were captured, and the furthest gradient: in fp64, and in fp32."""
    exact, close = ([row for row in models["rows"] if row["dtype"] == dtype] for dtype in ("float64", "float32"))
    return (str(len({row["model"] for row in exact})), str(len({row["model"] for row in close})),
            small(max(row["error"] for row in exact)), small(max(row["error"] for row in close)))


def trained_on_ranks(runs: Any) -> tuple[str, ...]:
    """How many models were trained on ranks in fp64, in how many runs of how many that were tried, by how many lines,
    and the furthest gradient."""
    rows = [row for row in runs["rows"] if row["dtype"] == "fp64"]
    trained = [row for row in rows if "failed" not in row]
    return (str(len({row["model"] for row in trained})), str(len(trained)), str(len(rows)), str(runs["lines_by_hand"]),
            small(max(row["error"] for row in trained)))


def sizes_run(memory: Any) -> tuple[str, ...]:
    """The largest micro-batch that plans by operator run on three models, where it is one; what whole layers run on
    each; and what both run on the fourth, where they tie. Raises ``ValueError`` where it is not so."""
    runs = {name: {planner: found["runs"] for planner, found in model["planners"].items()}
            for name, model in memory["models"].items()}
    *three, last = runs.values()
    most, = {model["operators"] for model in three}
    both, = set((last["operators"], last["whole layers"]))
    return (str(most), *(str(model["whole layers"]) for model in three), str(both))


def overlapped(modelled: Any) -> tuple[str, ...]:
    """What overlap brings, in percent: where every GPU has the whole model, from least to most; where all share every
    layer; in groups, and how far their bounds are. Raises ``ValueError`` where one of the others is not proven."""
    rows: dict[str, list[Any]] = {shape: [row for row in modelled["rows"] if row["shape"] == shape]
                                  for shape in ("data", "tensor", "groups")}
    if any(row["bound"] < row["with"] * (1 - 1e-6) for shape in ("data", "tensor") for row in rows[shape]):
        raise ValueError("a placement is not proven")
    saved = {shape: [1 - row["with"] / row["without"] for row in found] for shape, found in rows.items()}
    return (*span([100 * share for share in saved["data"]], 1), *(percent(share, 1) for share in saved["tensor"]),
            *(percent(share, 1) for share in saved["groups"]),
            *(percent(1 - row["bound"] / row["with"], 1) for row in rows["groups"]))


def in_chunks(row: Any) -> tuple[str, ...]:
    """Milliseconds of its computation, of a step at the number of chunks that was chosen and in one, and that number;
    nothing where another number was faster."""
    times, chosen = row["milliseconds"], str(row["chosen"])
    if min(times, key=times.get) != chosen or row["setting"]["compute"] != row["setting"]["collective"]:
        return ("", "", "", "")
    return f"{row['setting']['compute']:.0f}", f"{times[chosen]:.0f}", f"{times['1']:.0f}", chosen


def searched_plans(plans: Any) -> tuple[str, ...]:
    """An interlaced pipeline over a plain one, both searched; the Evoformer's step, over how many placements it is
    proven, and 3F1B's own. Raises ``ValueError`` where it is not proven."""
    step = {row["plan"]: row["seconds"] for row in plans["at_size"]}
    found = plans["evoformer"]
    if found["bound_over_placements"] < found["seconds"] * (1 - 1e-6):
        raise ValueError("the Evoformer's step is not proven")
    return (f"{step['interlaced'] / step['plain']:.2f}", f"{1e3 * found['seconds']:.1f}", str(found["placements"]),
            f"{1e3 * found['rivals']['3f1b']['seconds']:.1f}")


def against_rpc(transports: Any, method: str, over: str = "over_rpc") -> tuple[str, ...]:
    """The least and the most of RPC's time that a method takes, over all sizes."""
    ratios = [row[over] for row in transports["results"] if row["method"] == method]
    return f"{min(ratios):.2g}", f"{max(ratios):.2g}"


def runtime(overhead: Any, method: str) -> str:
    return f"{next(row['cpu_ratio_to_weft'] for row in overhead['methods'] if row['method'] == method):.1f}"


def trained(heavy: Any, micro_batches: int, plan: str) -> dict[str, Any]:
    """The second run: planned with what the first has shown."""
    case = next(case for case in heavy["cases"] if case["micro_batches"] == micro_batches)
    found: dict[str, Any] = next(row for row in case["runs"][1] if row["plan"] == plan)
    return found


def scaled(scale: Any, devices: Iterable[int], key: str) -> int:
    return sum(scale["summary"][str(count)][key] for count in devices)


def unproven(scale: Any) -> list[Any]:
    return [row for row in scale["rows"] if not row["proven"]]


#: What files of before there were registries call the techniques.
_OLD_NAMES = {"least-distances": "no closure", "barriers": "no contraction"}


def _without(row: Any, name: str) -> Any:
    """The search of ``row`` without a technique, or ``whole``."""
    return row[name if name in row else _OLD_NAMES[name]]


def ablated(ablation: Any, name: str, some: Callable[[Any], bool]) -> list[float]:
    """How many times the whole search's CPU time it takes without ``name``, in ``some`` rows."""
    return [_without(row, name)["cpu_seconds"] / row["whole"]["cpu_seconds"] for row in ablation["rows"] if some(row)]


def left_open(ablation: Any, name: str) -> int:
    """On how many instances it leaves a gap without ``name``."""
    return sum(not _without(row, name)["proven"] for row in ablation["rows"])


def over_links(transfers: Any, copies: int) -> dict[str, float]:
    """What weft saves against the best known schedule that fits, by case in which transfers count."""
    found = {}
    for case, rows in transfers["results"].items():
        mine = [row for row in rows if row["copies"] == copies and row["fits"]]
        own = next(row["makespan"] for row in mine if row["schedule"] == "weft")
        found[case] = 1 - own / min(row["makespan"] for row in mine if not row["schedule"].startswith("weft"))
    return {case: saved for case, saved in found.items() if case != "not counted"}


def proven_over_links(transfers: Any) -> bool:
    return all(row["bound"] is not None and row["makespan"] <= row["bound"] * (1 + 1e-9)
               for rows in transfers["results"].values() for row in rows
               if row["schedule"] == "weft" and row["copies"] == 1)


def runs(content: dict[str, Any]) -> list[dict[str, Any]]:
    """1F1B's and weft's plan of every preset and optimizer that ran on a GPU."""
    return [row[schedule] for name, row in content.items() if name != "provenance" for schedule in ("1F1B", "weft")]


def on_gpu(content: dict[str, Any], optimizer: str) -> list[float]:
    """Measured over planned step with ``optimizer``."""
    return [row[schedule]["time_ratio"] for name, row in content.items() if name.endswith(f" {optimizer}")
            for schedule in ("1F1B", "weft")]
