"""What each rank of a test runs: a pipeline whose backends are chosen, then one whose ranks have different ones.

``python -m tests.support.backend_ranks FOLDER BACKEND BACKEND`` under two ranks; each writes what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import weft
from tests.support.captured_models import made
from tests.support.pipeline_ranks import EPS, MICRO_BATCHES, SIZE
from weft.runtime.backends.build import PartCall
from weft.runtime.backends.graph import GraphPart
from weft.runtime.backends.registry import backend

#: The second stage, which inductor compiles, is short.
CUTS = [40]


@backend("wrong", patterns=[("linear",)], trains=True)
def wrong(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """Half of what it should be."""
    return lambda *given: tuple(0.5 * result for result in part.module.forward(*given))


@backend("mine", patterns=[("linear", "gelu"), ("layer_norm",)], trains=True)
def mine(part: GraphPart) -> Callable[..., Sequence[Tensor]]:
    """What torch computes."""
    forward: Callable[..., Sequence[Tensor]] = part.module.forward
    return forward


def main() -> None:
    """What one rank does."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    case = made("gpt", SIZE)
    pipe = weft.pipeline(case.model, case.args, case.kwargs, loss=case.loss, target=case.target, cuts=CUTS,
                         micro_batches=MICRO_BATCHES, time_limit=0.5, timeout=900.0,
                         backends=["mine", "wrong"])
    chosen, notes = pipe.plan.solver.get("stage_backends"), pipe.notes
    pipe.close()
    # The plan above may split backwards, by what this machine measured; compiled stages cannot be split.
    pipe = weft.pipeline(case.model, case.args, case.kwargs, loss=case.loss, target=case.target, cuts=CUTS,
                         micro_batches=MICRO_BATCHES, schedule="1f1b", timeout=900.0)
    plan = pipe.plan
    pipe.close()
    plan = replace(plan, solver={**plan.solver, "stage_backends": names})
    pipe = weft.pipeline(case.model, case.args, case.kwargs, loss=case.loss, target=case.target, cuts=CUTS,
                         micro_batches=MICRO_BATCHES, plan=plan, timeout=900.0)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3, eps=EPS)
    losses, gradients = [], []
    for step in range(2):
        batch = made("gpt", SIZE, seed=step)
        losses.append(pipe.step(*batch.args, target=batch.target, **batch.kwargs))
        gradients.append({n: g.clone() for n, g in pipe.gradients().items()})
        optimizer.step()
        optimizer.zero_grad()
    calls = sum(isinstance(part, PartCall) for module in pipe._stepping.training.stages.values()
                for part in module.modules())
    torch.save({"losses": losses, "gradients": gradients, "chosen": chosen, "notes": notes, "calls": calls},
               folder / f"{pipe.rank}.pt")
    pipe.close()


if __name__ == "__main__":
    main()
