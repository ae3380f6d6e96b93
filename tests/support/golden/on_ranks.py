"""What each of two ranks of the golden runs computes: plans by hand, programs with communication, sliced optimizers.

``python -m tests.support.golden.on_ranks FOLDER`` under two ranks; each writes ``RANK.json``.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch

from tests.support.communication_programs import chunked, pipeline, sliced_optimizer, tensor_parallel
from tests.support.communication_ranks import run
from tests.support.golden.trained import sums, ten_digits
from tests.support.programs import attention, mlp, numbers, random_plan, transformer
from tests.support.sharded_training import Model, losses_of
from weft.app.plans.run import PlanOnRank
from weft.models.transform.plan import TransformPlan as HandPlan
from weft.runtime.communication.sharded_optimizer import ShardedOptimizer
from weft.runtime.ranks.session import join

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
    optimizer = ShardedOptimizer(model, rule, lr=1e-2, weight_decay=0.03, clip_norm=0.5, bucket_bytes=900,
                                 timeout=900.0)
    for step in range(_STEPS):
        loss = losses_of(model, step, 2)[torch.distributed.get_rank()]
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(ten_digits(loss.item()))
    optimizer.close()
    return {"losses": losses, "weights": sums(model.state_dict())}


def main(folder: Path) -> None:
    """All of it."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    with join(900.0) as session:
        found = {"by hand": by_hand(), "communication": communication(),
                 "sharded optimizer": {rule: sharded(rule) for rule in ("adamw", "lamb")}}
    (folder / f"{session.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
