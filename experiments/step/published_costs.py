"""Weft against every known schedule on the costs that were published with zero-bubble schedules.

    python -m experiments.step.published_costs [--models 1.5B 6.2B] [--effort 0.5] [--output published_costs.json]

Forward, input gradient, weight gradient and transfer as measured on A100s for GPTs of 1.5B to 28.3B parameters (Qi et
al., "Zero Bubble Pipeline Parallelism", ICLR 2024, the profiles in the appendix, from memory: realistic ratios, no
reference), on the paper's number of devices, as one stage a device and as a V of two. A forward takes two units of
memory for each stage, the two gradients give one back each. Memory for 0.5, 0.75, 1 and 2 times as many micro-batches
as devices; one, two, four and eight times as many micro-batches as devices, in turns: 32 problems. For each: is weft
worse than any rival of the registry that fits, is it proven optimal, and the gap. With ``--models`` the other models'
rows stay as they are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.provenance import RESULTS, Record
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import RELATIVE_TOLERANCE
from weft.solver.step.search import solve

#: Devices; microseconds of forward, input gradient, weight gradient and transfer of a stage, one a device.
MODELS = {"1.5B": (8, (18522, 18086, 9337, 601)), "6.2B": (8, (29718, 29444, 19927, 527)),
          "14.6B": (16, (11347, 11248, 8132, 377)), "28.3B": (32, (10419, 10207, 7715, 408))}
SHAPES = ("chain", "V")
#: Memory, and micro-batches, in times of the devices.
MEMORY, RUNS = (0.5, 0.75, 1.0, 2.0), (1, 2, 4, 8)
#: What a stage's forward takes; each gradient gives half of it back.
_TAKEN = 2


def problem(model: str, shape: str, memory: float) -> Problem:
    """The block problem of a model in a shape, on devices with memory for ``memory`` times p micro-batches."""
    p, (forward, gradient, weight, transfer) = MODELS[model]
    devices = list(range(p)) if shape == "chain" else [*range(p), *reversed(range(p))]
    share = p / len(devices)
    room = int(memory * len(devices)) * _TAKEN

    def after(name: str, here: int, there: int) -> tuple[Dependency, ...]:
        return (Dependency(name, transfer if devices[here] != devices[there] else 0),)

    last = len(devices) - 1
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (d,), forward * share, (_TAKEN,), (),
                    after(f"F{s - 1}", s - 1, s) if s else ()) for s, d in enumerate(devices)]
    for s in reversed(range(last + 1)):
        before = after(f"I{s + 1}", s + 1, s) if s < last else after(f"F{s}", s, s)
        blocks.append(Block(f"I{s}", BlockKind.INPUT_GRAD, (devices[s],), gradient * share, (-1,), (), before))
        blocks.append(Block(f"W{s}", BlockKind.WEIGHT_GRAD, (devices[s],), weight * share, (-1,), (),
                            (Dependency(f"I{s}"),)))
    return Problem(f"{model}, {shape}, memory {memory:g}p", tuple(Device(f"gpu{d}", room) for d in range(p)),
                   tuple(blocks), time_unit="us", memory_unit="unit")


def cases(models: Sequence[str]) -> Iterator[tuple[str, str, float, int]]:
    """Model, shape, memory and micro-batches of every problem."""
    for turn, model in enumerate(MODELS):
        for shape in SHAPES:
            for k, memory in enumerate(MEMORY):
                if model in models:
                    yield model, shape, memory, MODELS[model][0] * RUNS[(k + turn + 2 * SHAPES.index(shape)) % 4]


def measure(model: str, shape: str, memory: float, micro_batches: int, effort: float) -> dict[str, Any]:
    """One problem: weft's makespan and bound, and the makespans of all rivals that fit."""
    case, began = problem(model, shape, memory), time.process_time()
    rivals: dict[str, float] = {}
    misfits: list[str] = []
    for name in BASELINES:
        try:
            known = baseline(name, case, micro_batches)
        except NotApplicable:
            continue
        if violations(known, limit=1):
            misfits.append(name)
        else:
            rivals[name] = known.makespan
    after = time.process_time()
    own = solve(case, micro_batches, time_limit=3600.0, effort=effort)
    validate(own)
    best = min(rivals, key=lambda name: rivals[name]) if rivals else None
    gain = None if best is None else 1 - own.makespan / rivals[best]
    return {"model": model, "shape": shape, "memory": memory, "devices": MODELS[model][0],
            "micro_batches": micro_batches, "weft": own.makespan, "bound": own.makespan_bound, "proven": own.gap == 0,
            "gap": round(own.gap, 5), "found_by": own.solver["name"], "best_rival": best,
            "gain": None if gain is None else 0.0 if abs(gain) <= RELATIVE_TOLERANCE else round(gain, 6),
            "rivals": rivals, "do_not_fit": misfits, "cpu_rivals": round(after - began, 2),
            "cpu_weft": round(time.process_time() - after, 2)}


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts and gaps, of all and by memory."""
    def counts(chosen: Sequence[dict[str, Any]]) -> dict[str, Any]:
        gains = [row["gain"] for row in chosen if row["gain"] is not None]
        gaps = [row["gap"] for row in chosen]
        return {"problems": len(chosen), "with_a_rival": len(gains), "worse": sum(gain < 0 for gain in gains),
                "tied": sum(gain == 0 for gain in gains), "better": sum(gain > 0 for gain in gains),
                "proven_optimal": sum(row["proven"] for row in chosen), "median_gap": statistics.median(gaps),
                "largest_gap": max(gaps), "largest_gain": max(gains, default=None),
                "mean_gain": round(statistics.fmean(gains), 5) if gains else None}

    best = [row["best_rival"] for row in rows]
    return {"all": counts(rows),
            **{f"memory {memory:g}p": counts(own) for memory in MEMORY
               if (own := [row for row in rows if row["memory"] == memory])},
            "best_rival": {name: best.count(name) for name in BASELINES if name in best}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--memory", nargs="+", type=float, default=list(MEMORY), help="only these, in times of p")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--effort", default=0.5, type=float, help="deterministic seconds for each problem")
    parser.add_argument("--output", default=RESULTS / "published_costs.json", type=Path)
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = {_key(row): row for row in record.kept().get("rows", [])}
    for case in cases(options.models):
        if case[1] not in options.shapes or case[2] not in options.memory:
            continue
        row = measure(*case, options.effort)
        rows[_key(row)] = row
        print(f"{row['model']} {row['shape']} {row['memory']:g}p, {row['micro_batches']} micro-batches: "
              f"gap {row['gap']:.2%}, best rival {row['best_rival']}, gain {row['gain']}", flush=True)
        ranked = sorted(rows.values(), key=_key)
        record.write({"effort": options.effort, "summary": summarise(ranked), "rows": ranked}, part=True)
    _show(summarise(sorted(rows.values(), key=_key)))
    return 0


def _key(row: dict[str, Any]) -> tuple[int, int, float]:
    return list(MODELS).index(row["model"]), SHAPES.index(row["shape"]), row["memory"]


def _show(summary: dict[str, Any]) -> None:
    table = Table("problems", "of", "worse", "tied", "better", "proven", "median gap", "largest gap")
    for name, counts in summary.items():
        if "problems" in counts:
            table.add_row(name, *(str(counts[key]) for key in ("problems", "worse", "tied", "better",
                                                               "proven_optimal")),
                          f"{counts['median_gap']:.2%}", f"{counts['largest_gap']:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
