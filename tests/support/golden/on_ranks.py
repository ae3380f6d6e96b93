"""What each of two ranks of the golden runs computes: plans by hand, programs with communication, sliced optimizers,
jobs that share the ranks.

``python -m tests.support.golden.on_ranks FOLDER`` under two ranks; each writes ``RANK.json``.
"""

from __future__ import annotations

import json
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.support.communication_programs import chunked, pipeline, sliced_optimizer, tensor_parallel
from tests.support.communication_ranks import run
from tests.support.golden.trained import sums, ten_digits
from tests.support.programs import attention, mlp, numbers, random_plan, transformer
from tests.support.sharded_training import Model, losses_of
from tests.support.shared_ranks import training
from weft.app.plans.run import PlanOnRank
from weft.models.transform.plan import Plan as HandPlan
from weft.runtime.communication.sharded_optimizer import ShardedOptimizer
from weft.runtime.interface.training import Training
from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.ranks.session import Session, join
from weft.runtime.share.job_runner import RunOptions
from weft.runtime.share.run import run_shared

_STEPS = 3


def by_hand() -> dict[str, Any]:
    """Outputs of plans, as far as they are here."""
    heads, hidden = "*.q *.k *.v *.attend *.out", "*.up *.act *.down"
    cut = HandPlan(transformer()).split(heads, "h", 2).split(hidden, "f", 2)
    plans = {"tensor parallel": cut.assign("*", range(2)),
             "pipeline": HandPlan(mlp(update=True)).pipeline(["up bias act", "down residual loss"], [0, 1], "b", 4),
             "random": random_plan(attention(), random.Random(3), 2)}
    found = {}
    for name, plan in plans.items():
        done = plan.preserve()
        given = {key: torch.tensor(array) for key, array in numbers(done.planned.program).items()}
        found[name] = sums({f"{term} {piece.span} {piece.value}": piece.data
                            for term, pieces in PlanOnRank(done).run(given).items() for piece in pieces})
    return found


def communication() -> dict[str, Any]:
    """Outputs of programs, whole and in chunks."""
    layer = tensor_parallel(2, 32, 8, 24)
    programs = {"layer": layer, "pipeline": pipeline(1, 8, 8), "sliced adam": sliced_optimizer("adam", 2, (16, 3))}
    programs |= {f"layer in {one.overlaps[0].chunks}": one
                 for one in chunked(layer, tuple(stage.name for stage in layer.stages), (2, 4))}
    return {name: sums(run(program)[0]) for name, program in programs.items()}


def sharded(rule: str) -> dict[str, Any]:
    """A module trained with sliced states."""
    torch.manual_seed(1)
    model, losses = Model(), []
    optimizer = ShardedOptimizer(model, rule, lr=1e-2, weight_decay=0.03, clip_norm=0.5, bucket_bytes=900, timeout=60.0)
    for step in range(_STEPS):
        loss = losses_of(model, step, 2)[torch.distributed.get_rank()]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(ten_digits(loss.item()))
    optimizer.close()
    return {"losses": losses, "weights": sums(model.state_dict())}


def shared(session: Session, plan: Plan) -> dict[str, Any]:
    """Two data parallel trainings in one set of processes, each replica with data of its own."""
    makers = {name: partial(_training, seed) for seed, name in enumerate("ab")}
    found = run_shared(plan, session, makers, options=RunOptions(0.0))
    return {} if found is None else {job.name: list(map(ten_digits, job.losses)) for job in found.jobs}


def _training(seed: int, plan: Plan, session: Session) -> Training:
    return training(seed, plan, session, steps=_STEPS)


def main(folder: Path) -> None:
    """All of it."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with join(120.0) as session:
        found = {"by hand": by_hand(), "communication": communication(),
                 "sharded optimizer": {rule: sharded(rule) for rule in ("adamw", "lamb")},
                 "shared": shared(session, load_plan(folder / "plan.json"))}
    (folder / f"{session.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
