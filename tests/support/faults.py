"""What happens when something goes wrong: every fault, how long until all ranks have stopped, and what they say.

Three ranks train a small chain by 1F1B under ``--timeout 4``; rank 1 does what the fault says when micro-batch 2 of the
second batch comes to its stage. ``python -m tests.support.faults FOLDER`` is one rank.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from weft.runtime.checkpoint.signature import signed
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan, plan_of, save_plan
from weft.runtime.ranks.launch import Ended, launch_local
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

RANKS, MICRO_BATCHES, WIDTH, TIMEOUT = 3, 6, 8, 4.0


@dataclass(frozen=True)
class Fault:
    """``name`` of what goes wrong; all ranks stop within ``stops`` seconds; some rank's message matches ``says``."""

    name: str
    what: str
    stops: float
    says: str


FAULTS = (
    Fault("killed", "rank 1 is killed (SIGKILL)", TIMEOUT, r"lost rank 1 .*micro-batch \d"),
    Fault("hung", "rank 1 hangs in a forward", 2 * TIMEOUT,
          r"gave up after .* of .*(1F2.*micro-batch 2)"),
    Fault("raised", "rank 1's stage raises an exception", TIMEOUT,
          r"rank 1: ZeroDivisionError while running 1F2 \(micro-batch 2\): no such luck"),
    Fault("nan", "the loss is NaN", TIMEOUT, r"rank 2: the loss of micro-batch 2 in batch 1 is nan"),
    Fault("shape", "stage 1 gives another shape than planned", TIMEOUT,
          rf"rank 1: 1F2 gives \(2, {WIDTH + 1}\) .*boundaries\[1\] says \(2, {WIDTH}\)"),
    Fault("world", "two ranks are started for a plan of three", 0, r"the plan is for 3 ranks, but 2 were started"),
    Fault("model", "the plan was made for another model", 0, r"the plan was made for another model: stage \d has"),
    Fault("plan", "rank 1 is handed another plan", 0, r"rank 1 replays another plan than rank 0"),
    Fault("memory", "the messages' buffers do not fit on the device", 0,
          r"rank \d's blocks hold \d+ bytes and its \d+ message buffers \d+ more, but device"),
)


@dataclass(frozen=True)
class Outcome:
    """``seconds`` from the fault until the last rank was gone; for what is refused before the launch, ``None``."""

    fault: str
    what: str
    transport: str
    seconds: float | None
    allowed: float
    codes: list[int]
    message: str
    good: bool


# -- the ranks ---------------------------------------------------------------------------------------------------------


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
    if name == "raised":
        raise ZeroDivisionError("no such luck")
    if name == "nan":
        return y * float("nan")
    if name == "shape":
        return torch.cat([y, y[:, :1]], 1)
    return y


def training(plan: Plan, rank: int, width: int = WIDTH) -> Training:
    """Rank ``rank``'s part."""
    torch.manual_seed(rank)
    stage = Faulty(width, rank)

    def batch(step: int, micro_batch: int) -> Tensor:
        return torch.randn(2, width, generator=torch.Generator().manual_seed(100 * step + micro_batch))

    return Training({rank: stage}, [Boundary((2, width))] * (RANKS - 1), batch, targets=batch, steps=3,
                    loss=lambda y, target: ((y - target) ** 2).mean(),
                    optimizer=torch.optim.SGD(stage.parameters(), lr=0.01))


def chain(memory: int | None = None, micro_batches: int = MICRO_BATCHES) -> Plan:
    """1F1B on a chain of :data:`RANKS` stages of 4 ms forwards and 8 ms backwards."""
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (s,), 4, (1,), (), (Dependency(f"F{s - 1}"),) if s else ())
              for s in range(RANKS)]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (s,), 8, (-1,), (),
                     (Dependency(f"B{s + 1}" if s < RANKS - 1 else f"F{s}"),)) for s in reversed(range(RANKS))]
    devices = tuple(Device(f"rank {r}", memory) for r in range(RANKS))
    return plan_of(baseline("1f1b", Problem("faults", devices, tuple(blocks), (), "ms", "B"), micro_batches))


def rank_main(folder: Path) -> None:
    """One rank, as ``weft replay`` runs it."""
    from weft.cli.main import main

    name = "other.json" if os.environ["WEFT_FAULT"] == "plan" and os.environ["RANK"] == "1" else "plan.json"
    reserve = ["--reserve", "1"] if os.environ["WEFT_FAULT"] == "memory" else []
    sys.exit(main(["replay", str(folder / name), "--stages", "tests.support.faults:training",
                   "--timeout", str(TIMEOUT), "--transport", os.environ["WEFT_TRANSPORT"], *reserve]))


# -- the table ---------------------------------------------------------------------------------------------------------


def provoke(fault: Fault, transport: str, launch: Callable[..., Sequence[Ended]] = launch_local) -> Outcome:
    """Run into ``fault`` and see what happens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = chain(memory=3 if fault.name == "memory" else None)
        if fault.name == "model":
            plan = signed(plan, lambda plan, rank: training(plan, rank, WIDTH + 1))
        save_plan(plan, folder / "plan.json")
        save_plan(chain(micro_batches=MICRO_BATCHES + 1), folder / "other.json")
        begun = time.time()
        ended = launch(RANKS - (fault.name == "world"), [sys.executable, "-m", "tests.support.faults", name],
                       timeout=90, environment={
                           "WEFT_FAULT": fault.name, "WEFT_FAULT_FOLDER": name, "WEFT_TRANSPORT": transport})
        moment = folder / "moment"
        last = begun + max(end.seconds for end in ended)
        seconds = last - float(moment.read_text()) if fault.stops and moment.exists() else None
    lines = [line for end in ended for line in end.errors.splitlines() if line.startswith("weft: ")]
    named = [line for line in lines if re.search(fault.says, line)]
    survivors = [rank for rank, end in enumerate(ended) if end.code >= 0]
    good = bool(named) and not any(end.late for end in ended) and all(ended[rank].code > 0 for rank in survivors) and (
        (seconds is None) == (fault.stops == 0)) and (seconds is None or seconds <= fault.stops)
    return Outcome(fault.name, fault.what, transport, seconds, fault.stops, [end.code for end in ended],
                   (named or lines or [ended[0].errors[-300:]])[0].replace(f"{name}/", ""), good)


if __name__ == "__main__":
    rank_main(Path(sys.argv[1]))
