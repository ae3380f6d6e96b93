"""What each rank of a test of meshes runs, inside a process group of its own making: one or several parts.

``python -m tests.support.mesh_ranks FOLDER PART`` under ranks; each writes what it found as ``PART.RANK.pt``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import weft
from tests.support.captured_models import Case, made
from weft.app.pipeline.run.pipe import Pipeline

SIZE, MICRO_BATCHES, EPS, STEPS = 8, 2, 1e-3, 5


def piped(case: Case, copies: int = 1, **options: Any) -> Pipeline:
    """A pipeline whose example is the part of the batch that each of ``copies`` is given."""
    size = SIZE // copies
    return weft.pipeline(case.model, tuple(a[:size] for a in case.args), loss=case.loss, target=case.target[:size],
                         **{"micro_batches": MICRO_BATCHES, "schedule": "1f1b", "time_limit": 1.0, "timeout": 60.0,
                            **options})


def stepped(pipe: Pipeline, seed: int, name: str = "gpt") -> float:
    """One step on this copy's part of the batch of that seed."""
    case, copy = made(name, SIZE, seed), pipe.session.replica
    size = SIZE // pipe.session.replicas
    part = slice(copy * size, (copy + 1) * size)
    return pipe.step(*(a[part] for a in case.args), target=case.target[part])


def trained(pipe: Pipeline, optimizer: torch.optim.Optimizer, seeds: range, name: str = "gpt") -> dict[str, Any]:
    """Losses and gradients of steps on these batches, and the state after them."""
    losses, gradients = [], []
    for seed in seeds:
        losses.append(stepped(pipe, seed, name))
        gradients.append({n: g.clone() for n, g in pipe.gradients().items()})
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "gradients": gradients, "state": pipe.state_dict()}


def copies(folder: Path) -> dict[str, Any]:
    """Two copies of two stages on a mesh whose first dimension is the pipeline, clipped; twice, and a checkpoint."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    found = []
    for _ in range(2):
        with piped(made("gpt", SIZE), 2, mesh=mesh, clip_norm=0.5, cuts=[20]) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            found.append(trained(pipe, optimizer, range(STEPS)))
            pipe.save(folder / "copies", optimizer)
            found[-1]["norm"], found[-1]["stages"] = pipe.norm, pipe.stages
    return {"first": found[0], "again": found[1], "files": sorted(path.name for path in (
        folder / "copies").rglob("*.safetensors"))}


def zero(folder: Path) -> dict[str, Any]:
    """The same with the optimizer's states divided; saved after two steps, and gone on from with as many copies."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))

    def optimizer_of(pipe: Pipeline, lr: float) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(pipe.parameters(), torch.optim.AdamW, process_group=pipe.data_group, lr=lr,
                                       eps=EPS)

    with piped(made("gpt", SIZE), 2, mesh=mesh, cuts=[20]) as pipe:
        optimizer = optimizer_of(pipe, 1e-2)
        first = trained(pipe, optimizer, range(2))
        pipe.save(folder / "zero", optimizer)
        rest = trained(pipe, optimizer, range(2, STEPS))
        inner: Any = optimizer
        held, whole = len(inner.optim.state), len(list(pipe.parameters()))
    with piped(made("gpt", SIZE), 2, mesh=mesh, cuts=[12]) as pipe:
        optimizer = optimizer_of(pipe, 1.0)
        behind = pipe.resume(folder / "zero", optimizer)
        again = trained(pipe, optimizer, range(2, STEPS))
    with piped(made("gpt", SIZE), group=None, cuts=[8, 16, 24]) as pipe:  # one copy, of four stages
        plain = torch.optim.AdamW(pipe.parameters(), lr=1.0, eps=EPS)
        pipe.resume(folder / "zero", plain)
        alone = trained(pipe, plain, range(2, STEPS))
    return {"losses": first["losses"] + rest["losses"], "state": rest["state"], "held": held, "whole": whole,
            "behind": behind, "again": again, "alone": alone}


def beside(folder: Path) -> dict[str, Any]:
    """A pipeline on the first two ranks, another on the others, and one of all four beside both."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[dist.get_rank() // 2]
    assert isinstance(mine, dist.ProcessGroup)
    case = made("gpt", SIZE)
    small = piped(case, group=mine, cuts=[20])
    everyone = piped(made("gpt", SIZE), group=dist.group.WORLD, cuts=[8, 16, 24], schedule="gpipe")
    optimizer = torch.optim.AdamW([*small.parameters(), *everyone.parameters()], lr=1e-2, eps=EPS)
    found: dict[str, Any] = {"small": [], "everyone": []}
    for seed in range(2):
        found["small"].append(stepped(small, seed))
        found["everyone"].append(stepped(everyone, seed + 5))
        optimizer.step()
        optimizer.zero_grad()
    found["small state"] = small.state_dict()
    small.close()
    found["after"] = stepped(everyone, 7)
    found["state"] = everyone.state_dict()
    everyone.close()
    return found


def refused(folder: Path) -> dict[str, Any]:
    """A pipeline that one rank does not join; the process group goes on."""
    said = ""
    if dist.get_rank() != 3:
        try:
            piped(made("gpt", SIZE), timeout=2.0)
        except ValueError as error:
            said = str(error)
    total = torch.ones(1)
    dist.all_reduce(total)
    return {"said": said, "goes on": float(total)}


def wrapped(folder: Path) -> dict[str, Any]:
    """A model that something else trains on several ranks ends all of them."""
    case = made("gpt", SIZE)
    piped(Case(DistributedDataParallel(case.model), case.args, case.kwargs, case.loss, case.target))
    return {}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"copies": copies, "zero": zero, "beside": beside,
                                                      "refused": refused, "wrapped": wrapped}


def main() -> None:
    """What one rank does."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    for part in sys.argv[2:]:
        torch.save(PARTS[part](folder), folder / f"{part}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
