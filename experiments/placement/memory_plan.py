"""Memory as a decision, against planners that follow a rule: the largest micro-batch that trains, and how fast.

    python -m experiments.placement.memory_plan [--only TEXT] [--planners NAME ...] [--output memory_plan.json]

Every planner gets the same chain of operators, the same devices and the same counting of memory, at micro-batches of
1, 2, 4, ... samples. *Trainable* is a micro-batch whose throughput is at least 0.9 of the planner's own best; without
such a limit offloading makes any batch trainable, however slow. Throughput is the micro-batch over the period of the
busiest resource: pipelines with many micro-batches, fill and drain left out. ``x ...`` compares what is trainable;
``best speed`` the best throughput of each planner, each at its own micro-batch; ``speed`` is the most that weft gains
on vPipe's rule at one micro-batch, which need not be a good one for either. Each joint search has 20 seconds a
micro-batch (``seconds_a_search``): ``unfinished`` names those whose answer is then further than 0.2 % from its bound,
or where no plan was found though none is proven not to exist (null in rows recorded before this was told apart);
``gap`` is the widest. Weft starts from the plan of vPipe's rule, so at one micro-batch it is never slower (rows
recorded before that have no plan where the search found none); its trainable micro-batch can still be the smaller one,
as 0.9 of a higher best is more. vPipe's rule proves nothing: its bound is 0.

Costs: GPT-1.3B and T5-770M are V100 measurements (beyond micro-batches of 8 on the line through 4 and 8); GPT-2.6B-like
is GPT-1.3B's profile with a hidden size of 2560 by arithmetic; the others are modelled (roofline, V100). BERT's costs
are those of a GPT of its sizes. Copies to the host at 12 GB/s, links at 40 GB/s (where the shipped NVLink curve levels
off), 8 bytes of weights, gradients and Adam state for each byte of fp16 weight.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.amoebanet import amoebanet_like
from experiments.lib.memory_rivals import balance_windows, balanced, between_layers, keeping
from experiments.lib.provenance import RESULTS, Record
from experiments.placement.profile_chains import profile_chain, profile_rows, wider_gpt
from weft.models.candidates.memory_chains import graph_chain
from weft.models.graph.operators import OperatorGraph
from weft.models.hardware.devices import DEVICES
from weft.models.spec.families import GptModel, T5Model
from weft.models.times.roofline import Roofline
from weft.models.zoo.graphs import model_graph
from weft.solver.placement.memory.layer_rule import whole_layers
from weft.solver.placement.memory.plan import ChainOperator, MemoryPlan, MemoryProblem, Rules
from weft.solver.placement.memory.plan_memory import NoMemoryPlan, plan_memory

SLOWEST = 0.9
_LIMIT = 20.0
_GAP = 1e-3
_OPEN = 2e-3


@dataclass(frozen=True)
class Case:
    """A model at any micro-batch size, GiB of each device, and the largest size to try."""

    chain: Callable[[int], list[ChainOperator]]
    memory: int
    largest: int


def _modelled(graph: OperatorGraph) -> list[ChainOperator]:
    return graph_chain(graph, Roofline(DEVICES["v100"]).times(graph))


def _gpt(size: int, *, layers: int, hidden: int, heads: int, vocabulary: int, sequence: int) -> list[ChainOperator]:
    return _modelled(model_graph(GptModel(family="gpt", layers=layers, hidden=hidden, heads=heads,
                                          vocabulary=vocabulary, sequence=sequence), size))


def _t5(size: int) -> list[ChainOperator]:
    return _modelled(model_graph(T5Model(
        family="t5", encoder_layers=24, decoder_layers=24, hidden=1024, heads=16, feed_forward=4096, vocabulary=32128,
        sequence=512), size))


def _wide(size: int) -> list[ChainOperator]:
    rows = wider_gpt(profile_rows("gpt-1.3b-v100", size), 1.25)
    return profile_chain("gpt-1.3b-v100", size, rows=rows, layers=(32, 0))


CASES = {
    "GPT-1.3B (profile)": Case(lambda b: profile_chain("gpt-1.3b-v100", b), 32, 64),
    "GPT-2.6B-like (profile, scaled)": Case(_wide, 32, 64),
    "T5-770M (profile)": Case(lambda b: profile_chain("t5-770m-v100", b), 32, 64),
    "BERT-large (roofline)": Case(lambda b: _gpt(b, layers=24, hidden=1024, heads=16, vocabulary=30522, sequence=512),
                                  16, 512),
    "GPT-2 XL (roofline)": Case(lambda b: _gpt(b, layers=48, hidden=1600, heads=25, vocabulary=50257, sequence=1024),
                                16, 64),
    "T5-large (roofline)": Case(_t5, 16, 256),
    "AmoebaNet-like (roofline)": Case(lambda b: _modelled(amoebanet_like(b)), 16, 1024),
}

#: Name -> how memory is counted, and the plan of a problem within so many seconds.
PLANNERS: dict[str, tuple[Rules, Callable[[MemoryProblem, float], MemoryPlan]]] = {
    "balanced": ("published", lambda problem, _: balanced(problem)),
    "PipeDream-like": ("published", lambda problem, _: keeping(problem, versions=True)),
    "vPipe-like": ("published", lambda problem, _: whole_layers(problem)),
    "joint, layer cuts": ("published", lambda problem, limit: _best(between_layers(problem), limit)),
    "joint, windows": ("published", lambda problem, limit: plan_memory(
        replace(problem, windows=balance_windows(problem)), gap=_GAP, time_limit=limit)),
    "weft": ("published", lambda problem, limit: _best(problem, limit)),
    "vPipe-like, strict": ("strict", lambda problem, _: whole_layers(problem)),
    "weft, strict": ("strict", lambda problem, limit: _best(problem, limit)),
}
_SEARCHED = ("joint, layer cuts", "joint, windows", "weft", "weft, strict")


def _best(problem: MemoryProblem, limit: float) -> MemoryPlan:
    """The planner's, from the plan that vPipe's rule makes where it makes one."""
    start: MemoryPlan | None = None
    with suppress(NoMemoryPlan):
        start = whole_layers(problem)
    return plan_memory(problem, gap=_GAP, time_limit=limit, start=start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--planners", nargs="+", choices=list(PLANNERS), default=list(PLANNERS),
                        help="the planners to run; a row keeps what it has of the others")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--largest", type=int, default=2**20, help="samples of a micro-batch, at most")
    parser.add_argument("--time-limit", type=float, default=_LIMIT, help="seconds of each search")
    parser.add_argument("--output", default=RESULTS / "memory_plan.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows: dict[str, Any] = record.kept().get("rows", {})
    for name, case in CASES.items():
        for devices in options.devices if options.only in name else ():
            tried = replace(case, largest=min(case.largest, options.largest))
            title = f"{name}, {devices} x {case.memory} GB"
            known = rows.get(title, {})
            row = {planner: _series(tried, devices, planner, options.time_limit)
                   if planner in options.planners or planner not in known else known[planner] for planner in PLANNERS}
            rows[title] = {**row, "compared": compared(row), "seconds_a_search": options.time_limit}
            record.write({"rows": rows}, part=True)
            print(name, devices, {planner: found["trainable"] for planner, found in row.items()}, flush=True)
    record.write({"rows": rows}, part=bool(options.only) or any(
        getattr(options, name) != parser.get_default(name) for name in ("devices", "planners")))
    Console(width=190).print(_table(rows))
    return 0


def _series(case: Case, devices: int, planner: str, limit: float) -> dict[str, Any]:
    """The planner at every micro-batch size: samples a second, time and bound, CPU seconds; and what stayed open."""
    sizes: dict[int, dict[str, float]] = {}
    without: list[int] = []
    size = 1
    while size <= case.largest:
        rules, plan = PLANNERS[planner]
        problem = MemoryProblem(_chain(case, size), devices, case.memory * 2**30, 12e9, link_bandwidth=40e9,
                                rules=rules)
        began, started = time.process_time(), time.monotonic()
        try:
            found = plan(problem, limit)
        except NoMemoryPlan:
            if planner in _SEARCHED and time.monotonic() - started >= limit:
                without.append(size)
            if size > 8 * max(sizes, default=1):
                break
        else:
            sizes[size] = {"samples_per_second": round(size / found.time * 1e9, 4), "ms": found.time / 1e6,
                           "bound_ms": found.bound / 1e6, "cpu_seconds": round(time.process_time() - began, 2)}
        size *= 2
    best = max((entry["samples_per_second"] for entry in sizes.values()), default=0.0)
    fast = [size for size, entry in sizes.items() if entry["samples_per_second"] >= SLOWEST * best]
    gaps = {size: entry["ms"] / entry["bound_ms"] - 1 for size, entry in sizes.items() if entry["bound_ms"]}
    unfinished = sorted([*without, *(size for size, gap in gaps.items() if gap > _OPEN)])
    return {"best": best, "trainable": max(fast, default=0), "gap": round(max(gaps.values(), default=0.0), 5),
            "unfinished": unfinished, "sizes": sizes}


def compared(row: dict[str, Any]) -> dict[str, float | None]:
    """weft's largest trainable micro-batch as a multiple of the rules', its best throughput as a multiple of that of
    vPipe's rule, and the most that it gains on that at one micro-batch; ``None`` where the rule trains nothing. Where a
    search is unfinished the multiple is what was found in time."""
    ours, vpipe, pipedream = row["weft"], row["vPipe-like"], row["PipeDream-like"]
    equal = [entry["samples_per_second"] / _speed(vpipe, int(size)) for size, entry in ours["sizes"].items()
             if _speed(vpipe, int(size))]
    return {"x PipeDream": _ratio(ours["trainable"], pipedream["trainable"]),
            "x vPipe": _ratio(ours["trainable"], vpipe["trainable"]),
            "x vPipe, strict": _ratio(row["weft, strict"]["trainable"], row["vPipe-like, strict"]["trainable"]),
            "best speed": _ratio(ours["best"], vpipe["best"]), "speed": round(max(equal), 3) if equal else None}


@cache
def _chain(case: Case, size: int) -> tuple[ChainOperator, ...]:
    return tuple(case.chain(size))


def _table(rows: dict[str, Any]) -> Table:
    table = Table(title="Largest micro-batch within 0.9 of a planner's best @ samples a second with it")
    table.add_column("model")
    for planner in PLANNERS:
        table.add_column(planner, justify="right")
    for what in ("x PipeDream", "x vPipe", "x vPipe, strict", "best speed", "speed", "gap", "unfinished"):
        table.add_column(what, justify="right")
    for name, row in rows.items():
        cells = []
        for planner in PLANNERS:
            found = row[planner]
            size = found["trainable"]
            cells.append(f"{size} @ {_speed(found, size):.4g}" if size else "-")
        ratios = ["-" if ratio is None else f"{ratio:.4g}" for ratio in row["compared"].values()]
        unfinished = [row[planner]["unfinished"] for planner in _SEARCHED]
        table.add_row(name, *cells, *ratios, f"{max(row[planner]['gap'] for planner in _SEARCHED):.2%}",
                      "?" if None in unfinished else str(sum(map(len, unfinished))))
    return table


def _speed(found: dict[str, Any], size: int) -> float:
    sizes = {int(key): value for key, value in found["sizes"].items()}
    return float(sizes[size]["samples_per_second"]) if size in sizes else 0.0


def _ratio(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 3) if theirs else None


if __name__ == "__main__":
    main()
