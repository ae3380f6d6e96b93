"""What each stage keeps of its activations, chosen with the schedule, against all stages alike and a plan made before.

    python -m experiments.step.activation_choices [--caps 9 12] [--effort 6] [--output activation_choices.json]

GPT-1.3B on four V100 (the demo's model), 8 micro-batches, a chain of stages, at memory caps from tight to ample. All
rows of a cap have the same memory and the same cuts, those that are found for stages that keep and for stages that
recompute; the least step over the cuts counts, and the least bound. ``keep`` and ``recompute``: every stage the same,
the backward whole or split for all. ``decided``: cuts and memory planned operator by operator before the schedule is
searched (``placement.memory: decide``). ``per micro-batch``: weft chooses which micro-batches recompute, on all stages,
whose backwards are split. ``per stage``: for each stage to keep or to recompute in its backward; ``ahead``: a
recomputation may also be a block of its own that runs while the GPU waits; ``half``: or half of its layers recompute;
``B or I+W``: each stage also has its backward whole or split. A bound is proven for what a row covers: all assignments
on these cuts. Plans of ``decided`` and searches of ``per micro-batch`` have 20 seconds of the clock and need not repeat
exactly. Some ``--rows`` are written beside those that the file has. Writes activation_choices.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.lib.provenance import RESULTS, Record
from weft.models.candidates.alternatives import by_micro_batch, open_candidates, recomputing_spec
from weft.models.candidates.build import candidates
from weft.models.candidates.memory_candidates import decided_candidates
from weft.models.candidates.stage_split import NoSplit
from weft.models.spec.sections import Placement
from weft.models.spec.spec import Spec, demo_spec
from weft.solver.choices.sequences.solve import solve_sequence
from weft.solver.choices.solve import solve_wide
from weft.solver.judge.validate import validate
from weft.solver.placement.memory.plan_memory import NoMemoryPlan
from weft.solver.problem import Problem
from weft.solver.schedule import Schedule
from weft.solver.step.search import Infeasible, NoneFound, solve
from weft.solver.wide.problem import WideProblem

CAPS = (9.0, 12.0, 15.0, 18.0, 24.0)
#: Seconds of the clock for plans and for orders of micro-batches, and at most for another search.
_PLANNING, _LIMIT = 20.0, 120.0
#: Row -> what ``placement`` says for it.
PER_STAGE: dict[str, dict[str, tuple[str, ...]]] = {
    "per stage": {"choices": ("activations",), "activations": ("keep", "recompute")},
    "per stage, ahead": {"choices": ("activations",), "activations": ("keep", "recompute", "recompute-ahead")},
    "per stage, ahead, half": {"choices": ("activations",),
                               "activations": ("keep", "recompute", "recompute-half", "recompute-ahead")},
    "per stage, ahead, B or I+W": {"choices": ("activations", "backward"),
                                   "activations": ("keep", "recompute", "recompute-ahead")}}
_PER_MICRO_BATCH = "per micro-batch"
_CHOOSING = (_PER_MICRO_BATCH, *PER_STAGE)
ROWS = ("keep", "recompute", "decided", *_CHOOSING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--caps", type=float, nargs="+", default=CAPS, help="GiB of each GPU")
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--effort", type=float, default=6.0)
    parser.add_argument("--output", type=Path, default=RESULTS / "activation_choices.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    rows = [_row(cap, name, options.effort) for cap in options.caps for name in options.rows]
    _show(rows, options.rows)
    whole = set(options.rows) == set(ROWS)
    if not whole:  # beside what an earlier run found
        places = {(row["cap_gib"], row["row"]): row for row in [*record.kept().get("rows", ()), *rows]}
        rows = [places[key] for key in sorted(places, key=lambda key: (key[0], ROWS.index(key[1])))]
    record.write({"effort": options.effort, "micro_batches": demo_spec().micro_batches,
                  "caps_gib": sorted({row["cap_gib"] for row in rows}), "summary": _summary(rows), "rows": rows},
                 part=not whole)
    return 0


def _row(cap: float, name: str, effort: float) -> dict[str, Any]:
    """The best of what ``name`` stands for at ``cap`` GiB, in seconds."""
    open_ = PER_STAGE["per stage" if name == _PER_MICRO_BATCH else name] if name in _CHOOSING else {}
    spec, began = _spec(cap, **open_), time.process_time()
    cuts: list[dict[str, Any]] = []
    refusal = ""
    try:
        for problem, cut in _problems(spec, name):
            cuts.append({"cut": cut, **_searched(problem, spec.micro_batches, effort)})
    except (NoSplit, NoMemoryPlan) as error:
        refusal = str(error)
    steps = [entry["step"] for entry in cuts if entry["step"] is not None]
    bounds = [entry["bound"] for entry in cuts if entry["bound"] is not None]
    row = {"cap_gib": cap, "row": name, "step": min(steps, default=None), "bound": min(bounds, default=None),
           "proven": bool(steps) and min(bounds) >= min(steps) * (1 - 1e-9), "cuts": cuts,
           "cpu_seconds": round(time.process_time() - began, 2), **({"refusal": refusal} if refusal else {})}
    print(f"{cap:g} GiB, {name}: {row['step']} (bound {row['bound']})", flush=True)
    return row


def _spec(cap: float, **more: tuple[str, ...]) -> Spec:
    spec = demo_spec()
    return spec.model_copy(update={
        "cluster": spec.cluster.model_copy(update={"memory": (round(cap * 2**30),)}),
        "placement": Placement(shapes=("chain",), **more)})  # type: ignore[arg-type]


def _problems(spec: Spec, name: str) -> list[tuple[Problem | WideProblem, list[int]]]:
    if name in _CHOOSING:
        opened = [(found.problem, _cut(found.plain.layers_of_stage)) for found in open_candidates(spec)
                  if name != _PER_MICRO_BATCH or found.backward == ("split",)]
        return [(by_micro_batch(problem) if name == _PER_MICRO_BATCH else problem, cut) for problem, cut in opened]
    made: Callable[[], Any] = {
        "keep": lambda: candidates(spec), "recompute": lambda: candidates(recomputing_spec(spec)),
        "decided": lambda: decided_candidates(spec, time_limit=_PLANNING)}[name]
    return [(found.problem, _cut(found.layers_of_stage)) for found in made()]


def _cut(layers: Sequence[Sequence[str]]) -> list[int]:
    return [len(names) for names in layers]


def _searched(problem: Problem | WideProblem, micro_batches: int, effort: float) -> dict[str, Any]:
    try:
        found: Schedule = (solve(problem, micro_batches, effort=effort, time_limit=_LIMIT)
                           if isinstance(problem, Problem) else
                           solve_sequence(problem, micro_batches, any_class=True, time_limit=_PLANNING)
                           if problem.classes else
                           solve_wide(problem, micro_batches, effort=effort, time_limit=_LIMIT))
    except Infeasible as refusal:
        return {"step": None, "bound": 0.0 if isinstance(refusal, NoneFound) else None, "refusal": str(refusal)}
    validate(found)
    return {"step": round(found.makespan, 9), "bound": round(found.makespan_bound, 9),
            "peak_gib": round(max(float(peak) for peak in found.peak_memory) / 2**30, 3),
            **({"choices": dict(found.choices), "searched": found.solver["searched"]} if found.choices else {}),
            **({"classes": found.rounds.run.to_json()} if found.rounds is not None else {})}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By cap, how much shorter the step is where stages or micro-batches choose: than the best of all stages alike."""
    told: dict[str, Any] = {}
    for cap in dict.fromkeys(row["cap_gib"] for row in rows):
        step = {row["row"]: row["step"] for row in rows if row["cap_gib"] == cap and row["step"] is not None}
        alike = min((step[name] for name in ("keep", "recompute") if name in step), default=None)
        own = min((step[name] for name in _CHOOSING if name in step), default=None)
        if alike is not None and own is not None:
            told[f"{cap:g} GiB"] = {
                "shorter than all alike": round(1 - own / alike, 4),
                **({"shorter than decided": round(1 - own / step["decided"], 4)} if "decided" in step else {})}
    return told


def _show(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    table = Table(title="GPT-1.3B on 4 V100, chain, 8 micro-batches: step in ms (bound); * proven")
    for heading in ("GiB", *names):
        table.add_column(heading, justify="right")
    for cap in dict.fromkeys(row["cap_gib"] for row in rows):
        own = {row["row"]: row for row in rows if row["cap_gib"] == cap}
        table.add_row(f"{cap:g}", *(_cell(own[name]) for name in names))
    Console(width=150).print(table)


def _cell(row: dict[str, Any]) -> str:
    if row["step"] is None:
        return "no room" if "refusal" in row or row["bound"] is None else "none found"
    if row["proven"]:
        return f"{row['step'] * 1e3:.1f}*"
    return f"{row['step'] * 1e3:.1f} ({row['bound'] * 1e3:.1f})"


if __name__ == "__main__":
    main()
