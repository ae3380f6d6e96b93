"""How counting transfers changes the ranking of the schedules: a GPT-like pipeline on two nodes of four GPUs.

    python -m experiments.step.transfers [--effort 1] [--micro-batches 16]
    python -m experiments.step.transfers --head 1 --effort 0.5 --output experiments/results/transfers_balanced.json

31 layers and a head as heavy as two of them (or one: then all stages are alike but for the embedding), hidden size
2048, micro-batches of 4 x 2048 tokens: a layer's forward, input gradient and weight gradient take 5.5 ms each, and what
crosses from stage to stage is 33.5 MB: 0.7 ms within a node (50 GB/s); between nodes 10.7 ms (25 Gbit/s) or 26.8 ms
(10 Gbit/s). Every schedule runs on each placement that it is made for, under the memory that 1F1B needs, with transfers
not counted, as lags (any number at a time) and on exclusive links (from each GPU to each other one at a time); its best
placement counts. Schedules that run both ways keep the model twice, which is not charged here: they are ranked by
themselves. Writes transfers.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import solve
from weft.solver.timing import time_orders

GPUS, PER_NODE, LAYERS = 8, 4, 4
LAYER, EMBEDDING, WITHIN = 5.5, 0.5, 0.7  # ms
#: Column -> how transfers count, and how long one between the nodes takes.
CASES = {"not counted": ("none", 0.0), "25 Gbit/s, lags": ("lags", 10.7), "25 Gbit/s, links": ("links", 10.7),
         "10 Gbit/s, lags": ("lags", 26.8), "10 Gbit/s, links": ("links", 26.8)}
CHAIN, LOOP, V, BOTH = "chain", "loop", "V", "both ways"


def pipeline(devices: list[int], mode: str, between: float, head: int,
             name: str = "") -> tuple[list[Block], list[Link]]:
    """The blocks of a pipeline with stage s on ``devices[s]``, and the links that they use.

    Memory is in activations of one layer; the head keeps as much as the layer whose place it takes.
    """
    layers = LAYERS * GPUS // len(devices)
    links: dict[tuple[int, int], Link] = {}

    def after(block: str, source: int, target: int) -> tuple[Dependency, ...]:
        if source == target or mode == "none":
            return (Dependency(block),)
        lag = WITHIN if source // PER_NODE == target // PER_NODE else between
        link = links.setdefault((source, target), Link(f"{source} to {target}", source, target)).name
        return (Dependency(block, lag, link if mode == "links" else None),)

    last = len(devices) - 1
    blocks: list[Block] = []
    for s, device in enumerate(devices):
        duration = LAYER * (layers if s < last else layers - 1 + head) + (EMBEDDING if s == 0 else 0)
        waits = after(f"{name}F{s - 1}", devices[s - 1], device) if s else ()
        blocks.append(Block(f"{name}F{s}", BlockKind.FORWARD, (device,), duration, (layers,), (), waits))
    for s in reversed(range(len(devices))):
        device, duration = devices[s], LAYER * (layers if s < last else layers - 1 + head)
        waits = after(f"{name}I{s + 1}", devices[s + 1], device) if s < last else after(f"{name}F{s}", device, device)
        blocks.append(Block(f"{name}I{s}", BlockKind.INPUT_GRAD, (device,), duration, (0,), (), waits))
        blocks.append(Block(f"{name}W{s}", BlockKind.WEIGHT_GRAD, (device,), duration, (-layers,), (),
                            (Dependency(f"{name}I{s}"),)))
    return blocks, list(links.values()) if mode == "links" else []


def problem(placement: str, mode: str, between: float, head: int) -> Problem:
    """One placement's problem. One micro-batch of "both ways" is a pair, one each way."""
    down = list(range(GPUS))
    if placement == BOTH:
        first, links = pipeline(down, mode, between, head, "down.")
        second, others = pipeline(down[::-1], mode, between, head, "up.")
        blocks, links = first + second, list({link.name: link for link in links + others}.values())
    else:
        blocks, links = pipeline({CHAIN: down, LOOP: down + down, V: down + down[::-1]}[placement], mode, between, head)
    gpus = tuple(Device(f"gpu{d}", LAYERS * GPUS) for d in down)
    return Problem(f"{placement}, transfers {mode}", gpus, tuple(blocks), tuple(links), "ms", "layer")


def retimed(schedule: Schedule, target: Problem) -> Schedule:
    """The orders of ``schedule`` on ``target``, which differs in its transfers only."""
    operations = time_orders(target, schedule.micro_batches, schedule.orders)
    found = replace(schedule, problem=target, operations=operations, makespan_bound=0.0, period=None, period_bound=None,
                    repetend=None)
    validate(found)
    return found


def measure(mode: str, between: float, head: int, micro_batches: int, effort: float,
            blind: dict[str, Schedule]) -> list[dict[str, Any]]:
    """All schedules with transfers counted as ``mode`` says, fastest first. ``blind`` holds weft's by placement, solved
    with transfers not counted; it is filled where that is the mode."""
    rows: list[dict[str, Any]] = []
    for placement in (CHAIN, LOOP, V, BOTH):
        case = problem(placement, mode, between, head)
        count = micro_batches // 2 if placement == BOTH else micro_batches
        for name, entry in BASELINES.items():
            try:
                rows.append(_row(entry.title, placement, baseline(name, case, count)))
            except NotApplicable:
                continue
        own = solve(case, count, time_limit=60.0, effort=effort)
        rows.append(_row("weft", placement, own))
        if mode == "none":
            blind[placement] = own
        else:
            rows.append(_row("weft, blind to transfers", placement, retimed(blind[placement], case)))
    best: dict[tuple[str, int], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: (not row["fits"], row["makespan"])):
        best.setdefault((row["schedule"], row["copies"]), row)
    for copies in (1, 2):
        fitting = sorted({row["makespan"] for row in best.values() if row["fits"] and row["copies"] == copies})
        for row in best.values():
            if row["copies"] == copies:
                row["rank"] = fitting.index(row["makespan"]) + 1 if row["fits"] else None
    return list(best.values())


def _row(schedule: str, placement: str, found: Schedule) -> dict[str, Any]:
    return {"schedule": schedule, "placement": placement, "copies": 2 if placement == BOTH else 1,
            "makespan": round(found.makespan, 3),
            "peak_layers": max(found.peak_memory), "fits": not violations(found, limit=1),
            "bound": round(found.makespan_bound, 3) or None}


def table(results: dict[str, list[dict[str, Any]]], copies: int) -> str:
    """The schedules that keep the model ``copies`` times: makespan and rank, and the placement where there is more
    than one, per case."""
    last = [row for row in list(results.values())[-1] if row["copies"] == copies]
    heading = "model kept once" if copies == 1 else "model kept twice"
    lines = [f"{heading:25}" + "".join(f"{case:>23}" for case in results)]
    for name in (row["schedule"] for row in last):
        cells = []
        for rows in results.values():
            row = next((row for row in rows if (row["schedule"], row["copies"]) == (name, copies)), None)
            where = "" if row is None or copies == 2 else row["placement"]
            rank = "" if row is None else f"#{row['rank']}" if row["fits"] else "no room"
            cells.append("-" if row is None else f"{row['makespan']:.1f} {rank:>7} {where:>5}".rstrip())
        lines.append(f"{name:25}" + "".join(f"{cell:>23}" for cell in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--effort", default=1.0, type=float, help="deterministic seconds for each search")
    parser.add_argument("--head", default=2, type=int, help="the head's work, in layers")
    parser.add_argument("--micro-batches", default=16, type=int, help="an even number")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--output", default=RESULTS / "transfers.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    blind: dict[str, Schedule] = {}
    results = {case: measure(mode, between, options.head, options.micro_batches, options.effort, blind)
               for case, (mode, between) in CASES.items() if case in options.cases}
    print(f"makespan in ms, {options.micro_batches} micro-batches, memory for {LAYERS * GPUS} layers' activations on "
          "each GPU; rank among those that fit")
    for copies in (1, 2):
        print(table(results, copies))
    record.write({"within_ms": WITHIN, "head_layers": options.head, "micro_batches": options.micro_batches,
                  "memory_layers": LAYERS * GPUS, "effort": options.effort, "results": results})
    return 0


if __name__ == "__main__":
    main()
