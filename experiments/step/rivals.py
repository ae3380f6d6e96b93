"""Weft against every published schedule on the shapes that they are made for: loops, waves, both ways, sequence chunks.

    python -m experiments.step.rivals [--effort 0.3] [--devices 4 8] [--shapes chain "loop 2" ...]

Each shape has stages of equal times (F 20, I 20, W 20 on every device) or of times drawn from half to one and a half
times that, and memory without limit, for as many micro-batches as devices, or for half as many; 2 p + 1 micro-batches
run on p devices (half as many pairs where a micro-batch is one each way). Where micro-batches come in chunks, attention
is 0.4 of the work and chunks are cut for even work. A published schedule counts where it fits. Writes rivals.json, in
which other shapes and numbers of devices stay.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.lib.provenance import RESULTS, Record
from weft.app.lib.known import SEARCHES
from weft.models.candidates.sequence_chunks import Attention, even_work, in_sequence_chunks
from weft.solver.baselines import BASELINES, NotApplicable, baseline
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.step.search import solve

#: Shape -> ways along the devices, whether every one goes down, in both directions, chunks of a sequence.
SHAPES = {"chain": (1, False, False, 1), "V": (2, False, False, 1), "loop 2": (2, True, False, 1),
          "loop 3": (3, True, False, 1), "wave 3": (3, False, False, 1), "wave 4": (4, False, False, 1),
          "both ways": (1, False, True, 1), "both ways, V": (2, False, True, 1),
          "chain, 2 sequence chunks": (1, False, False, 2), "chain, 4 sequence chunks": (1, False, False, 4),
          "loop 2, 2 sequence chunks": (2, True, False, 2)}
#: Times of a device's forward, and of each part of its backward; tokens of a sequence; attention's share.
DEVICE, TOKENS, ATTENTION = 20.0, 8192, 0.4
#: What a device holds for one micro-batch, in parts that any number of ways and chunks divides.
WHOLE = 48


def problem(shape: str, p: int, uneven: bool, share: float | None) -> tuple[Problem, int]:
    """The problem and its number of micro-batches; ``share``: of the memory for p micro-batches, None without limit."""
    ways, down, twice, chunks = SHAPES[shape]
    draw = random.Random(f"{shape} {p}")
    path = [d for way in range(ways) for d in (range(p) if down or way % 2 == 0 else reversed(range(p)))]
    memory = None if share is None else round(share * p * WHOLE) + WHOLE // ways
    devices = tuple(Device(f"gpu{d}", memory) for d in range(p))
    blocks = _blocks(path, ways, draw if uneven else None, "")
    if twice:
        up = [p - 1 - d for d in path]
        blocks = [*blocks, *_blocks(up, ways, draw if uneven else None, "up.")]
    made = Problem(f"{shape} on {p}", devices, tuple(blocks), time_unit="ms", memory_unit="part")
    count = 2 * p + 1
    if chunks > 1:
        lengths = even_work(TOKENS, chunks, ATTENTION)
        made = in_sequence_chunks(made, lengths, [Attention(ATTENTION, ATTENTION)] * len(path))
    return replace(made, name=shape), count // 2 if twice else count


def _blocks(path: Sequence[int], ways: int, draw: random.Random | None, name: str) -> list[Block]:
    """A pipeline with split backwards, stage s on ``path[s]``."""
    times = [round(DEVICE / ways * (draw.uniform(0.5, 1.5) if draw else 1.0), 2) for _ in path]
    last, kept = len(path) - 1, WHOLE // ways
    blocks = [Block(f"{name}F{s}", BlockKind.FORWARD, (d,), times[s], (kept,), (),
                    (Dependency(f"{name}F{s - 1}"),) if s else ()) for s, d in enumerate(path)]
    for s, d in reversed(list(enumerate(path))):
        before = f"{name}I{s + 1}" if s < last else f"{name}F{s}"
        blocks += [Block(f"{name}I{s}", BlockKind.INPUT_GRAD, (d,), times[s], (0,), (), (Dependency(before),)),
                   Block(f"{name}W{s}", BlockKind.WEIGHT_GRAD, (d,), times[s], (-kept,), (),
                         (Dependency(f"{name}I{s}"),))]
    return blocks


def measure(shape: str, p: int, uneven: bool, share: float | None, effort: float) -> dict[str, Any]:
    """All schedules of one problem."""
    case, count = problem(shape, p, uneven, share)
    began = time.process_time()
    rivals: dict[str, float] = {}
    late: list[str] = []
    for name in BASELINES:
        try:
            schedule = baseline(name, case, count)
        except NotApplicable:
            continue
        if violations(schedule, limit=1):
            late.append(name)
        else:
            rivals[name] = round(schedule.makespan, 6)
    made = time.process_time()
    own = solve(case, count, time_limit=600.0, effort=effort)
    validate(own)
    fixed = {name: value for name, value in rivals.items() if name not in SEARCHES}
    best = min(fixed, key=lambda name: fixed[name]) if fixed else None
    return {"shape": shape, "devices": p, "stages": "unequal" if uneven else "equal",
            "memory": "no limit" if share is None else share, "micro_batches": count, "rivals": rivals,
            "do_not_fit": late, "weft": round(own.makespan, 6), "bound": round(own.makespan_bound, 6),
            "best_fixed": best, "gain": None if best is None else round(1 - own.makespan / fixed[best], 6),
            "worse": bool(rivals) and own.makespan > min(rivals.values()) * (1 + 1e-9),
            "cpu_seconds": {"rivals": round(made - began, 2), "weft": round(time.process_time() - made, 2)}}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts and gains, all together and by shape; which published schedule was how often the best that fits."""
    def counts(part: list[dict[str, Any]]) -> dict[str, Any]:
        gains = [row["gain"] for row in part if row["gain"] is not None]
        gaps = [row["weft"] / row["bound"] - 1 for row in part]
        return {"problems": len(part), "with_a_rival": len(gains), "worse": sum(row["worse"] for row in part),
                "better_than_fixed": sum(gain > 1e-9 for gain in gains),
                "mean_gain": round(statistics.fmean(gains), 4) if gains else None,
                "largest_gain": round(max(gains), 4) if gains else None,
                "proven": sum(gap <= 1e-9 for gap in gaps), "within_1_percent": sum(gap <= 0.01 for gap in gaps)}

    best = [row["best_fixed"] for row in rows if row["best_fixed"]]
    return {"all": counts(rows),
            "shapes": {shape: counts([row for row in rows if row["shape"] == shape])
                       for shape in dict.fromkeys(row["shape"] for row in rows)},
            "best_fixed": {name: best.count(name) for name in BASELINES if name in best}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; 1 where weft is worse than a published schedule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--effort", type=float, default=0.3, help="CP-SAT's deterministic seconds for each problem")
    parser.add_argument("--devices", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--output", type=Path, default=RESULTS / "rivals.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    asked = {(shape, p) for shape in options.shapes for p in options.devices}
    rows = [row for row in record.kept().get("rows", []) if (row["shape"], row["devices"]) not in asked]
    part = bool(rows)
    for shape in options.shapes:
        for p in options.devices:
            for uneven in (False, True):
                for share in (None, 1.0, 0.5):
                    rows.append(measure(shape, p, uneven, share, options.effort))
                    row = rows[-1]
                    print(f"{shape:26} {p} {row['stages']:8} {row['memory']!s:9} weft {row['weft']:9.2f} bound "
                          f"{row['bound']:9.2f} {row['best_fixed']} {row['rivals'].get(row['best_fixed'])} "
                          f"{row['cpu_seconds']}", flush=True)
                    record.write({"rows": rows, "summary": summary(rows)}, part=part)
    counts = summary(rows)
    print(counts["all"], counts["best_fixed"], sep="\n")
    return int(counts["all"]["worse"] > 0)


if __name__ == "__main__":
    sys.exit(main())
