"""What a training loop has, on two ranks: ``python -m tests.support.loop_ranks FOLDER PART ...``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.optim.lr_scheduler import MultiStepLR

from tests.support.captured_models import made
from tests.support.pipeline_ranks import EPS
from tests.support.state_ranks import SIZE, piped, stepped
from weft.app.pipeline.run.pipe import Pipeline


def trained(pipe: Pipeline, optimizer: torch.optim.Optimizer, scheduler: MultiStepLR, seeds: range) -> list[float]:
    """Losses of steps whose learning rate is scheduled."""
    losses = []
    for seed in seeds:
        losses.append(stepped(pipe, seed))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def of_schedulers(folder: Path) -> dict[str, Any]:
    """Four steps, and the last two from a checkpoint, in other stages; the last state as a DCP, too."""
    def ready(pipe: Pipeline, lr: float) -> tuple[torch.optim.Optimizer, MultiStepLR]:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=lr, eps=EPS)
        return optimizer, MultiStepLR(optimizer, [1, 3], gamma=0.1)

    with piped(made("gpt", SIZE), cuts=[20]) as pipe:
        optimizer, scheduler = ready(pipe, 1e-2)
        losses = trained(pipe, optimizer, scheduler, range(2))
        pipe.save(folder / "scheduled", optimizer, extra={"rate": scheduler})
        losses += trained(pipe, optimizer, scheduler, range(2, 4))
    with piped(made("gpt", SIZE), cuts=[34]) as pipe:
        optimizer, scheduler = ready(pipe, 1.0)
        behind = pipe.resume(folder / "scheduled", optimizer, extra={"rate": scheduler})
        again = trained(pipe, optimizer, scheduler, range(2, 4))
        dcp.save(pipe.state_dict(whole=False), checkpoint_id=folder / "dcp")  # type: ignore[attr-defined]
        return {"losses": losses, "again": again, "behind": behind, "rate": scheduler.get_last_lr(),
                "state": pipe.state_dict()}


def in_halves(folder: Path) -> dict[str, Any]:
    """Modules in fp16: steps before and after an overflow, which leaves weights as they are; and a checkpoint."""
    with piped(made("gpt", SIZE, dtype=torch.float32), dtype=torch.float16) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
        losses, scales, gradients, changes = [], [], [], []
        for seed in range(4):
            before = pipe.state_dict()
            if seed == 2:  # so large that gradients overflow
                scaling = pipe._stepping.training.scaling
                assert scaling is not None
                scaling.value = 2.0**24
            losses.append(stepped(pipe, seed, dtype=torch.float32))
            scales.append(pipe.loss_scale)
            gradients.append(len(pipe.gradients()))
            optimizer.step()
            optimizer.zero_grad()
            after = pipe.state_dict()
            changes.append(max(float((after[name] - value).abs().max()) for name, value in before.items()))
        pipe.save(folder / "halves", optimizer)
        found = {"losses": losses, "scales": scales, "gradients": gradients, "changes": changes}
    with piped(made("gpt", SIZE, dtype=torch.float32), dtype=torch.float16) as pipe:
        pipe.resume(folder / "halves", torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS))
        return {**found, "resumed": pipe.loss_scale}


def profiled(folder: Path) -> dict[str, Any]:
    """The names of ranges in a profile of a step."""
    with piped(made("gpt", SIZE)) as pipe:
        stepped(pipe, 0)
        with torch.profiler.profile() as profile:
            stepped(pipe, 1)
        names = {event.name for event in profile.events() or () if event.name.startswith("weft:")}
        return {"names": sorted(names), "plan": [str(i) for i in pipe._stepping.plan.program.ranks[pipe.rank]]}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "of_schedulers": of_schedulers, "in_halves": in_halves, "profiled": profiled}


def main() -> None:
    """What one rank does."""
    folder, port = Path(sys.argv[1]), int(os.environ["MASTER_PORT"])
    for number, part in enumerate(sys.argv[2:]):
        os.environ["MASTER_PORT"] = str(port + number)  # each has a store of its own
        torch.save(PARTS[part](folder), folder / f"{part}.{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
