"""What each rank of ``python -m experiments.runtime.gpu`` runs: small models that one process on the CPU trains too.

Each case gives its largest difference from the reference, and what was run. All run on any number of ranks, one too;
with CUDA each rank has a GPU of its own, apart from those of ``pipeline`` and ``copies``, which may share one, and
where NCCL joins ranks of one GPU (``NCCL_MULTI_RANK_GPU_ENABLE=1``, from 2.31 on), which all others may then.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS, RATE = 3, 0.01


class Found(NamedTuple):
    """``error``: the largest difference from one process on the CPU, in double precision; ``said``: what was run."""

    error: float
    said: str


class Block(nn.Module):
    """Two linear layers beside their input."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x + self.down(nn.functional.gelu(self.up(x)))
        return found


def model() -> nn.Module:
    """The same on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(*(Block() for _ in range(4))).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step."""
    draw = torch.Generator().manual_seed(step)
    x, y = (torch.randn(8, 16, generator=draw, dtype=torch.float64) for _ in range(2))
    return x, y


def reference(optimizer: Callable[..., torch.optim.Optimizer]) -> tuple[list[float], Mapping[str, Tensor]]:
    """Losses and the last state of one process on the CPU."""
    plain = model()
    rule, losses = optimizer(plain.parameters(), lr=RATE), []
    for step in range(STEPS):
        x, y = batch(step)
        loss = nn.functional.mse_loss(plain(x), y)
        rule.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        losses.append(loss.item())
    return losses, plain.state_dict()


def difference(mine: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest, of what both have."""
    assert wanted.keys() <= mine.keys(), (mine.keys(), wanted.keys())
    return max(float((mine[name].detach().double().cpu() - tensor.double()).abs().max())
               for name, tensor in wanted.items())


def gradients(parameters: Iterable[tuple[str, Tensor]]) -> Mapping[str, Tensor]:
    """Of those that have one, by their names."""
    return {name: parameter.grad for name, parameter in parameters if parameter.grad is not None}


@contextmanager
def group(device: torch.device) -> Iterator[tuple[int, int]]:
    """This rank's number in the process group of all ranks, and how many there are."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timedelta(seconds=60))
    try:
        yield dist.get_rank(), dist.get_world_size()
    finally:
        dist.destroy_process_group()


def pipeline(device: torch.device) -> Found:
    """``weft.pipeline`` over shared memory; on GPUs by CUDA IPC."""
    import weft

    x, y = batch(0)
    losses, state = reference(torch.optim.SGD)
    module = model().to(device)
    with weft.pipeline(module, (x.to(device),), loss=nn.functional.mse_loss, target=y.to(device), micro_batches=4,
                       schedule="1f1b", transport="shared") as pipe:
        error = trained(pipe, torch.optim.SGD, losses, state)
        return Found(error, f"1F1B of {STEPS} steps on {pipe.session.processes} ranks")


def trained(pipe: Any, optimizer: Callable[..., torch.optim.Optimizer], losses: Sequence[float],
            state: Mapping[str, Tensor]) -> float:
    """How far ``pipe``, trained on its copy's part of the batches, is from one process in losses and weights."""
    rule, device, copies, error = optimizer(pipe.parameters(), lr=RATE), pipe.session.device, pipe.session.replicas, 0.0
    for step, wanted in enumerate(losses):
        x, y = (tensor.chunk(copies)[pipe.session.replica].to(device) for tensor in batch(step))
        error = max(error, abs(pipe.step(x, target=y) - wanted))
        rule.step()
        rule.zero_grad()
    where = {parameter.device.type for parameter in pipe.parameters()}
    assert where <= {device.type}, f"it computed on {where}, not on {device}"
    mine = {name: getattr(parameter, "full_tensor", lambda parameter=parameter: parameter)()
            for name, parameter in pipe.named_parameters()}
    return max(error, difference(mine, {name: state[name] for name in mine}) if mine else 0.0)


def copies(device: torch.device) -> Found:
    """Two copies of a pipeline, each with its half of a batch, and gradients summed over them."""
    import weft

    halves = [tensor.chunk(2)[0].to(device) for tensor in batch(0)]
    losses, state = reference(torch.optim.AdamW)
    with weft.pipeline(model().to(device), (halves[0],), loss=nn.functional.mse_loss, target=halves[1],
                       micro_batches=2, schedule="1f1b", data=2, transport="shared") as pipe:
        error = trained(pipe, torch.optim.AdamW, losses, state)
        return Found(error, f"2 copies of {pipe.session.world} stages, AdamW, {STEPS} steps")


def mesh(device: torch.device) -> Found:
    """Inside a group of the user's, over NCCL on GPUs, two stages under weft's own schedule: in two copies, plain and
    with parameters divided by ``fully_shard``; then with two ranks that compute each layer together."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    import weft

    losses, state = reference(torch.optim.AdamW)
    shared = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("data", {}), ("data", {"fully_shard": True}), ("tensor", {"tensor_parallel": shared}))
    error = 0.0
    with group(device):
        for beside, options in ways:
            x, y = (tensor.chunk(2 if beside == "data" else 1)[0].to(device) for tensor in batch(0))
            ranks = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pipeline", beside))
            with weft.pipeline(model().to(device), (x,), loss=nn.functional.mse_loss, target=y, micro_batches=2,
                               time_limit=2.0, mesh=ranks, **options) as pipe:
                error = max(error, trained(pipe, torch.optim.AdamW, losses, state))
    over = "NCCL" if device.type == "cuda" else "gloo"
    return Found(error, f"AdamW of {STEPS} steps on 4 ranks, over {over}: copies of a pipeline, fully sharded, tensor "
                        "parallel")


def graph_network(device: torch.device) -> Found:
    """Ready layers in chunks within the least memory, loads and stores on streams of their own, beside all at once."""
    from tests.support.graph_networks import dense_pass, network_of, odd_graph, planned_pass
    from weft.app.graph_network.run import streamed
    from weft.models.graph_network.steps import Choice
    from weft.runtime.graph_network.layers import LAYERS

    worst, graph, runs = 0.0, odd_graph(), 0
    for kind in LAYERS:
        for choice in (Choice(3, 2), Choice(5, fused=True, selective=True)):
            network = network_of(kind)
            whole = network.initial(0, torch.float64)
            parameters = [{name: value.detach().to(device).requires_grad_() for name, value in own.items()}
                          for own in network.initial(0, torch.float64)]
            steps, schedule, budget = planned_pass(network, parameters, graph, choice)
            wanted, loss = dense_pass(network, whole, graph)
            with streamed(network, parameters, graph, steps, schedule, device, budget=budget) as run:
                found = run.run()
                assert run.account.peak <= budget, f"{kind}: {run.account.peak} bytes, of {budget}"
                worst = max(worst, abs(found - float(loss)), float((run.outputs.cpu() - wanted).abs().max()))
            for mine, theirs in zip(parameters, whole, strict=True):
                worst = max(worst, difference(gradients(mine.items()), gradients(theirs.items())))
            runs += 1
    return Found(worst, f"{runs} passes, all within their budgets")


def experts(device: torch.device) -> Found:
    """Layers of experts, divided among all ranks: outputs and gradients of a dense mixture."""
    from tests.support.expert_ranks import EXPERTS, given, layer_of, masks
    from weft.runtime.experts.layer import ExpertPlacement

    worst = 0.0
    with group(device) as (rank, ranks):
        for mask in masks(rank).values():
            x, layer = given(rank).requires_grad_(), layer_of(ExpertPlacement.even(EXPERTS, 1), 0)
            weights = torch.softmax(layer.gate.logits(x), -1) * mask
            results = torch.stack([nn.functional.gelu(x @ expert.up) @ expert.down
                                   for expert in map(layer.expert, range(EXPERTS))], 1)
            wanted = (weights.unsqueeze(-1) * results).sum(1)
            wanted.sin().sum().backward()  # type: ignore[no-untyped-call]
            mine, divided = given(rank).to(device).requires_grad_(), layer_of(
                ExpertPlacement.even(EXPERTS, ranks), rank).to(device)
            divided.gate.masked = mask.to(device)
            found = divided(mine)
            found.sin().sum().backward()
            assert x.grad is not None and mine.grad is not None
            worst = max(worst, float((found.detach().cpu() - wanted.detach()).abs().max()),
                        float((mine.grad.cpu() - x.grad).abs().max()))
    return Found(worst, f"{EXPERTS} experts on {ranks} ranks, {len(masks(0))} choices")


class WithLoss(nn.Module):
    """``layers`` one after another, which give their own loss."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        for number, layer in enumerate(layers):  # named as in a sequence, whose state they load
            self.add_module(str(number), layer)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return nn.functional.mse_loss(x, y)


def plan(device: torch.device) -> Found:
    """A plan by hand, tensor parallel over all ranks, trained by Adam."""
    from weft import plans

    _, state = reference(torch.optim.Adam)
    with group(device) as (_, ranks):
        module = WithLoss(*model().children())
        written = plans.with_update(plans.with_backward(plans.program(module, batch(0))), "adam", rate=RATE, step=None)
        done = plans.Plan(written).tensor_parallel(range(ranks)).preserve()
        running = plans.PlanOnRank(done, device)
        running.load({name: tensor.detach().clone() for name, tensor in module.state_dict().items()})
        for step in range(STEPS):
            running.step(dict(zip(("x", "y"), batch(step), strict=True)))
        error = difference(running.state_dict(), state)
    return Found(error, f"Adam, tensor parallel over {ranks} ranks, {STEPS} steps")


def program(device: torch.device) -> Found:
    """A program of communication: a product, an all-reduce and what follows, whole and in chunks."""
    import numpy as np

    from weft import communication as comm
    from weft.models.communication import interpreter

    worst, said = 0.0, []
    with group(device) as (_, ranks):
        builder = comm.Builder("layer", ranks, itemsize=8)
        left = builder.input("x", (8, 8 * ranks), "sliced", 1)
        product = builder.matmul("product", left, builder.parameter("w", (8 * ranks, 8), "sliced", 0))
        total = builder.all_reduce("sum", product)
        whole = builder.build(builder.pointwise("out", "add", total, builder.parameter("b", (8,))))
        for chunks in (1, 4):
            written = whole if chunks == 1 else comm.overlap(whole, ["product", "sum"], chunks)
            running = comm.ProgramOnRank(written, device=device)
            given = interpreter.random_values(written, 0)
            wanted = interpreter.results(written, interpreter.run(written, given))
            mine = {name: running.held(name, torch.tensor(np.asarray(value))).to(device)
                    for name, value in given.items()}
            found = running.run(mine)
            running.close()
            worst = max([worst, *(float(np.abs(tensor.cpu().numpy() - np.asarray(wanted[name])).max())
                                  for name, tensor in found.items())])
            said.append(str(chunks))
    return Found(worst, f"in {' and '.join(said)} chunks on {ranks} ranks")


def optimizer(device: torch.device) -> Found:
    """``ShardedOptimizer``, with states in slices."""
    from weft import communication as comm

    _, state = reference(torch.optim.Adam)
    with group(device) as (rank, ranks):
        module = model().to(device)
        sharded = comm.ShardedOptimizer(module, "adam", lr=RATE)
        for step in range(STEPS):
            x, y = (tensor.chunk(ranks)[rank].to(device) for tensor in batch(step))
            nn.functional.mse_loss(module(x), y).backward()  # type: ignore[no-untyped-call]
            sharded.step()
        sharded.wait()
        error = difference(module.state_dict(), state)
        sharded.close()
    return Found(error, f"Adam over {ranks} ranks, {STEPS} steps")


def offload(device: torch.device) -> Found:
    """What a forward keeps, copied to the host beside the computation and back; and recomputed."""
    from weft.runtime.train.offload import CopyEngine
    from weft.runtime.train.stage import Offloading, StageRunner

    plain = model()
    x = batch(0)[0]
    plain(x).backward(torch.ones_like(x))
    wanted = gradients(plain.named_parameters())
    worst = 0.0
    for beside in (False, True):
        for recompute in (False, True):
            module, engine = deepcopy(model()).to(device), CopyEngine(device)
            runner = StageRunner(module, offloading=Offloading(engine, beside=beside), recompute=recompute)
            runner.forward(0, x.to(device).requires_grad_())
            runner.offload(0)
            runner.load(0)
            runner.arrive(0)
            if recompute:
                runner.recompute(0)
            runner.backward(0, torch.ones_like(x).to(device))
            engine.close()
            worst = max(worst, difference(gradients(module.named_parameters()), wanted))
    return Found(worst, "one stage, with and without recomputation, beside the computation and in turn")


CASES: Mapping[str, Callable[[torch.device], Found]] = {
    "pipeline": pipeline, "copies": copies, "mesh": mesh, "plan": plan, "program": program, "optimizer": optimizer,
    "offload": offload, "graph network": graph_network, "experts": experts}


def device_of(kind: str) -> torch.device:
    """This rank's device."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cpu") if kind == "cpu" else torch.device("cuda", local % torch.cuda.device_count())


def told(name: str, kind: str) -> dict[str, Any]:
    """What this rank found of the case ``name``."""
    torch.set_num_threads(1)
    return CASES[name](device_of(kind))._asdict()
