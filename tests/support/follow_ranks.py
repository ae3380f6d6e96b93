"""What each rank of a test runs: two plans of a small model, followed, and left and taken up again.

``python -m tests.support.follow_ranks FOLDER PART`` under two ranks; each writes what it found.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import weft
from tests.support.captured_models import made
from tests.support.pipeline_ranks import EPS, MICRO_BATCHES, SIZE
from weft.runtime.plan.plan import Plan, load_plan, save_plan

STEPS = 6
#: From which step on which of the two plans runs.
SWITCHES = [(0, 0), (2, 1), (4, 0)]
#: Experts that a token used in each step, as a gate would show it: plan 1 is due after the second step.
DENSITIES, BORDERS = [8.0, 1.0, 1.0, 1.0, 1.0, 1.0], [6.0]


def pipeline(**options: Any) -> Any:
    case = made("gpt", SIZE)
    return weft.pipeline(case.model, case.args, case.kwargs, loss=case.loss, target=case.target,
                         micro_batches=MICRO_BATCHES, time_limit=0.5, timeout=900.0, **options)


def train(folder: Path, plans: list[Plan], part: str) -> dict[str, Any]:
    """Steps, followed by ``part``: from a checkpoint where there is one, and left at the third step by ``killed``."""
    with pipeline(plan=plans[0]) as pipe:
        decayed: list[torch.nn.Parameter] = []
        others: list[torch.nn.Parameter] = []
        for name, parameter in pipe.named_parameters():
            (decayed if name.endswith("weight") else others).append(parameter)
        optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "lr": 2e-3}],
                                      lr=1e-3, eps=EPS)
        if part == "density":
            pipe.follow(plans, optimizer, borders=BORDERS)
        elif part != "plain":
            pipe.follow(plans, optimizer, switches=SWITCHES)
        saves = folder / "saves" if part in ("killed", "resumed") else folder / part
        pipe.resume(saves, optimizer)
        losses, ran = [], []
        for step in range(pipe.steps, 3 if part == "killed" else STEPS):
            batch = made("gpt", SIZE, seed=step)
            losses.append(pipe.step(*batch.args, target=batch.target, **batch.kwargs))
            ran.append(pipe.plan.solver["cuts"])
            optimizer.step()
            optimizer.zero_grad()
            if part == "density":
                pipe.measured(DENSITIES[step])
        if part == "killed":
            pipe.save(saves, optimizer)
        received = [] if pipe._following is None else [each[2] for each in pipe._following.switches]
        return {"losses": losses, "ran": ran, "state": pipe.state_dict(), "received": received}


def main() -> None:
    """What one rank does."""
    folder = Path(sys.argv[1])
    plans: list[Plan] = []
    for number, cuts in enumerate(([20], [40])):
        with pipeline(cuts=cuts, schedule="1f1b") as pipe:
            plans.append(pipe.plan)
            if pipe.rank == 0:
                save_plan(pipe.plan, folder / f"{number}.json")
            rank = pipe.rank
    plans = [plans[0], load_plan(folder / "1.json") if rank == 0 else plans[1]]
    for part in ("plain", "steps", "density", "killed", "resumed"):
        torch.save(train(folder, plans, part), folder / f"{part}.{rank}.pt")


if __name__ == "__main__":
    main()
