"""What each process of a test of shared ranks runs: two small trainings, together, alone, and with one that fails
(:mod:`tests.support.job_processes`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.job_processes import joined
from weft.models.share.job import Job, job_of
from weft.runtime import Boundary, Plan, Session, Training
from weft.runtime.replay.run import run_training
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

RANKS, STEPS, WIDTH, SIZE = 2, 6, 16, 4
#: Seconds that one of the plan's milliseconds lasts.
UNIT = 1e-3


def data_parallel(name: str, stages: int, forward: float, backward: float, network: float) -> Job:
    """A job of so many stages on all ranks; times in ms for all of its stages together."""
    devices = tuple(device for g in range(RANKS)
                    for device in (Device(f"gpu{g}"), Device(f"gpu{g} network", lane_of=f"gpu{g}")))
    gpus, lanes = tuple(range(0, 2 * RANKS, 2)), tuple(range(1, 2 * RANKS, 2))
    ends = tuple(Dependency(f"S{s}", distance=1) for s in range(stages))
    blocks = [Block(f"F{s}", BlockKind.FORWARD, gpus, forward / stages,
                    after=(Dependency(f"F{s - 1}"),) if s else ends) for s in range(stages)]
    before = f"F{stages - 1}"
    for s in reversed(range(stages)):
        blocks.append(Block(f"B{s}", BlockKind.BACKWARD, gpus, backward / stages, after=(Dependency(before),)))
        blocks.append(Block(f"S{s}", BlockKind.COLLECTIVE, lanes, network / stages, after=(Dependency(f"B{s}"),)))
        before = f"B{s}"
    return job_of(name, Problem(name, devices, tuple(blocks), time_unit="ms"))


class Failing(nn.Module):
    """Passes on what it gets, until ``step`` of it."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of memory, as it were")
        return x


def training(seed: int, plan: Plan, session: Session, *, steps: int = STEPS, fails: int | None = None,
             stops: Path | None = None) -> Training:
    """A small model with dropout for the stages of ``plan``, its data made of ``seed``; somebody stops it in step 4
    where ``stops`` says by which file."""
    torch.manual_seed(seed)
    graph = plan.vocabulary.graph
    assert graph is not None
    count = len(graph.stages)
    modules: dict[int, nn.Module] = {s: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
                                     for s in range(count)}
    if fails is not None and session.replica == 1:
        modules[0] = nn.Sequential(Failing(fails), *modules[0].children())
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]
    torch.manual_seed(seed + 100 + session.replica)  # what dropout draws

    def data(what: int) -> Callable[[int, int], Tensor]:
        def made(step: int, micro_batch: int) -> Tensor:
            if stops is not None and step == 4 and session.replica == 0:
                stops.touch()
            drawn = torch.Generator().manual_seed(seed * 10_007 + step * 101 + micro_batch * 7 + what)
            return torch.randn(SIZE, WIDTH, generator=drawn)
        return made

    return Training(modules, [Boundary((SIZE, WIDTH))] * (count - 1), data(0), data(1), nn.functional.mse_loss,
                    torch.optim.Adam(parameters, lr=1e-2), steps=steps)


def of_rank(seed: int) -> Callable[..., Training]:
    """A function as ``weft replay --stages`` names it."""
    def made(plan: Plan, rank: int, session: Session) -> Training:
        assert rank == 0  # the job's own plan has one rank, with a replica on each process
        return training(seed, plan, session)
    return made


first, second = of_rank(0), of_rank(1)


def main(folder: Path, *ports: str) -> None:
    """All runs one after another."""
    with joined(folder, ports) as own:
        name = own.job.name
        seed = "ab".index(name)

        def run(what: str, unit: float = 0.0, only: Sequence[str] | None = None, **more: Any) -> None:
            own.run(what, lambda plan, s: training(seed, plan, s, **more.get(name, {})), unit=unit, only=only)

        run("once")  # what is made once
        run("together", UNIT)
        run("a", UNIT, ["a"])
        run("b", UNIT, ["b"])
        run("failed", b={"fails": 3})
        run("short", b={"steps": 2}, a={"steps": 2 * STEPS})
        run("stopped", b={"stops": folder / "b"})
        alone = run_training(own.job.plan, own.session, training(seed, own.job.plan, own.session))
        own.found["alone"] = None if alone is None else list(alone.losses)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
