"""Periods at scale: random real-duration shapes on 8 to 128 devices, memory from the least that works to twice that.

    python -m experiments.period.scale [--devices 8,16,32] [--seeds 1] [--seconds 60] [--workers 2] [--output
    scale.json]

Shapes: V (a chain), M (embedding over all devices), NN (encoder and decoder embeddings), K (two towers), chunked V and
loops; full and split backward; forward durations 80 to 120 at random, backward twice that. Reports how many periods
are proven (and within 10 seconds), the gap of the others, and the worst case. Seconds are wall time, of everything from
the problem on, with ``--workers`` cores to itself; no published schedule is known to the search. Rows are written as
they come.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from experiments.lib.provenance import begun
from weft.solver.cpsat.budget import Budget
from weft.solver.period.improvers.starts import one_at_a_time
from weft.solver.period.search import find_period
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.ticks import TickProblem

CAPS = (1.0, 1.25, 1.5, 2.0)


class _Builder:
    """Blocks of one micro-batch with random durations."""

    def __init__(self, devices: int, split: bool, seed: int) -> None:
        self.devices = devices
        self.split = split
        self.random = random.Random(seed)
        self.blocks: list[Block] = []
        self.backwards: list[tuple[str, int, int, str | None]] = []  # forward, device, duration, what it feeds

    def add(self, name: str, kind: BlockKind, devices: tuple[int, ...], duration: int, memory: int,
            after: tuple[str, ...]) -> str:
        self.blocks.append(Block(name, kind, devices, duration, (memory,), (), tuple(Dependency(a) for a in after)))
        return name

    def everywhere(self, name: str, kind: BlockKind, duration: int, after: tuple[str, ...]) -> str:
        return self.add(name, kind, tuple(range(self.devices)), duration, 0, after)

    def forward(self, s: int, device: int, after: tuple[str, ...], chunks: int = 1) -> str:
        duration = self.random.randint(80, 120) // chunks
        self.backwards.append((str(s), device, duration, None))
        return self.add(f"F{s}", BlockKind.FORWARD, (device,), duration, 2, after)

    def backward(self, s: int, after: tuple[str, ...]) -> str:
        device, duration = next((d, t) for name, d, t, _ in self.backwards if name == str(s))
        if not self.split:
            return self.add(f"B{s}", BlockKind.BACKWARD, (device,), 2 * duration, -2, after)
        name = self.add(f"I{s}", BlockKind.INPUT_GRAD, (device,), duration, -1, after)
        self.add(f"W{s}", BlockKind.WEIGHT_GRAD, (device,), duration, -1, (name,))
        return name


def _chain(build: _Builder, placed: list[int], chunks: int = 1, before: tuple[str, ...] = (), spread: bool = False,
           middle: bool = False) -> None:
    last, half = before, len(placed) // 2
    for s, device in enumerate(placed):
        if middle and s == half:
            last = (build.everywhere("E2", BlockKind.FORWARD, 30, last),)
        last = (build.forward(s, device, last, chunks),)
    for s in reversed(range(len(placed))):
        if middle and s == half - 1:
            last = (build.everywhere("D2", BlockKind.BACKWARD, 60, last),)
        last = (build.backward(s, last),)
    if spread:
        build.everywhere("D", BlockKind.BACKWARD, 60, last)


def _v(build: _Builder, p: int) -> None:
    _chain(build, list(range(p)))


def _m(build: _Builder, p: int) -> None:
    _chain(build, list(range(p)), before=(build.everywhere("E", BlockKind.FORWARD, 30, ()),), spread=True)


def _nn(build: _Builder, p: int) -> None:
    before = (build.everywhere("E", BlockKind.FORWARD, 30, ()),)
    _chain(build, list(range(p)), before=before, spread=True, middle=True)


def _k(build: _Builder, p: int) -> None:
    ends: list[str] = []
    for tower in (0, 1):
        last: tuple[str, ...] = ()
        for s in range(p // 2):
            last = (build.forward(tower * (p // 2) + s, tower * (p // 2) + s, last),)
        ends += last
    joined = build.everywhere("J", BlockKind.FORWARD, 60, tuple(ends))
    back = build.everywhere("JB", BlockKind.BACKWARD, 120, (joined,))
    for tower in (0, 1):
        last = (back,)
        for s in reversed(range(p // 2)):
            last = (build.backward(tower * (p // 2) + s, last),)


def _chunked(placement: Callable[[int], list[int]]) -> Callable[[_Builder, int], None]:
    return lambda build, p: _chain(build, placement(p), chunks=2)


SHAPES: dict[str, Callable[[_Builder, int], None]] = {
    "V": _v, "M": _m, "NN": _nn, "K": _k,
    "V2": _chunked(lambda p: [*range(p), *reversed(range(p))]),
    "loop2": _chunked(lambda p: [*range(p), *range(p)]),
}


def problem(shape: str, devices: int, split: bool, cap: float, seed: int) -> Problem:
    """One instance; ``cap`` in multiples of the least memory that works (one micro-batch at a time)."""
    build = _Builder(devices, split, seed)
    SHAPES[shape](build, devices)
    least = max(sum(max(block.memory_on(d), 0) for block in build.blocks) for d in range(devices))
    # One micro-batch at a time is no pipeline; the least cap worth the name holds two activations' worth of depth.
    memory = max(least, round(cap * least * max(2, devices / 4)))
    name = f"{shape}{devices}{'-split' if split else ''} cap {cap:g} seed {seed}"
    gpus = tuple(Device(f"gpu{d}", memory) for d in range(devices))
    return Problem(name, gpus, tuple(build.blocks), (), "tick", "half")


def measure(case: Problem, seconds: float, workers: int) -> dict[str, Any]:
    """Search the period of one instance."""
    began, cpu = time.perf_counter(), time.process_time()
    budget = Budget(seconds=seconds, workers=workers)
    instance = TickProblem.of(case)
    search = find_period(instance, one_at_a_time(instance), budget)
    return {"name": case.name, "blocks": len(case.blocks), "period": float(search.best.period),
            "bound": float(search.refuted), "proven": search.proven,
            "gap": float(search.best.period / search.refuted) - 1,
            "cpu_seconds": round(time.process_time() - cpu, 3), "wall_seconds": round(time.perf_counter() - began, 3)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    options, record = begun(__doc__, arguments, "scale.json", devices="8,16,32", shapes=",".join(SHAPES),
                            caps=",".join(map(str, CAPS)), seeds=1, seconds=60.0, workers=2)
    rows = []
    for devices in map(int, options.devices.split(",")):
        for shape in options.shapes.split(","):
            for split in (False, True):
                for cap in map(float, options.caps.split(",")):
                    for seed in range(options.seeds):
                        row = measure(problem(shape, devices, split, cap, seed), options.seconds, options.workers)
                        rows.append({"devices": devices, "shape": shape, "split": split, "cap": cap, **row})
                        verdict = "proven" if row["proven"] else f"{row['gap']:.2%}"
                        print(f"{row['name']:32} {row['period']:9.1f} {row['bound']:9.1f} {verdict:>7} "
                              f"{row['wall_seconds']:8.2f} s", flush=True)
                        record.write({"seconds": options.seconds, "workers": options.workers,
                                      "summary": summarised(rows), "rows": rows})
    print(json.dumps(summarised(rows), indent=1))
    return 0


def summarised(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """By number of devices."""
    summary = {}
    for devices in sorted({row["devices"] for row in rows}):
        mine = [row for row in rows if row["devices"] == devices]
        summary[str(devices)] = {
            "instances": len(mine), "proven": sum(row["proven"] for row in mine),
            "proven_within_10_s": sum(row["proven"] and row["wall_seconds"] <= 10 for row in mine),
            "gap_under_1_percent": sum(row["gap"] < 0.01 for row in mine),
            "worst_gap": max((row["gap"], row["name"]) for row in mine),
            "worst_seconds": max((row["wall_seconds"], row["name"]) for row in mine)}
    return summary


if __name__ == "__main__":
    main()
