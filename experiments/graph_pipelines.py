"""Graphs of stages against stages in a row, on the models of the GraphPipe evaluation (Jeon et al., ASPLOS 2025).

    python experiments/graph_pipelines.py [--devices 4,8,16,32] [--models mmt,dlrm,uno]

prints tables and keeps their rows in ``graph_pipelines.json`` beside this file. For each model and number of devices,
and for each formulation, the outer loop goes over micro-batch sizes (powers of two that divide the mini-batch), solves
the placement to its proven optimum, runs 1F1B on its stages, has the judge check that schedule with its memory, and
keeps the size whose step is shortest. A size is left out where its work alone, spread over all devices, takes longer
than the best. With ``--search SECONDS`` weft's own search then looks for a better schedule of the same stages.

* ``graph``: stages form a graph, memory by depth (:mod:`solver.placement.levels`); a stage waits for those whose
  results it reads.
* ``piper``: stages in a row over all orders of the graph, memory by position (Piper's formulation, without its
  data and tensor parallelism); the same program with one stage a level.
* ``pipedream``: stages in a row cut from the order in which the model lists its operators (PipeDream's), by dynamic
  programming.

In the latter two every stage waits for the one before it in the row, as their runtimes do. Nobody replicates a stage:
the three are compared without data parallelism. Costs are modelled (roofline) for V100s with 16 GB, 4 in a machine;
transfers between any two at NVLink's rate (the same for all three). Times of searches are CPU seconds of this process.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft
from models.collectives import point_to_point
from models.devices import DEVICES
from models.families import DlrmModel, MmtModel, UnoModel
from models.placing import Hardware, placement_problem
from models.roofline import Roofline
from models.section import Section
from models.zoo.graphs import model_graph
from solver.cpsat import Budget
from solver.files import write_atomically
from solver.operators import OperatorGraph
from solver.placement import judge
from solver.placement.bounds import simple_bound
from solver.placement.groups import Groups, groups_of
from solver.placement.hopeless import NoPlacement
from solver.placement.levels import TooWide, levels
from solver.placement.placement import Stage
from solver.placement.problem import PlacementProblem
from solver.placement.slicing import Slicing, slice_order
from solver.placement.stage_blocks import one_f_one_b, stage_problem, work_of
from solver.placement.stage_dag import stages_by_depth

DEVICE = DEVICES["v100-16gb"]
RESERVE = 1024**3

#: Sizes of appendix A.2; what it leaves open (what follows the concatenation of CANDLE-Uno, the optimizer) is ours.
#: Then: activations' type, bytes of gradient and Adam state a parameter, samples of the mini-batch for each device.
MODELS: dict[str, tuple[Section, str, int, int]] = {
    "mmt": (MmtModel(family="mmt", branches=4, layers=8, hidden=1024, heads=16, feed_forward=4096, sequence=256),
            "float32", 12, 16),
    "dlrm": (DlrmModel(family="dlrm", tables=(1_000_000,) * 7, dimension=64, bag=100, dense=4096, dense_branches=7,
                       bottom=(4096,) * 4, top=(4096,), interaction="concat"), "float32", 12, 128),
    "uno": (UnoModel(family="uno", features=(4096,) * 7, tower=(4096,) * 4, joint=(1,)), "float32", 12, 128),
}


def parts_of(graph: OperatorGraph) -> dict[str, list[str]]:
    """Transformer layers, and dense layers with their activation; the concatenation goes with what reads it, the
    embedding tables (0.2 % of the work) are one part."""
    found: dict[str, list[str]] = {}
    for operator in graph.operators:
        name = operator.layer
        if operator.kind == "embedding_bag":
            name = "tables"
        elif operator.kind in ("linear", "relu") and not operator.layer.startswith("branch"):
            name = f"{operator.layer}.{operator.name.rsplit('.', 1)[1].replace('relu', 'dense')}"
        elif operator.kind == "concat" and operator.layer != "join":
            name = {"joint": "joint.dense0", "interaction": "top.dense0"}[operator.layer]
        found.setdefault(name, []).append(operator.name)
    return found


class Case:
    """One model on so many devices: its placement problem by micro-batch size."""

    def __init__(self, model: str, devices: int, batch: int) -> None:
        self.model, self.devices, self.batch = model, devices, batch
        self._made: dict[int, tuple[Groups, list[float], list[int]]] = {}

    def sizes(self) -> list[int]:
        return [2**i for i in range(int(math.log2(self.batch)) + 1) if self.batch % 2**i == 0]

    def made(self, size: int) -> tuple[Groups, list[float], list[int]]:
        """The groups, the forward's time of each node, and the order in which the model lists them."""
        if size not in self._made:
            section, dtype, state, _ = MODELS[self.model]
            graph = model_graph(section, size, dtype=dtype)
            times = Roofline(DEVICE).times(graph)
            parts = parts_of(graph)
            problem = placement_problem(
                graph, [Hardware("gpu", self.devices, DEVICE.memory - RESERVE, times)],
                lambda n: point_to_point(n, DEVICE).seconds, parts=parts, state_per_parameter=state,
                micro_batches=self.batch // size)
            forward = [sum(times[name].forward for name in names) for names in parts.values()]
            groups = groups_of(problem)
            place = groups.spread(range(groups.count))
            self._made[size] = groups, forward, list(dict.fromkeys(place))
        return self._made[size]


Solve = Callable[[Groups, list[int]], tuple[Slicing | None, float]]


def graph_solver(groups: Groups, order: list[int]) -> tuple[Slicing | None, float]:
    found = levels(groups, Budget(seconds=300), least=simple_bound(groups))
    return found.stages, found.bound


def piper_solver(groups: Groups, order: list[int]) -> tuple[Slicing | None, float]:
    found = levels(groups, Budget(seconds=300), least=simple_bound(groups), in_a_row=True)
    return found.stages, found.bound


def pipedream_solver(groups: Groups, order: list[int]) -> tuple[Slicing | None, float]:
    found = slice_order(groups, order)
    return found, math.inf if found is None else found.value


def run(problem: PlacementProblem, slicing: Slicing, groups: Groups, forward: list[float], size: int,
        *, in_a_row: bool, search: float = 0.0) -> dict[str, Any]:
    """The step of 1F1B on these stages (with ``search`` seconds, of the best schedule found too), and what they hold.
    """
    parts = [(kind, [node for group in inside for node in groups.members[group]]) for kind, inside in slicing.stages]
    stages: tuple[Stage, ...]
    if in_a_row:
        stages = judge.stages_of(problem, parts)
        after: tuple[tuple[int, ...], ...] = tuple((s + 1,) if s + 1 < len(stages) else () for s in range(len(stages)))
    else:
        stages, after, _ = stages_by_depth(problem, parts)
    faults = judge.breaches(problem, stages)
    if faults:
        raise judge.InvalidPlacement("; ".join(faults))
    works = work_of(problem, stages, forward, size)
    count = problem.micro_batches or 1
    blocks = stage_problem(problem.name, works, after)
    schedule = one_f_one_b(blocks, works, after, count)
    searched = {}
    if search:
        better = weft.solve(blocks, micro_batches=count, time_limit=search)
        searched = {"searched_step_ms": better.makespan * 1e3, "searched_bound_ms": better.makespan_bound * 1e3}
    return {**searched, "micro_batch": size, "step_ms": schedule.makespan * 1e3,
            "load_ms": max(s.load for s in stages) * 1e3,
            "stages": len(stages), "in_flight": max(stage.in_flight for stage in stages),
            "memory_gib": max(stage.memory for stage in stages) / 2**30,
            "activations_gib": max(stage.activations for stage in stages) / 2**30}


def best_of(case: Case, solve: Solve, *, in_a_row: bool, sizes: list[int] | None = None) -> dict[str, Any] | None:
    """The outer loop over micro-batch sizes, the most promising first."""
    chosen = {size: case.made(size)[0] for size in (sizes or case.sizes())}
    floor = {size: simple_bound(groups) * (case.batch // size) for size, groups in chosen.items()}
    best: dict[str, Any] | None = None
    spent, solved = 0.0, 0
    for size in sorted(chosen, key=floor.__getitem__):
        if best is not None and floor[size] * 1e3 >= best["step_ms"]:
            continue
        groups, forward, order = case.made(size)
        began = time.process_time()
        try:
            slicing, bound = solve(groups, order)
        except NoPlacement:
            slicing = None
        spent += time.process_time() - began
        solved += 1
        if slicing is None:
            continue
        row = run(groups.problem, slicing, groups, forward, size, in_a_row=in_a_row)
        if best is None or row["step_ms"] < best["step_ms"]:
            best = {**row, "load_bound_ms": bound * 1e3}
    return None if best is None else {**best, "search_cpu_s": round(spent, 3), "sizes_solved": solved,
                                      "floor_ms": min(floor.values()) * 1e3}


def published_search(case: Case, size: int, seconds: float) -> dict[str, Any]:
    """CPU seconds of the dynamic program over all ideals, none left out for being another's mirror image."""
    groups = case.made(size)[0]
    began = time.process_time()
    try:
        levels(groups, Budget(seconds=seconds), least=simple_bound(groups), in_a_row=True, twins=False,
               max_steps=10**12)
        done = True
    except TooWide:
        done = False
    return {"cpu_s": round(time.process_time() - began, 3), "done": done}


def searched(case: Case, size: int, solve: Solve, seconds: float, *, in_a_row: bool) -> dict[str, Any]:
    """What weft's search finds for the stages that were chosen."""
    groups, forward, order = case.made(size)
    slicing = solve(groups, order)[0]
    assert slicing is not None
    row = run(groups.problem, slicing, groups, forward, size, in_a_row=in_a_row, search=seconds)
    return {name: value for name, value in row.items() if name.startswith("searched")}


def compare(model: str, devices: int, per_device: int, published: float, search: float) -> dict[str, Any]:
    """One row of the table."""
    case = Case(model, devices, per_device * devices)
    row: dict[str, Any] = {"model": model, "devices": devices, "mini_batch": case.batch}
    row["graph"] = best_of(case, graph_solver, in_a_row=False)
    row["piper"] = best_of(case, piper_solver, in_a_row=True)
    row["pipedream"] = best_of(case, pipedream_solver, in_a_row=True)
    if search:
        for name, solve, in_a_row in (("graph", graph_solver, False), ("piper", piper_solver, True)):
            if row[name]:
                row[name].update(searched(case, row[name]["micro_batch"], solve, search, in_a_row=in_a_row))
    rivals = [row[name] for name in ("piper", "pipedream") if row[name]]
    if row["graph"] and rivals:
        best = min(rivals, key=lambda entry: entry["step_ms"])
        row["ratio"] = best["step_ms"] / row["graph"]["step_ms"]
        same = best_of(case, graph_solver, in_a_row=False, sizes=[best["micro_batch"]])
        row["ratio_same_micro_batch"] = best["step_ms"] / same["step_ms"] if same else None
        # No schedule of any placement is faster than all work spread evenly, at the best of all sizes.
        row["ratio_possible"] = best["step_ms"] / row["graph"]["floor_ms"]
        row["memory_ratio"] = best["memory_gib"] / row["graph"]["memory_gib"]
    if published and row["graph"]:
        row["piper_all_ideals"] = published_search(case, row["graph"]["micro_batch"], published)
        groups, _, order = case.made(row["graph"]["micro_batch"])
        began = time.process_time()
        graph_solver(groups, order)
        row["graph_one_size_cpu_s"] = round(time.process_time() - began, 3)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["model  devices  batch | graph: step ms (b, stages, in flight, GiB, search s) | piper | pipedream "
             "| step ratio (same b; at most) | memory ratio"]
    for row in rows:
        cells = []
        for name in ("graph", "piper", "pipedream"):
            entry = row[name]
            cells.append("does not fit" if entry is None else
                         f"{entry['step_ms']:8.2f} ({entry['micro_batch']:4}, {entry['stages']:2}, "
                         f"{entry['in_flight']:2}, {entry['memory_gib']:5.2f}, {entry['search_cpu_s']:6.2f})")
        same = row.get("ratio_same_micro_batch")
        tail = (f"{row['ratio']:.3f} ({same or float('nan'):.3f}; {row['ratio_possible']:.3f}) | "
                f"{row['memory_ratio']:.2f}" if "ratio" in row else "-")
        lines.append(f"{row['model']:6} {row['devices']:3} {row['mini_batch']:6} | {' | '.join(cells)} | {tail}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="4,8,16,32")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--published", type=float, default=60.0,
                        help="seconds for the dynamic program over all ideals, on 8 devices (0: leave it out)")
    parser.add_argument("--search", type=float, default=0.0, help="seconds of weft's search for each of both schedules")
    parser.add_argument("-o", "--output", default=str(Path(__file__).with_suffix(".json")))
    options = parser.parse_args()
    output = Path(options.output)
    kept = json.loads(output.read_text())["rows"] if output.exists() else []
    found = {(row["model"], row["devices"]): row for row in kept}
    for model in options.models.split(","):
        for devices in map(int, options.devices.split(",")):
            row = compare(model, devices, MODELS[model][3], options.published if devices == 8 else 0.0,
                          options.search)
            found[model, devices] = row
            print(table([row]).splitlines()[1], flush=True)
            rows = sorted(found.values(), key=lambda row: (list(MODELS).index(row["model"]), row["devices"]))
            write_atomically(output, json.dumps({"device": DEVICE.name, "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
