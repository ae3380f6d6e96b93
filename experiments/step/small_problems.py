"""Are problems of at most 30 operations proven within two CPU seconds?

    python -m experiments.step.small_problems [--count 1080] [--seed 0] [--seconds 2] [--output small_problems.json]

A problem is drawn from one of 108 families in turn: durations (whole, decimal, of a ratio of a thousand, of a ratio of
10^12), transfers (none, lags, exclusive links), memory (unlimited, as tight as one micro-batch after the other, a
little more) and graph (a pipeline with forwards and backwards, any acyclic graph, one with blocks on several devices
and waits for the micro-batch before). Blocks times micro-batches are 12 to 30. The clock of a search is this process's
CPU time. Writes what was found of each, and counts by family, as JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.solver.cpsat.budget import Budget
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Number, Problem
from weft.solver.step.search import Infeasible, Search

__all__ = ["Family", "families", "problem", "solved"]

DURATIONS = ("whole", "decimal", "thousand", "extreme")
TRANSFERS = ("none", "lags", "links")
MEMORY = ("unlimited", "tight", "some")
GRAPHS = ("pipeline", "acyclic", "general")
#: Blocks times micro-batches.
LEAST, MOST = 12, 30


@dataclass(frozen=True)
class Family:
    """What the results are grouped by."""

    durations: str
    transfers: str
    memory: str
    graph: str


def families() -> list[Family]:
    """All of them, in one order."""
    return [Family(*drawn) for drawn in itertools.product(DURATIONS, TRANSFERS, MEMORY, GRAPHS)]


def problem(family: Family, seed: int) -> tuple[Problem, int]:
    """A problem of ``family`` and its number of micro-batches."""
    draw = random.Random(f"{family} {seed}")
    devices = draw.randint(2, 4)
    micro_batches = draw.choice((1, 2, 3, 3, 4, 4, 5, 6, 8))
    size = draw.randint(max(3, -(-LEAST // micro_batches)), MOST // micro_batches)
    shape = _pipeline(draw, devices, size) if family.graph == "pipeline" else _graph(draw, devices, size, family.graph)
    placed, waits = shape
    links: dict[tuple[int, int], Link] = {}
    memory, peaks = _memory(draw, placed, devices)
    blocks = []
    for i, (on, before) in enumerate(zip(placed, waits, strict=True)):
        after = []
        for j, distance in before:
            lag, link = _transfer(draw, family, placed[j], on, links)
            after.append(Dependency(f"b{j}", lag, link, distance))
        blocks.append(Block(f"b{i}", BlockKind.OTHER, on, _duration(draw, family.durations), memory[i], (),
                            tuple(after)))
    room = {"unlimited": None, "tight": 0, "some": draw.randint(1, 4)}[family.memory]
    gpus = tuple(Device(f"gpu{d}", None if room is None else peaks[d] + room) for d in range(devices))
    return Problem(f"{family.graph}, {family.durations}, {family.transfers}, {family.memory} #{seed}", gpus,
                   tuple(blocks), tuple(links.values()), "tick", "unit"), micro_batches


def _duration(draw: random.Random, durations: str) -> Number:
    if durations == "whole":
        return draw.randint(1, 9)
    if durations == "decimal":
        return round(draw.uniform(0.1, 9.9), 2)
    wide = 1.5 if durations == "thousand" else 6.0
    return float(f"{10 ** draw.uniform(-wide, wide):.3g}")


def _transfer(draw: random.Random, family: Family, here: tuple[int, ...], there: tuple[int, ...],
              links: dict[tuple[int, int], Link]) -> tuple[Number, str | None]:
    if family.transfers == "none" or set(here) & set(there):
        return 0, None
    lag = _duration(draw, family.durations)
    if family.transfers == "lags":
        return lag, None
    ends = here[0], there[0]
    return lag, links.setdefault(ends, Link(f"{ends[0]} to {ends[1]}", *ends)).name


def _pipeline(draw: random.Random, devices: int, size: int) -> tuple[list[tuple[int, ...]],
                                                                     list[list[tuple[int, int]]]]:
    """Forwards along some stages and backwards the other way, in a chain, a V or a loop."""
    stages = max(2, size // 2)
    shape = draw.choice(("chain", "V", "loop"))
    path = [s % devices if shape == "loop" else (s if (s // devices) % 2 == 0 else -s - 1) % devices
            for s in range(stages)] if shape != "chain" else [s * devices // stages for s in range(stages)]
    placed: list[tuple[int, ...]] = [(d,) for d in (*path, *reversed(path))]
    return placed, [[], *([(i - 1, 0)] for i in range(1, len(placed)))]


def _graph(draw: random.Random, devices: int, size: int, kind: str) -> tuple[list[tuple[int, ...]],
                                                                            list[list[tuple[int, int]]]]:
    """Blocks anywhere, each after a few before it."""
    placed, waits = [], []
    for i in range(size):
        several = kind == "general" and draw.random() < 0.2
        placed.append(tuple(draw.sample(range(devices), draw.randint(2, devices) if several else 1)))
        before = [(j, 0) for j in range(i) if draw.random() < (0.5 if j == i - 1 else 1.5 / size)]
        if kind == "general" and draw.random() < 0.15:
            before.append((draw.randrange(size), 1))
        waits.append(before)
    return placed, waits


def _memory(draw: random.Random, placed: list[tuple[int, ...]], devices: int) -> tuple[list[tuple[int, ...]],
                                                                                     list[int]]:
    """Balanced changes, none below 0 in file order, and the most that a device then holds."""
    last = {d: i for i, on in enumerate(placed) for d in on}
    held, peaks = [0] * devices, [0] * devices
    memory = []
    for i, on in enumerate(placed):
        row = []
        for d in on:
            change = -held[d] if last[d] == i else draw.randint(-min(held[d], 3), 4)
            held[d] += change
            peaks[d] = max(peaks[d], held[d])
            row.append(change)
        memory.append(tuple(row))
    return memory, peaks


def solved(family: Family, seed: int, seconds: float) -> dict[str, Any]:
    """What a search of ``seconds`` of CPU time says of one problem."""
    case, micro_batches = problem(family, seed)
    began = time.process_time()
    budget = Budget(seconds=seconds, now=time.process_time)
    row: dict[str, Any] = {"name": case.name, "seed": seed, "durations": family.durations,
                           "transfers": family.transfers, "memory": family.memory, "graph": family.graph,
                           "operations": micro_batches * len(case.blocks)}
    try:
        search = Search(case, micro_batches, budget)
        for _ in search.steps():
            if search.done:  # what follows gains a steady state at most
                break
        best = search.result()
    except Infeasible as refusal:
        return {**row, "refused": type(refusal).__name__, "seconds": round(time.process_time() - began, 2)}
    return {**row, "makespan": best.makespan, "bound": best.makespan_bound, "proven": best.gap == 0,
            "gap": best.gap, "seconds": round(time.process_time() - began, 2)}


def drawn(count: int, seed: int) -> Iterator[tuple[Family, int]]:
    """``count`` families in turn, each with a seed of its own."""
    every = families()
    for number in range(count):
        yield every[number % len(every)], seed + number // len(every)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of ``rows``, all together and by family."""
    by = {label: {value: _counts([row for row in rows if row[label] == value])
                  for value in dict.fromkeys(row[label] for row in rows)}
          for label in ("durations", "transfers", "memory", "graph")}
    unproven = sorted((row for row in rows if row.get("gap")), key=lambda row: -float(row["gap"]))
    return {"all": _counts(rows), **by, "unproven": [row["name"] for row in unproven]}


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    seconds = sorted(row["seconds"] for row in rows)
    gaps = [row["gap"] for row in rows if row.get("gap")]
    return {"problems": len(rows), "refused": sum("refused" in row for row in rows),
            "proven": sum(row.get("proven", False) for row in rows), "unproven": len(gaps),
            "gap_over_1_percent": sum(gap > 0.01 for gap in gaps), "widest_gap": round(max(gaps, default=0.0), 4),
            "cpu_seconds": {"all": round(sum(seconds), 1), "median": seconds[len(seconds) // 2],
                            "largest": seconds[-1]}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", default=1080, type=int, help="how many problems, through all families in turn")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--seconds", default=2.0, type=float, help="CPU seconds for each")
    parser.add_argument("--output", default=RESULTS / "small_problems.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = []
    for family, seed in drawn(options.count, options.seed):
        rows.append(solved(family, seed, options.seconds))
        if rows[-1].get("gap"):
            print(f"{rows[-1]['name']}: {rows[-1]['makespan']:g}, bound {rows[-1]['bound']:g}", flush=True)
    counts = summary(rows)
    print(json.dumps(counts["all"]))
    record.write({"seconds": options.seconds, "seed": options.seed, "summary": counts, "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
