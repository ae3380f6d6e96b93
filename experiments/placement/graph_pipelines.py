"""Graphs of stages against stages in a row, on the models of the GraphPipe evaluation (Jeon et al., ASPLOS 2025).

    python -m experiments.placement.graph_pipelines [--devices 4,8,16,32] [--models mmt,dlrm,uno] [--replicate no,yes]

prints tables and keeps their rows in ``results/graph_pipelines.json``. For each model and number of devices,
and for each formulation, the outer loop goes over micro-batch sizes (powers of two that divide the mini-batch), solves
the placement to its proven optimum, runs 1F1B on its stages, has the judge check that schedule with its memory, and
keeps the size whose step is shortest. Since a step is about (micro-batches + depth - 1) loads, it also takes shallower
stages at each size: at loads up to so much above the least (:data:`SLACKS`), of PipeDream the best of every number of
stages, and of the graph also those that allow the shortest step, idle time included. A size is left out where its work
alone, spread over all devices, takes longer than the best. All of it twice: stages on one device each, and *replicated*
on 1, 2, 4 ... devices.

* ``graph``: stages form a graph, memory by depth (:mod:`weft.solver.placement.dag.levels.level_search`); a stage waits
  for those whose results it reads.
* ``piper``: stages in a row over all orders of the graph, memory by position (Piper's formulation, without its tensor
  parallelism); the same program with one stage a level.
* ``pipedream``: stages in a row cut from the order in which the model lists its operators (PipeDream's), by dynamic
  programming.

In the latter two every stage waits for the one before it in the row, as their runtimes do. What replication costs is in
:mod:`weft.solver.placement.problem`, the same for all three: devices of a stage share each micro-batch and add up fp32
gradients once a step, in a ring over NVLink within a machine and over the network beyond (as in GraphPipe, numbers of
devices and sizes are powers of two). Costs are modelled (roofline) for V100s with 16 GB, 4 in a machine; transfers
between any two at NVLink's rate (the same for all three). Times of searches are CPU seconds of this process, all sizes
and slacks together. On 8 devices Piper's own program (:mod:`experiments.lib.piper_program`, over all downsets) runs
beside ours at the one size that the graph takes, each for the least largest load alone.

``ratio`` is the best sequential step over the graph's. ``ratio_at_most``: over the least that any graph of stages could
take at the best of all sizes, in any schedule (:mod:`weft.solver.placement.dag.levels.least_step`; ``floor_ms``). Where
it is below
1.6, that ratio cannot be reached with these costs.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import weft
from experiments.lib.piper_program import pairs_of_branches, piper
from experiments.lib.provenance import RESULTS, Record
from experiments.placement.graph_pipeline_cases import DEVICE, MODELS, Case, Found
from weft.solver.cpsat.budget import Budget
from weft.solver.placement import judge
from weft.solver.placement.bounds.registry import simple_bound
from weft.solver.placement.dag.levels.ideals import Ideals, TooWide
from weft.solver.placement.dag.levels.least_step import least_step
from weft.solver.placement.dag.levels.level_search import LevelGoal, first_chain, levels
from weft.solver.placement.dag.stage_blocks import StageWork, one_f_one_b, stage_problem, step_of, work_of
from weft.solver.placement.dag.stage_dag import stages_by_depth
from weft.solver.placement.division import Division
from weft.solver.placement.groups import Groups
from weft.solver.placement.orders.slice_replicated import slices_by_stages
from weft.solver.placement.placement import Stage

#: For one placement; no run of the table comes near it.
SECONDS = 300.0
#: Shallower stages may have loads so much above the least.
SLACKS = (0.1, 0.4)


def by_levels(groups: Groups, ideals: Ideals | None, most: float = math.inf, *, in_a_row: bool,
              slacks: Sequence[float] = SLACKS) -> Found:
    found = levels(groups, Budget(seconds=SECONDS), LevelGoal(least=simple_bound(groups), in_a_row=in_a_row, most=most,
                                                                 shallower=tuple(slacks)), ideals=ideals)
    return Found((found.stages, *found.shallower) if found.stages else (), found.bound, found.ideals, found.cuts)


def pipedream_solver(groups: Groups, ideals: Ideals | None, most: float) -> Found:
    found = slices_by_stages(groups, list(dict.fromkeys(groups.spread(range(groups.count)))))
    found.sort(key=lambda row: row.value)
    return Found(tuple(found), found[0].value if found else math.inf)


SOLVERS: dict[str, Callable[[Groups, Ideals | None, float], Found]] = {
    "graph": partial(by_levels, in_a_row=False), "piper": partial(by_levels, in_a_row=True),
    "pipedream": pipedream_solver}


def run(groups: Groups, division: Division, *, in_a_row: bool) -> dict[str, Any]:
    """The step of 1F1B on these stages and what they hold."""
    stages, works, after = staged(groups, division, in_a_row=in_a_row)
    problem = groups.problem
    schedule = one_f_one_b(stage_problem(problem.name, works, after), works, after, problem.micro_batches or 1)
    return {"step_ms": step_of(schedule, works) * 1e3, "load_ms": max(s.load for s in stages) * 1e3,
            "stages": len(stages), "devices": [stage.devices for stage in stages],
            "in_flight": max(stage.in_flight for stage in stages),
            "memory_gib": max(stage.memory for stage in stages) / 2**30,
            "activations_gib": max(stage.activations for stage in stages) / 2**30}


def staged(groups: Groups, division: Division, *, in_a_row: bool
           ) -> tuple[tuple[Stage, ...], list[StageWork], tuple[tuple[int, ...], ...]]:
    """The stages, checked; what each does; and which follow each."""
    problem = groups.problem
    parts = [(kind, [node for group in inside for node in groups.members[group]]) for kind, inside in division.stages]
    stages: tuple[Stage, ...]
    if in_a_row:
        stages = judge.stages_of(problem, parts, division.devices)
        after: tuple[tuple[int, ...], ...] = tuple((s + 1,) if s + 1 < len(stages) else () for s in range(len(stages)))
    else:
        stages, after, _ = stages_by_depth(problem, parts, division.devices)
    faults = judge.breaches(problem, stages)
    if faults:
        raise judge.InvalidPlacement("; ".join(faults))
    return stages, work_of(problem, stages), after


def searched(groups: Groups, division: Division, seconds: float, *, in_a_row: bool) -> dict[str, float]:
    """What weft's search finds for these stages, none replicated, in any order of their blocks."""
    _, works, after = staged(groups, division, in_a_row=in_a_row)
    if any(work.all_reduce for work in works):
        return {}
    found = weft.solve(stage_problem(groups.problem.name, works, after), time_limit=seconds,
                       micro_batches=groups.problem.micro_batches)
    return {"searched_step_ms": found.makespan * 1e3, "searched_bound_ms": found.makespan_bound * 1e3}


def solved_at(case: Case, name: str, size: int, most: float) -> tuple[Found, float]:
    """What the solver finds at one size with loads up to ``most``, and its CPU seconds."""
    known = case.found.get((name, size))
    if known is None or (not known[0].stages and most == math.inf):
        groups, began = case.groups(size), time.process_time()
        try:
            found = SOLVERS[name](groups, case.ideals(name), most)
        except TooWide:
            start = first_chain(groups, Budget())
            found = Found((start,) if start else (), simple_bound(groups), proven=False)
        case.found[name, size] = found, time.process_time() - began
    return case.found[name, size]


def best_of(case: Case, name: str, sizes: Sequence[int] = (), best: dict[str, Any] | None = None
            ) -> dict[str, Any] | None:
    """The outer loop over micro-batch sizes, the most promising first; and the least that any stages could take.
    ``best``: what is to be beaten (Piper's rows are PipeDream's and more)."""
    floors = {size: simple_bound(case.groups(size)) * (case.batch // size) for size in (sizes or case.sizes())}
    spent, solved, unsolved = 0.0, 0, []
    for size in sorted(floors, key=floors.__getitem__):
        if best is not None and floors[size] * 1e3 >= best["step_ms"]:
            continue
        groups = case.groups(size)
        found, took = solved_at(case, name, size,
                                math.inf if best is None else best["step_ms"] * 1e-3 / (case.batch // size))
        if not found.proven:
            unsolved.append(size)
        spent, solved = spent + took, solved + 1
        floors[size] = max(floors[size], found.bound * (case.batch // size))
        for stages in dict.fromkeys(found.stages):
            if best is not None and stages.value * (case.batch // size) * 1e3 >= best["step_ms"]:
                continue
            row = run(groups, stages, in_a_row=name != "graph")
            if best is None or row["step_ms"] < best["step_ms"]:
                case.chosen[name] = size, stages
                best = {"micro_batch": size, **row, "load_bound_ms": found.bound * 1e3,
                        "one_size_cpu_s": round(took, 3), "ideals": found.ideals, "cuts": found.cuts}
    began = time.process_time()
    for size, floor in sorted(floors.items(), key=lambda entry: entry[1]) if name == "graph" else ():
        if best is not None and floor * 1e3 < best["step_ms"]:
            groups = case.groups(size)
            with contextlib.suppress(TooWide):
                least = least_step(groups, Budget(seconds=SECONDS), least=floor / (case.batch // size),
                                   most=best["step_ms"] * 1e-3, ideals=case.ideals("graph"))
                floors[size] = max(floor, least.bound)
                for stages in dict.fromkeys(least.stages):
                    row = run(groups, stages, in_a_row=False)
                    if row["step_ms"] < best["step_ms"]:
                        case.chosen[name] = size, stages
                        best = {**best, "micro_batch": size, **row}
    spent += time.process_time() - began
    return None if best is None else {
        **best, "search_cpu_s": round(spent, 3), "sizes_solved": solved, "sizes_unsolved": unsolved,
        "floor_ms": min(min(floors.values()) * 1e3, best["step_ms"])}


def compare(case: Case, search: float) -> dict[str, Any]:
    """One row of the table."""
    row: dict[str, Any] = {"model": case.model, "devices": case.devices, "replicated": case.replicate,
                           "mini_batch": case.batch, **dict.fromkeys(SOLVERS)}
    row["graph"], row["pipedream"] = best_of(case, "graph"), best_of(case, "pipedream")
    row["piper"] = best_of(case, "piper", best=row["pipedream"])
    for name, (size, stages) in case.chosen.items() if search else ():
        row[name].update(searched(case.groups(size), stages, search, in_a_row=name != "graph"))
    rivals = [row[name] for name in ("piper", "pipedream") if row[name]]
    if row["graph"] and rivals:
        best = min(rivals, key=lambda entry: entry["step_ms"])
        same = best_of(case, "graph", [best["micro_batch"]])
        row.update(ratio=best["step_ms"] / row["graph"]["step_ms"],
                   ratio_same_micro_batch=best["step_ms"] / same["step_ms"] if same else None,
                   ratio_at_most=best["step_ms"] / row["graph"]["floor_ms"],
                   memory_ratio=best["memory_gib"] / row["graph"]["memory_gib"])
    return row


def published_search(case: Case, size: int, seconds: float) -> dict[str, Any]:
    """Piper's program at one size of micro-batch, against ours for the graph and for the row at that size."""
    groups = case.groups(size)
    ours: dict[str, dict[str, Any]] = {}
    for name in ("graph", "piper"):
        began = time.process_time()
        found = by_levels(groups, None, in_a_row=name == "piper", slacks=())
        ours[name] = {"cpu_s": round(time.process_time() - began, 3), "ideals": found.ideals, "cuts": found.cuts,
                      "load_ms": found.stages[0].value * 1e3 if found.stages else None}
    theirs = piper(groups, seconds)
    agree = theirs.value is None or ours["piper"]["load_ms"] is None or math.isclose(
        theirs.value * 1e3, ours["piper"]["load_ms"], rel_tol=1e-6)
    if not agree:
        raise judge.InvalidPlacement(f"Piper's program finds {theirs.value}, the levels {ours['piper']['load_ms']} ms")
    return {"limit_s": seconds, "micro_batch": size, "ours": ours, "piper": {
        "cpu_s": round(theirs.seconds, 3), "done": theirs.value is not None, "downsets": theirs.downsets,
        "pairs": theirs.pairs, "load_ms": None if theirs.value is None else theirs.value * 1e3},
        "pairs_in_all": pairs_in_all(groups), "ratio": round(theirs.seconds / ours["graph"]["cpu_s"], 2)}


def pairs_in_all(groups: Groups) -> int:
    """Pairs of downsets that Piper's program looks at until it is done: branches, then a row."""
    paths = Ideals(groups, Budget(), limit=math.inf, devices=1, in_a_row=True, twins=False, max_cuts=0).paths
    last = max(paths, key=lambda path: path[-1])
    return pairs_of_branches([len(path) for path in paths if path is not last], len(last))[1]


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["model  devices  batch | graph: step ms (b, stages, in flight, GiB, search s) | piper | pipedream "
             "| least step ms | step ratio (same b; at most) | memory ratio"]
    for row in rows:
        cells = []
        for name in SOLVERS:
            entry = row[name]
            cells.append("does not fit" if entry is None else
                         f"{entry['step_ms']:8.2f} ({entry['micro_batch']:4}, {entry['stages']:2}, "
                         f"{entry['in_flight']:2}, {entry['memory_gib']:5.2f}, {entry['search_cpu_s']:6.2f})")
        same = row.get("ratio_same_micro_batch")
        tail = (f"{row['graph']['floor_ms']:8.2f} | {row['ratio']:.3f} ({same or float('nan'):.3f}; "
                f"{row['ratio_at_most']:.3f}) | {row['memory_ratio']:.2f}" if "ratio" in row else "-")
        lines.append(f"{row['model']:6} {row['devices']:3}{'r' if row['replicated'] else ' '} {row['mini_batch']:6} | "
                     f"{' | '.join(cells)} | {tail}")
        if "search" in row:
            ours, theirs = row["search"]["ours"]["graph"], row["search"]["piper"]
            lines.append(f"       search at one size: graph {ours['cpu_s']} s, {ours['cuts']} cuts of {ours['ideals']} "
                         f"ideals; Piper's program {'' if theirs['done'] else 'not done in '}{theirs['cpu_s']} s, "
                         f"{theirs['pairs']} of {row['search']['pairs_in_all']} pairs of "
                         f"{theirs['downsets']} downsets: {row['search']['ratio']} times")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="4,8,16,32")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--replicate", default="no,yes", help="no, yes, or both")
    parser.add_argument("--part", choices=("table", "search", "both"), default="both",
                        help="the table, the searches beside Piper's own program on 8 devices, or both")
    parser.add_argument("--published", type=float, default=120.0, help="CPU seconds for Piper's own program")
    parser.add_argument("--search", type=float, default=0.0,
                        help="seconds of weft's search for schedules of the stages found, where none is replicated")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "graph_pipelines.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    kept = record.kept().get("rows", [])
    found = {(row["model"], row["devices"], row["replicated"]): row for row in kept}
    for model in options.models.split(","):
        for devices, replicate in itertools.product(map(int, options.devices.split(",")),
                                                    options.replicate.split(",")):
            case = Case(model, devices, MODELS[model][3] * devices, replicate=replicate == "yes")
            key = model, devices, case.replicate
            earlier = found.get(key, {})
            row = earlier if options.part == "search" else {**compare(case, options.search), **{
                name: earlier[name] for name in ("search",) if name in earlier}}
            if options.part != "table" and devices == 8 and row["graph"]:
                row["search"] = published_search(case, row["graph"]["micro_batch"], options.published)
            found[key] = row
            print("\n".join(table([row]).splitlines()[1:]), flush=True)
            rows = sorted(found.values(), key=lambda row: (row["replicated"], list(MODELS).index(row["model"]),
                                                           row["devices"]))
            record.write({"device": DEVICE.name, "rows": rows}, part=True)
    whole = all(getattr(options, name) == parser.get_default(name)
                for name in ("devices", "models", "replicate", "part"))
    record.write({"device": DEVICE.name, "rows": rows}, part=not whole)
    print(table(rows))
    return 0


if __name__ == "__main__":
    main()
