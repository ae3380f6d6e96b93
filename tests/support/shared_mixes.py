"""A pipeline, a data parallel training and an inference on three ranks that they share, and what each rank runs of
them: all together, each alone, and with faults (:mod:`tests.support.job_processes`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.job_processes import joined
from tests.support.shared_ranks import Failing
from weft.models.share.job import Job, job_of
from weft.runtime import Boundary, Plan, Session, Training
from weft.runtime.replay.run import run_training
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem

RANKS, STEPS, WIDTH, SIZE = 3, 3, 8, 4
#: Micro-batches of a step of the data parallel training, on each of its GPUs.
ADDED = 3
#: By job: how often a round of the plan has it.
RATIO = {"pipeline": 2, "data": 1, "answers": 3}


def devices() -> tuple[Device, ...]:
    return tuple(device for g in range(RANKS)
                 for device in (Device(f"gpu{g}"), Device(f"gpu{g} network", lane_of=f"gpu{g}")))


def chain(name: str, gpus: Sequence[int], time: float, backward: str = "") -> Job:
    """Stages on ``gpus``, each with the passes ``backward``: none, ``B``, or ``IW``."""
    kinds = {"B": BlockKind.BACKWARD, "I": BlockKind.INPUT_GRAD, "W": BlockKind.WEIGHT_GRAD}
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (2 * gpu,), time, after=(Dependency(f"F{s - 1}"),) if s else ())
              for s, gpu in enumerate(gpus)]
    before = f"F{len(gpus) - 1}"
    for s in reversed(range(len(gpus)) if backward else ()):
        for letter in backward:
            blocks.append(Block(f"{letter}{s}", kinds[letter], (2 * gpus[s],), time, after=(Dependency(before),)))
            before = f"{letter}{s}" if letter != "W" else before
        before = f"{backward[0]}{s}"
    return job_of(name, Problem(name, devices(), tuple(blocks), time_unit="ms"))


def summed(name: str, gpus: Sequence[int], time: float) -> Job:
    """One stage on all of ``gpus``, whose gradients are summed on their lanes; before the last micro-batch of a step
    come others."""
    on, lanes = tuple(2 * gpu for gpu in gpus), tuple(2 * gpu + 1 for gpu in gpus)
    return job_of(name, Problem(name, devices(), (
        Block("others", BlockKind.OTHER, on, 2 * time, after=(Dependency("S0", distance=1),)),
        Block("F0", BlockKind.FORWARD, on, time, after=(Dependency("others"),)),
        Block("B0", BlockKind.BACKWARD, on, 2 * time, after=(Dependency("F0"),)),
        Block("S0", BlockKind.COLLECTIVE, lanes, 3 * time, after=(Dependency("B0"),))), time_unit="ms"))


def mix(time: float = 2.0) -> list[Job]:
    return [chain("pipeline", (0, 1, 2), time, "IW"), summed("data", (0, 1), time), chain("answers", (2, 1), time)]


def training(seed: int, plan: Plan, session: Session, *, steps: int = STEPS, fails: tuple[int, int] | None = None,
             collect: Callable[[int, int, Any], None] | None = None) -> Training:
    """Small modules with dropout for this rank's stages of ``plan``; ``fails``: a stage and after how many of its
    forwards."""
    graph = plan.vocabulary.graph
    assert graph is not None
    modules: dict[int, nn.Module] = {}
    for s, stage in enumerate(graph.stages):
        torch.manual_seed(100 * seed + s)
        made = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2))
        if session.rank in stage.ranks:
            modules[s] = made
    if fails is not None and fails[0] in modules:
        modules[fails[0]] = nn.Sequential(Failing(fails[1]), *modules[fails[0]].children())
    torch.manual_seed(1000 * seed + session.process(session.rank))  # what dropout draws
    parameters = [parameter for module in modules.values() for parameter in module.parameters()]

    def data(what: int) -> Callable[[int, int], Tensor]:
        return lambda step, micro_batch: torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(
            seed * 10_007 + step * 101 + micro_batch * 7 + what))

    trained = graph.has_backward
    return Training(modules, [Boundary((SIZE, WIDTH))] * (len(graph.stages) - 1), data(0), data(1) if trained else None,
                    nn.functional.mse_loss if trained else None,
                    torch.optim.Adam(parameters, lr=1e-2) if trained else None, steps=steps, collect=collect)


def of_rank(seed: int) -> Callable[..., Training]:
    """A function as ``weft replay --stages`` names it."""
    def made(plan: Plan, rank: int, session: Session) -> Training:
        return training(seed, plan, session)
    return made


pipeline, data, answers = of_rank(0), of_rank(1), of_rank(2)
SEEDS = {"pipeline": 0, "data": 1, "answers": 2}


def main(folder: Path, *ports: str) -> None:
    """All runs one after another; a rank's answers go into a file of their own."""
    answered: dict[str, list[float]] = {}

    def keep(run: str) -> Callable[[int, int, Any], None]:
        def collect(step: int, micro_batch: int, output: Tensor) -> None:
            answered.setdefault(run, []).extend(output.reshape(-1).tolist())
        return collect

    with joined(folder, ports) as own:
        job = own.job.name

        def run(name: str, steps: dict[str, int] | None = None, **fails: tuple[int, int]) -> None:
            own.run(name, lambda plan, session: training(
                SEEDS[job], plan, session, steps=(steps or {}).get(job, STEPS), fails=fails.get(job),
                collect=keep(name)))

        run("together")
        run("failed", pipeline=(1, 5))
        run("failed last", pipeline=(2, 7))
        run("failed answers", answers=(1, 3))
        run("longer", {"pipeline": 1, "data": 2 * STEPS})
        alone = run_training(own.job.plan, own.session, training(
            SEEDS[job], own.job.plan, own.session, steps=2 * STEPS if job == "data" else STEPS, collect=keep("alone")))
        own.found["alone"] = None if alone is None else list(alone.losses)
    if answered:
        (folder / f"{job}.{own.rank}.answers").write_text(json.dumps(answered))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
