"""What each rank of a test runs: a pipeline whose backends are chosen, then one whose ranks have different ones.

``python -m tests.support.backend_ranks FOLDER BACKEND BACKEND`` under two ranks; each writes what it found.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.captured_models import made
from tests.support.pipeline_ranks import MICRO_BATCHES, SIZE, two_steps
from weft.app.pipeline.of_module import pipeline
from weft.app.pipeline.run.pipe import PipelineEngine
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


def piped(**options: Any) -> PipelineEngine:
    case = made("gpt", SIZE)
    return pipeline(case.model, case.args, case.kwargs, loss=case.loss, target=case.target, cuts=CUTS,
                    micro_batches=MICRO_BATCHES, timeout=900.0, **options)


def main() -> None:
    """What one rank does."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    pipe = piped(time_limit=0.5, backends=["mine", "wrong"])
    chosen, notes = pipe.plan.solver.get("stage_backends"), pipe.notes
    pipe.close()
    # The plan above may split backwards, by what this machine measured; compiled stages cannot be split.
    pipe = piped(schedule="1f1b")
    plan = pipe.plan
    pipe.close()
    plan = replace(plan, solver={**plan.solver, "stage_backends": names})
    pipe = piped(plan=plan)
    losses, gradients = two_steps(pipe, "gpt")
    calls = sum(isinstance(part, PartCall) for module in pipe._stepping.training.stages.values()
                for part in module.modules())
    torch.save({"losses": losses, "gradients": gradients, "chosen": chosen, "notes": notes, "calls": calls},
               folder / f"{pipe.rank}.pt")
    pipe.close()


if __name__ == "__main__":
    main()
