"""What happens when something goes wrong: three ranks train a small chain by 1F1B under ``--timeout 4``; rank 1 does
what the fault says when micro-batch 2 of the second batch comes to its stage.

``python -m tests.support.faults FOLDER`` is one rank.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.support.builders import pipeline
from weft.runtime import Boundary, Plan, Training, plan_of
from weft.solver.baselines import baseline

RANKS, MICRO_BATCHES, WIDTH, TIMEOUT = 3, 6, 8, 4.0
#: By fault, what some rank says. Where rank 1 is handed another plan, nothing begins.
FAULTS = {
    "killed": r"lost rank 1 .*micro-batch \d", "hung": r"gave up after .* of .*(1F2.*micro-batch 2)",
    "nan": r"rank 2: the loss of micro-batch 2 in batch 1 is nan",
    "shape": rf"rank 1: 1F2 gives \(2, {WIDTH + 1}\) .*boundaries\[1\] says \(2, {WIDTH}\)",
    "plan": r"rank 1 replays another plan than rank 0"}


class Faulty(nn.Module):
    """A layer, and stage 1's fault when micro-batch 2 of the second batch comes."""

    def __init__(self, width: int, stage: int) -> None:
        super().__init__()
        self.layer, self.stage, self.calls = nn.Linear(width, width), stage, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y: Tensor = torch.tanh(self.layer(x))
        if self.stage == 1 and self.calls == MICRO_BATCHES + 3:
            return _fault(y)
        return y


def _fault(y: Tensor) -> Tensor:
    name, folder = os.environ["WEFT_FAULT"], Path(os.environ["WEFT_FAULT_FOLDER"])
    (folder / "moment").write_text(repr(time.time()))
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hung":
        time.sleep(3600)
    if name == "nan":
        return y * float("nan")
    if name == "shape":
        return torch.cat([y, y[:, :1]], 1)
    return y


def training(plan: Plan, rank: int) -> Training:
    """Rank ``rank``'s part."""
    torch.manual_seed(rank)
    stage = Faulty(WIDTH, rank)

    def batch(step: int, micro_batch: int) -> Tensor:
        return torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(100 * step + micro_batch))

    return Training({rank: stage}, [Boundary((2, WIDTH))] * (RANKS - 1), batch, targets=batch, steps=3,
                    loss=lambda y, target: ((y - target) ** 2).mean(),
                    optimizer=torch.optim.SGD(stage.parameters(), lr=0.01))


def chain(micro_batches: int = MICRO_BATCHES) -> Plan:
    """1F1B on a chain of :data:`RANKS` stages of 4 ms forwards and 8 ms backwards."""
    problem = pipeline(range(RANKS), forward=4, backward=8)
    return plan_of(baseline("1f1b", replace(problem, time_unit="ms"), micro_batches))


def rank_main(folder: Path) -> None:
    """One rank, as ``weft replay`` runs it."""
    from weft.cli.main import main

    name = "other.json" if os.environ["WEFT_FAULT"] == "plan" and os.environ["RANK"] == "1" else "plan.json"
    sys.exit(main(["replay", str(folder / name), "--stages", "tests.support.faults:training",
                   "--timeout", str(TIMEOUT), "--transport", os.environ["WEFT_TRANSPORT"]]))


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]))
