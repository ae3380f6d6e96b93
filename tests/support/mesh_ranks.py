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
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import ExponentialLR

from tests.support.captured_models import Case, made, token_loss
from tests.support.pipeline_ranks import planned_once
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.runtime.train.sharding import own_share, whole_of

SIZE, MICRO_BATCHES, EPS, STEPS = 8, 2, 1e-3, 5
SLOWER = 0.5  # what the learning rate is multiplied with before a checkpoint


def piped(case: Case, copies: int = 1, **options: Any) -> PipelineEngine:
    """A pipeline whose example is the part of the batch that each of ``copies`` is given."""
    size = SIZE // copies
    of = (type(case.model), copies, *sorted({"mesh", "tensor_parallel", "fully_shard"} & options.keys()),
          type(case.loss), *(str(options.get(name)) for name in ("cuts", "schedule", "dtype", "autocast")))
    return planned_once(of, case.model, tuple(a[:size] for a in case.args), loss=case.loss, target=case.target[:size],
                        **{"micro_batches": MICRO_BATCHES, "schedule": "1f1b", "time_limit": 1.0, "timeout": 900.0,
                           **options})


def stepped(pipe: PipelineEngine, seed: int, name: str = "short") -> float:
    """One step on this copy's part of the batch of that seed."""
    case, copy = made(name, SIZE, seed), pipe.session.replica
    size = SIZE // pipe.session.replicas
    part = slice(copy * size, (copy + 1) * size)
    return pipe.step(*(a[part] for a in case.args), target=case.target[part])


def trained(pipe: PipelineEngine, optimizer: torch.optim.Optimizer, seeds: range, name: str = "short"
            ) -> dict[str, Any]:
    """Losses and gradients of steps on these batches, and the state after them."""
    losses, gradients = [], []
    for seed in seeds:
        losses.append(stepped(pipe, seed, name))
        gradients.append({n: whole_of(g).clone() for n, g in pipe.gradients().items()})
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "gradients": gradients, "state": pipe.state_dict()}


def one_run(first: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """What two parts of a run gave."""
    return {**{name: first[name] + rest[name] for name in ("losses", "gradients")}, "state": rest["state"]}


def gone_on(saves: Path, copies: int = 1, **options: Any) -> dict[str, Any]:
    """What the rest gives of a run that was saved after two steps, in four stages."""
    with piped(made("short", SIZE), copies, cuts=[8, 16, 24], **options) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1.0, eps=EPS)
        pipe.resume(saves, optimizer)
        return trained(pipe, optimizer, range(2, STEPS))


def copies(folder: Path) -> dict[str, Any]:
    """Two copies of two stages on a mesh whose first dimension is the pipeline, clipped; twice, and a checkpoint."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pipeline", "data"))
    found = []
    for _ in range(2):
        with piped(made("short", SIZE), 2, mesh=mesh, clip_norm=0.5, cuts=[20]) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            found.append(trained(pipe, optimizer, range(STEPS)))
            pipe.save(folder / "copies", optimizer)
            found[-1]["norm"], found[-1]["stages"] = pipe.norm, pipe.stages
    return {"first": found[0], "again": found[1], "files": sorted(path.name for path in (
        folder / "copies").rglob("*.safetensors"))}


def zero(folder: Path) -> dict[str, Any]:
    """The same with the optimizer's states divided; saved after two steps, and gone on from with as many copies."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))

    def optimizer_of(pipe: PipelineEngine, lr: float) -> torch.optim.Optimizer:
        return ZeroRedundancyOptimizer(pipe.parameters(), torch.optim.AdamW, process_group=pipe.data_group, lr=lr,
                                       eps=EPS)

    with piped(made("short", SIZE), 2, mesh=mesh, cuts=[20]) as pipe:
        optimizer = optimizer_of(pipe, 1e-2)
        first = trained(pipe, optimizer, range(2))
        ExponentialLR(optimizer, SLOWER).step()
        pipe.save(folder / "zero", optimizer)
        rest = trained(pipe, optimizer, range(2, STEPS))
        inner: Any = optimizer
        held, whole = len(inner.optim.state), len(list(pipe.parameters()))
    with piped(made("short", SIZE), 2, mesh=mesh, cuts=[12]) as pipe:
        optimizer = optimizer_of(pipe, 1.0)
        behind = pipe.resume(folder / "zero", optimizer)
        again = trained(pipe, optimizer, range(2, STEPS))
    alone = gone_on(folder / "zero", group=None)  # one copy, of four stages
    return {**one_run(first, rest), "held": held, "whole": whole, "behind": behind, "again": again, "alone": alone}


def sharded(folder: Path) -> dict[str, Any]:
    """Two copies of two stages whose parameters are divided; twice, saved after two steps and gone on from."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    found = []
    for time in range(2):
        with piped(made("short", SIZE), 2, mesh=mesh, cuts=[20], fully_shard=True, clip_norm=0.5) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            first = trained(pipe, optimizer, range(2))
            if not time:
                pipe.save(folder / "sharded", optimizer)
                held = sum(own_share(p).numel() for p in pipe.parameters())
                whole = sum(p.numel() for p in pipe.parameters())
                own = {name for name, _ in pipe.named_parameters()}
                resting = sum(p.untyped_storage().size() for name, p in pipe.model.named_parameters() if name in own)
                part = sum(v.numel() for name, v in pipe.state_dict(whole=False).items() if name in own)
            rest = trained(pipe, optimizer, range(2, STEPS))
            case = made("short", SIZE)
            half = slice(pipe.session.replica * SIZE // 2, (pipe.session.replica + 1) * SIZE // 2)
            evaluated = pipe.eval_step(*(a[half] for a in case.args), target=case.target[half])
            pipe.load_state_dict(first["state"])
            back = pipe.state_dict()
        found.append({**one_run(first, rest), "evaluated": evaluated, "norm": pipe.norm})
        assert all(torch.equal(first["state"][name], value) for name, value in back.items())
    with piped(made("short", SIZE), 2, mesh=mesh, cuts=[12], fully_shard=True) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1.0, eps=EPS)
        pipe.resume(folder / "sharded", optimizer)
        losses = []
        for seed in range(2, STEPS):
            losses.append(stepped(pipe, seed))
            clip_grad_norm_(pipe.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        again = {"losses": losses, "state": pipe.state_dict()}
    alone = gone_on(folder / "sharded", group=None, clip_norm=0.5)  # one copy, of four stages
    return {"first": found[0], "again": found[1], "held": held, "whole": whole, "resting": resting, "part": part,
            "other cut": again, "alone": alone}


PLAN: dict[str, Any] = {"layers.*.attend": ColwiseParallel, "layers.*.project": RowwiseParallel,
                        "layers.*.wide": ColwiseParallel,
                        "layers.*.narrow": RowwiseParallel}


def tensor(folder: Path) -> dict[str, Any]:
    """Two stages of which two ranks each have shares, twice; saved after two steps, and gone on from without shares."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    found = []
    for schedule in ("1f1b", "zb-h1"):
        with piped(made("short", SIZE), mesh=mesh, clip_norm=0.5, cuts=[20], schedule=schedule, tensor_parallel={
                name: style() for name, style in PLAN.items()}) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            first = trained(pipe, optimizer, range(2))
            pipe.save(folder / "tensor", optimizer)
            rest = trained(pipe, optimizer, range(2, STEPS))
            held = {name: (own_share(p).numel(), p.numel()) for name, p in pipe.named_parameters()}
            case = made("short", SIZE)
            found.append({**one_run(first, rest), "held": held, "norm": pipe.norm,
                          "evaluated": pipe.eval_step(*case.args, target=case.target)})
            pipe.load_state_dict(first["state"])
            assert all(torch.equal(first["state"][name], value) for name, value in pipe.state_dict().items())
    alone = gone_on(folder / "tensor", group=None, clip_norm=0.5)  # four stages, no shares
    return {"first": found[0], "again": found[1], "alone": alone,
            "heads": [heads(mesh=mesh, tensor_parallel=_divided), heads(group=None)]}


def degrees(folder: Path) -> dict[str, Any]:
    """Two copies of two stages of which two ranks each have shares, clipped; twice, and a checkpoint."""
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("data", "tensor", "pipeline"))
    found = []
    for _ in range(2):
        with piped(made("short", SIZE), 2, mesh=mesh, clip_norm=0.5, cuts=[20], tensor_parallel={
                name: style() for name, style in PLAN.items()}) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            first = trained(pipe, optimizer, range(2))
            pipe.save(folder / "degrees", optimizer)
            found.append({**one_run(first, trained(pipe, optimizer, range(2, STEPS))), "place": (
                pipe.session.replica, pipe.session.peer, pipe.rank)})
    later = gone_on(folder / "degrees", 2, data=2, clip_norm=0.5)  # two copies of four stages
    return {"first": found[0], "again": found[1], "later": later}


def bare(folder: Path) -> dict[str, Any]:
    """A stage without parameters, before or behind one that has some, under ``fully_shard``."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "pipeline"))
    found: dict[str, Any] = {"losses": []}
    for at in (0, 1):
        torch.manual_seed(3)
        x, layers = torch.randn(SIZE, 4, dtype=torch.float64), [nn.Tanh(), nn.Tanh()]
        layers.insert(2 * at, nn.Linear(4, 4).double())  # type: ignore[arg-type]
        with piped(Case(nn.Sequential(*layers), (x,), {}, nn.functional.mse_loss, x.flip(1)), 2, mesh=mesh,
                   cuts=[1 + at], fully_shard=True) as pipe:
            optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
            half = x.chunk(2)[pipe.session.replica]
            for _ in range(2):
                found["losses"].append(pipe.step(half, target=half.flip(1)))
                optimizer.step()
                optimizer.zero_grad()
    return found


class OwnHead(nn.Module):
    """A loss that learns a layer and a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.scale = nn.Linear(23, 23), nn.Parameter(torch.ones(23))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return token_loss(self.head(output) * self.scale, target)


def shares_of_types(folder: Path) -> dict[str, Any]:
    """Shares beside a loss that learns, clipped by torch, in each type: losses and norms."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    found: dict[str, Any] = {}
    lower: list[dict[str, Any]] = [{}, {"dtype": torch.bfloat16}, {"autocast": torch.bfloat16}]
    for options in lower:
        case, dtype = made("short", SIZE), torch.float32 if options else torch.float64
        torch.manual_seed(3)
        loss = OwnHead().to(dtype)
        with piped(case._replace(model=case.model.to(dtype), loss=loss), mesh=mesh, schedule="zb-h1", cuts=[20],
                   tensor_parallel={name: style() for name, style in PLAN.items()}, **options) as pipe:
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS, foreach=True)
            losses, norms = [], []
            for seed in range(2):
                losses.append(stepped(pipe, seed))
                norms.append(float(clip_grad_norm_(pipe.parameters(), 0.5)))
                optimizer.step()
                optimizer.zero_grad()
            found[next(iter(options), "plain")] = losses, norms, pipe.state_dict()
    return found


class Heads(nn.Module):
    """Attention by heads in a residual stream, with dropout of both."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        k, v = self.kv(y).unflatten(-1, (4, 2, 4)).permute(3, 0, 2, 1, 4)
        q = self.q(y).unflatten(-1, (4, 4)).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(self.drop(y.transpose(1, 2).flatten(-2))))  # type: ignore[no-any-return]


def _divided(module: nn.Module, mesh: DeviceMesh) -> None:
    """As a user's own call does it."""
    parallelize_module(module, mesh, {"*.q": ColwiseParallel(), "*.kv": ColwiseParallel(), "*.out": RowwiseParallel()})


def heads(**options: Any) -> list[float]:
    """The losses of three steps of such layers."""
    torch.manual_seed(3)
    x, model = torch.randn(SIZE, 5, 16, dtype=torch.float64), nn.Sequential(*(Heads() for _ in range(4))).double()
    with piped(Case(model, (x,), {}, lambda y, z: (y - z).square().mean(), x.flip(1)), seed=7, **options) as pipe:
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        found = []
        for size in (SIZE, SIZE, SIZE - 2):
            found.append(pipe.step(x[:size], target=x[:size].flip(1)))
            optimizer.step()
            optimizer.zero_grad()
    return found


def beside(folder: Path) -> dict[str, Any]:
    """A pipeline on the first two ranks, another on the others, and one of all four beside both."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[dist.get_rank() // 2]
    assert isinstance(mine, dist.ProcessGroup)
    case = made("short", SIZE)
    small = piped(case, group=mine, cuts=[20])
    everyone = piped(made("short", SIZE), group=dist.group.WORLD, cuts=[8, 16, 24], schedule="gpipe")
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
            piped(made("short", SIZE), timeout=8.0)
        except ValueError as error:
            said = str(error)
    total = torch.ones(1)
    dist.all_reduce(total)
    return {"said": said, "goes on": float(total)}


def wrapped(folder: Path) -> dict[str, Any]:
    """A model that something else trains on several ranks ends all of them."""
    case = made("short", SIZE)
    piped(Case(DistributedDataParallel(case.model), case.args, case.kwargs, case.loss, case.target))
    return {}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {"copies": copies, "zero": zero, "sharded": sharded,
                                                      "tensor": tensor, "bare": bare,
                                                      "types": shares_of_types, "beside": beside, "refused": refused,
                                                      "wrapped": wrapped, "degrees": degrees}


def main() -> None:
    """What one rank does."""
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    for part in sys.argv[2:]:
        torch.save(PARTS[part](folder), folder / f"{part}.{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
