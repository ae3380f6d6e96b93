"""GPT-1.3B at five memory caps: how many micro-batches recompute, and which, against all or none of them.

    python -m experiments.step.recompute_classes [--seconds 40]

The demo's model on 4 V100, measured costs, one stage a GPU, 8 micro-batches, at each cut that weft offers for either
kind under a cap. A micro-batch of class *keep* holds its activations to its backward, one of class *recompute* each
layer's input alone, and runs the forward again in the backward. All keep, all recompute, and a search that decides of
which class each is, with the bound over all sequences of classes; each the best of all cuts.

Beside it recomputing ahead of time: on a V of 4 devices with F = R = 1 and B = 2, 8 micro-batches, R may be a block of
its own, which runs before its backward's turn has come, or be fused into it. A choice of the problem; both proven.
Writes recompute_classes.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.provenance import RESULTS, Record
from weft.models.candidates.build import bytes_per_parameter, candidate_of, candidates
from weft.models.candidates.gpu_costs import gpu_costs
from weft.models.candidates.lengths import with_classes
from weft.models.candidates.stage_split import NoSplit, split_at
from weft.models.candidates.stages import MemoryRule
from weft.models.layers.cluster import model_cluster
from weft.models.spec.spec import Spec, demo_spec
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.choices.solve import solve_wide
from weft.solver.problem import BlockKind, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, solve
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

MICRO_BATCHES = 8
CAPS = (14, 16, 18, 20, 24)
_GIB = 1024**3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each search")
    parser.add_argument("--caps", nargs="+", type=int, default=list(CAPS), help="GiB of a GPU")
    parser.add_argument("--output", type=Path, default=RESULTS / "recompute_classes.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [_measure(cap, options.seconds) for cap in options.caps]
    ahead = _ahead(options.seconds)
    _show(rows, ahead)
    gains = [row["gain"] for row in rows]
    gaps = [row["mixed"]["gap"] for row in rows if row["mixed"]["gap"] is not None]
    record.write({"seconds": options.seconds, "micro_batches": MICRO_BATCHES, "summary": {
        "caps": len(rows), "mixed is shorter": sum(gain > 1e-6 for gain in gains), "largest gain": max(gains),
        "widest gap": max(gaps, default=None)}, "rows": rows, "ahead": ahead})
    return 0


def _measure(cap: int, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"cap GiB": cap}
    cuts = _both(cap)
    for name, kind in (("keep", 0), ("recompute", 1)):
        found = []
        for pair in cuts:
            with suppress(Infeasible):
                found.append(solve(pair[kind], MICRO_BATCHES, time_limit=seconds / len(cuts)))
        row[name] = _shown(found)
    began = time.process_time()
    mixed = [solve_sequence(with_classes("keep or recompute", {"keep": keep, "recompute": recompute}), MICRO_BATCHES,
                            any_class=True, time_limit=seconds / len(cuts)) for keep, recompute in cuts]
    best = min(mixed, key=lambda schedule: schedule.makespan)
    assert best.rounds is not None
    classes = list(map(str, best.rounds.run.classes[None]))
    row["mixed"] = {**_shown(mixed), "recomputed": classes.count("recompute"), "classes": classes,
                    "cpu_seconds": round(time.process_time() - began, 1)}
    uniform = min(row[name]["ms"] for name in ("keep", "recompute") if row[name]["ms"] is not None)
    return {**row, "cuts": len(cuts), "gain": round(1 - row["mixed"]["ms"] / uniform, 4)}


def _both(cap: int) -> list[tuple[Problem, Problem]]:
    """Chains with full backwards under a cap, keeping and recomputing, at each cut that either is offered with."""
    spec = demo_spec()
    assert spec.training is not None
    training = spec.training.model_copy(update={"recompute": True})
    spec = spec.model_copy(update={
        "cluster": spec.cluster.model_copy(update={"memory": (cap * _GIB,)}),
        "placement": spec.placement.model_copy(update={"shapes": ("chain",), "backward": ("full",)})})
    again = spec.model_copy(update={"training": training})
    cuts: dict[tuple[tuple[str, ...], ...], None] = {}
    for source in (spec, again):
        with suppress(NoSplit):
            cuts |= dict.fromkeys(candidate.layers_of_stage for candidate in candidates(source))
    return [(_at(cut, spec), _at(cut, again)) for cut in cuts]


def _at(layers_of_stage: Sequence[Sequence[str]], spec: Spec) -> Problem:
    costs, cluster = gpu_costs(spec), model_cluster(spec.cluster)
    cut = tuple(accumulate(map(len, layers_of_stage), initial=0))
    split = split_at("chain", costs.layers, cut, cluster.memory,
                     rule=MemoryRule("full", bytes_per_parameter(spec), cluster.reserve))
    return candidate_of(spec, split, "full", "least", costs.layers[0], cluster).problem


def _ahead(seconds: float) -> dict[str, Any]:
    """Recomputation fused into the backward, as a block of its own, and whichever of the two is shorter."""
    wide = v_that_recomputes()
    found = solve_wide(wide, MICRO_BATCHES, time_limit=seconds)
    row: dict[str, Any] = {"chosen": {**found.choices, "makespan": found.makespan, "bound": found.makespan_bound}}
    for option in wide.choices["recompute"]:
        alone = solve(wide.under({"recompute": option}).plain(), MICRO_BATCHES, time_limit=seconds)
        row[option] = {"makespan": alone.makespan, "bound": alone.makespan_bound}
    return row


def v_that_recomputes(devices: int = 4) -> WideProblem:
    """A V whose stages take 1 forward, 1 to recompute and 2 backward; R is ahead of its backward, or fused into it."""
    last = 2 * devices - 1
    on = [*range(devices), *reversed(range(devices))]
    blocks = [WideBlock(f"F{s}", BlockKind.FORWARD, (on[s],), 1, after=(WideDependency(f"F{s - 1}"),) if s else ())
              for s in range(last + 1)]
    for s in reversed(range(last + 1)):
        before = WideDependency(f"B{s + 1}" if s < last else f"F{s}")
        ahead, fused = {"recompute": "ahead"}, {"recompute": "fused"}
        blocks += [WideBlock(f"R{s}", BlockKind.RECOMPUTE, (on[s],), 1, after=(WideDependency(f"F{s}"),), when=ahead),
                   WideBlock(f"B{s}", BlockKind.BACKWARD, (on[s],), 2, after=(before, WideDependency(f"R{s}")),
                             when=ahead),
                   WideBlock(f"B{s}", BlockKind.BACKWARD, (on[s],), 3, after=(before,), when=fused)]
    return WideProblem("V", tuple(Device(f"gpu{d}") for d in range(devices)), tuple(blocks),
                       choices={"recompute": ("fused", "ahead")})


def _shown(found: Sequence[Schedule]) -> dict[str, Any]:
    """The shortest of several cuts' schedules, with the least bound."""
    if not found:
        return {"ms": None}
    best, bound = min(schedule.makespan for schedule in found), min(schedule.makespan_bound for schedule in found)
    return {"ms": round(best * 1e3, 3), "bound": round(bound * 1e3, 3),
            "gap": round(best / bound - 1, 4) if bound else None}


def _show(rows: list[dict[str, Any]], ahead: dict[str, Any]) -> None:
    table = Table(title=f"GPT-1.3B, 4 V100, {MICRO_BATCHES} micro-batches: ms per step (gap)")
    for header in ("cap GiB", "all keep", "all recompute", "mixed", "recomputed", "gain"):
        table.add_column(header, justify="right")
    for row in rows:
        table.add_row(str(row["cap GiB"]), *(_cell(row[name]) for name in ("keep", "recompute", "mixed")),
                      str(row["mixed"]["recomputed"]), f"{row['gain']:.1%}")
    console = Console(width=140)
    console.print(table)
    console.print(f"V of 4, recomputation fused {ahead['fused']}, ahead {ahead['ahead']}, chosen {ahead['chosen']}")


def _cell(entry: dict[str, Any]) -> str:
    gap = "no bound in time" if entry["gap"] is None else f"{entry['gap']:.1%}"
    return "-" if entry["ms"] is None else f"{entry['ms']:.1f} ({gap})"


if __name__ == "__main__":
    raise SystemExit(main())
