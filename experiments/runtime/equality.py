"""The equality table: every shape, rank count, precision and kind of backward against single-process training.

Each row is one plan (the greedy schedule, or the search's own) run by gloo processes for two batches with an optimizer
that clips by the global norm, and compared with one process that trains the whole model in the same precision: the
largest difference of any gradient, of any weight at the end, of a batch's loss, and of its gradient's norm. Shapes on 2
and 4 ranks are run alone, and those on 2 ranks also as two replicas of a plan on 4. Writes ``equality.json``; exits
with 1 if an error is too large. With ``--gpu`` all ranks compute on this machine's GPU and send through shared memory
(``--output experiments/results/equality_gpu.json``); the one process that they are compared with computes on the CPU.

    python -m experiments.runtime.equality [--shapes V,M] [--ranks 2,4] [--dtypes fp64,fp32,bf16] [--gpu]
"""

from __future__ import annotations

import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.lib.provenance import Record
from experiments.lib.provenance import Row as Found
from experiments.lib.script import on_ranks, script
from tests.support.graph_training import expected, held_gradients, single_process, training
from tests.support.training_graphs import MODES, SHAPES, Case, case, varied
from weft.runtime.plan.plan import Plan, load_plan, plan_of, save_plan
from weft.runtime.ranks.session import Session, join
from weft.runtime.replay.run import run_training
from weft.solver.baselines import baseline
from weft.solver.step.search import solve

MICRO_BATCHES, STEPS, CLIP = 4, 2, 0.5
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
#: The largest difference from single-process training in the same precision. In bf16 a sum over another order, or a
#: share that is rounded before it is added to the others, is off by some 2^-8 of its terms, which are of size 1.
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-4, "bf16": 0.1}


class Row(NamedTuple):
    """One run: what is trained, on how many ranks and replicas, in which precision, with which passes, whose plan."""

    shape: str
    ranks: int
    replicas: int
    dtype: str
    mode: str
    schedule: str

    @property
    def plan_file(self) -> str:
        return f"{self.shape}-{self.ranks}-{self.mode}-{self.schedule}.json"


def rows(shapes: Sequence[str], ranks: Sequence[int]) -> Iterator[Row]:
    """All rows: every mode in fp64, full and split backwards in fp32 and bf16, replicas with split backwards, the
    search's own schedule for split backwards."""
    for shape in shapes:
        for count in ranks:
            for mode in MODES:
                yield Row(shape, count, 1, "fp64", mode, "greedy")
            yield Row(shape, count, 1, "fp64", "split", "weft")
            for dtype in ("fp32", "bf16"):
                for mode in ("full", "split"):
                    yield Row(shape, count, 1, dtype, mode, "greedy")
        if 4 in ranks:
            for dtype in ("fp64", "bf16"):
                yield Row(shape, 2, 2, dtype, "split", "greedy")


def plan_for(row: Row) -> Plan:
    """The plan that ``row`` runs."""
    problem = varied(case(row.shape, row.ranks), row.mode).problem
    schedule = (solve(problem, MICRO_BATCHES, effort=5.0) if row.schedule == "weft" else
                baseline(row.schedule, problem, MICRO_BATCHES))
    return plan_of(schedule)


def compared(made: Case, plan: Plan, session: Session, row: Row) -> Found | None:
    """Run ``row`` on this rank; on rank 0, what it found."""
    dtype = DTYPES[row.dtype]
    reference = single_process(made, dtype, MICRO_BATCHES * row.replicas, STEPS, CLIP)
    part = training(made, plan, session, dtype, STEPS, CLIP)
    assert plan.stage_groups is not None
    groups = plan.stage_groups
    errors: list[float] = []

    def compare(step: int) -> None:
        for stage in part.stages:
            wanted = expected(reference.gradients[step][stage], groups[stage], session)
            errors.append(_difference(held_gradients(part, stage), wanted))

    part.after_backward = compare
    result = run_training(plan, session, part)
    weights = max(_difference({name: p.detach() for name, p in part.stages[stage].named_parameters()},
                              expected(reference.weights[stage], groups[stage], session)) for stage in part.stages)
    found = session.gather((max(errors), weights))
    if part.masters is not None:
        part.masters.close()
    if result is None or found is None:
        return None
    return {**row._asdict(), "gradient_error": max(error for error, _ in found),
            "weight_error": max(error for _, error in found), "loss_error": _largest(result.losses, reference.losses),
            "norm_error": _largest(result.norms, reference.norms), "losses": result.losses}


def _difference(mine: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    assert mine.keys() == wanted.keys(), (mine.keys(), wanted.keys())
    return max(float((mine[name].double().cpu() - wanted[name].double()).abs().max()) for name in mine)


def _largest(mine: Sequence[float], wanted: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(mine, wanted, strict=True))


def on_rank(folder: str, replicas: int, gpu: bool) -> list[Found]:
    """One process of all runs with so many replicas; what process 0 found."""
    done = []
    device, transport = (torch.device("cuda", 0), "shared") if gpu else (None, None)
    with join(120, device, transport, replicas=replicas) as session:
        for row in (Row(*entry) for entry in json.loads((Path(folder) / "rows.json").read_text())):
            if row.replicas == replicas and row.ranks == session.world:
                found = compared(case(row.shape, row.ranks), load_plan(Path(folder) / row.plan_file), session, row)
                done += [found] if found is not None else []
    return done


def run(folder: Path, todo: Sequence[Row], gpu: bool = False) -> list[Found]:
    """Plan and run all rows; files go to ``folder``."""
    for row in {row.plan_file: row for row in todo}.values():
        save_plan(plan_for(row), folder / row.plan_file)
    (folder / "rows.json").write_text(json.dumps(todo))
    return [row for count, replicas in sorted({(row.ranks, row.replicas) for row in todo})
            for row in on_ranks(on_rank, count * replicas, str(folder), replicas, gpu, timeout=900)[0]]


@script("equality.json", shapes=",".join(SHAPES), ranks="2,4", dtypes=",".join(DTYPES), gpu=False)
def main(options: Namespace, record: Record) -> bool:
    todo = rows(options.shapes.split(","), [int(count) for count in options.ranks.split(",")])
    with tempfile.TemporaryDirectory() as folder:
        done = run(Path(folder), [row for row in todo if row.dtype in options.dtypes.split(",")], options.gpu)
    print(*map(json.dumps, done), sep="\n")
    good = all(row[error] <= TOLERANCE[row["dtype"]] for row in done
               for error in ("gradient_error", "weight_error", "loss_error", "norm_error"))
    record.write({"equal": good, "tolerance": TOLERANCE, "micro_batches": MICRO_BATCHES, "steps": STEPS,
                  "clip_norm": CLIP, "rows": done})
    print("equal to single-process training" if good else "NOT equal to single-process training", TOLERANCE)
    return not good
