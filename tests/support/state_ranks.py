"""What each rank of the tests of a pipeline's state runs: several pipelines one after another, with what they found.

``python -m tests.support.state_ranks FOLDER PART ...`` under ranks; each writes what the parts named found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import weft
from tests.support.captured_models import Case, made
from weft.app.pipeline.pipe import Pipeline

SIZE, MICRO_BATCHES = 8, 4


def piped(case: Case, **options: Any) -> Pipeline:
    """A pipeline of ``case``."""
    return weft.pipeline(case.model, case.args, case.kwargs, **{
        "loss": case.loss, "target": case.target, "micro_batches": MICRO_BATCHES, "schedule": "1f1b", "time_limit": 2.0,
        "timeout": 30.0, **options})


def stepped(pipe: Pipeline, seed: int, name: str = "gpt", dtype: torch.dtype = torch.float64) -> float:
    """One step on the batch of that seed."""
    batch = made(name, SIZE, seed, dtype)
    return pipe.step(*batch.args, target=batch.target, **batch.kwargs)


def accumulated(folder: Path) -> dict[str, Any]:
    """Three batches added up, clipped; an evaluation among them."""
    with piped(made("gpt", SIZE), clip_norm=0.05) as pipe:
        with pipe.accumulate(3):
            losses = [stepped(pipe, seed) for seed in range(3)]
            batch = made("gpt", SIZE)
            pipe.eval_step(*batch.args, target=batch.target)
        norm = pipe.norm
        return {"losses": losses, "norm": norm, "gradients": {n: g.clone() for n, g in pipe.gradients().items()}}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"accumulated": accumulated}


def main() -> None:
    """What one rank does."""
    folder, port = Path(sys.argv[1]), int(os.environ["MASTER_PORT"])
    for number, part in enumerate(sys.argv[2:]):
        os.environ["MASTER_PORT"] = str(port + number)  # each has a store of its own
        torch.save(PARTS[part](folder), folder / f"{part}.{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
