"""What each rank of the tests of a pipeline's state runs: several pipelines one after another, with what they found.

``python -m tests.support.state_ranks FOLDER PART ...`` under ranks; each writes what the parts named found.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR

from tests.support.captured_models import Case, LearnedLoss, halved, made
from tests.support.pipeline_ranks import EPS, planned_once, run_parts
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.runtime.captured.materials import Materials

SIZE, MICRO_BATCHES = 8, 4


def piped(case: Case, **options: Any) -> PipelineEngine:
    """A pipeline of ``case``; where it is cut, no measuring decides."""
    of = (type(case.model), str(next(case.model.parameters()).device), "compile" in options,
          *(str(options.get(name)) for name in ("cuts", "schedule", "dtype", "autocast")))
    return planned_once(of, case.model, case.args, kwargs=case.kwargs, **{
        "loss": case.loss, "target": case.target, "micro_batches": MICRO_BATCHES, "schedule": "1f1b", "cuts": [20],
        "time_limit": 2.0, "timeout": 900.0, **options})


def stepped(pipe: PipelineEngine, seed: int, name: str = "gpt", dtype: torch.dtype = torch.float64) -> float:
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


def added(folder: Path) -> dict[str, Any]:
    """Steps whose gradients nobody makes zero, clipped by torch itself; and one after they were made zero in place."""
    with piped(made("gpt", SIZE)) as pipe:
        stepped(pipe, 0)
        stepped(pipe, 1)
        before = {n: g.clone() for n, g in pipe.gradients().items()}
        largest = float(clip_grad_norm_(pipe.parameters(), 1e9, float("inf")))
        norm = float(clip_grad_norm_(list(pipe.parameters()), 0.05))
        other = torch.nn.Parameter(torch.ones(4))
        other.grad = torch.full((4,), 2.0)
        alone = float(clip_grad_norm_([other], 1.0))
        after = {n: g.clone() for n, g in pipe.gradients().items()}
        torch.optim.SGD(pipe.parameters()).zero_grad(set_to_none=False)
        stepped(pipe, 2)
        return {"before": before, "after": after, "norm": norm, "largest": largest, "alone": alone,
                "third": {n: g.clone() for n, g in pipe.gradients().items()}}


def trained(pipe: PipelineEngine, optimizer: torch.optim.Optimizer, seeds: range, dtype: torch.dtype = torch.float64,
            name: str = "gpt", scheduler: LRScheduler | None = None) -> list[float]:
    """The losses of steps on the batches of these seeds, whose learning rate may be scheduled."""
    losses = []
    for seed in seeds:
        losses.append(stepped(pipe, seed, name, dtype))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return losses


def saved(folder: Path) -> dict[str, Any]:
    """Two steps, a checkpoint, and two steps more."""
    with piped(made("gpt", SIZE)) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
        assert pipe.resume(folder / "checkpoints", optimizer) == 0
        before = trained(pipe, optimizer, range(2))
        path = pipe.save(folder / "checkpoints", optimizer)
        losses = trained(pipe, optimizer, range(2, 4))
        return {"losses": before + losses, "path": str(path), "state": pipe.state_dict()}


def resumed(folder: Path) -> dict[str, Any]:
    """The same from the checkpoint, in other stages of a model that began with other numbers."""
    case = made("gpt", SIZE)
    for parameter in case.model.parameters():
        torch.nn.init.normal_(parameter)
    with piped(case, cuts=[34]) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1.0, eps=EPS)
        behind = pipe.resume(folder / "checkpoints", optimizer)
        return {"behind": behind, "losses": trained(pipe, optimizer, range(2, 4)), "steps": pipe.steps,
                "state": pipe.state_dict(), "own": list(pipe.state_dict(whole=False))}


def of_losses(folder: Path) -> dict[str, Any]:
    """A loss that learns, of a model with a hook: two steps, a checkpoint, and two more; the last two once again from
    the checkpoint, in other stages."""
    found: dict[str, Any] = {}
    for again, cut in enumerate((20, 34)):
        loss = LearnedLoss()
        if again:
            torch.nn.init.zeros_(loss.scale)
        case = made("gpt", SIZE)._replace(loss=loss)
        with piped(case._replace(model=halved(case.model)), cuts=[cut], schedule="zb-h1") as pipe:
            none = all(p.grad is None for p in loss.parameters())
            optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
            before = [] if pipe.resume(folder / "of losses", optimizer) else trained(pipe, optimizer, range(2))
            if not again:
                pipe.save(folder / "of losses", optimizer)
            found["again" if again else "losses"] = before + trained(pipe, optimizer, range(2, 4))
            found[f"state{again}"], found[f"none{again}"] = pipe.state_dict(), none
            pipe.load_state_dict(made("gpt", SIZE).model.state_dict())  # the plain model's
    return found


def drawn(folder: Path) -> dict[str, Any]:
    """Three steps of a model with dropout whose first stage is frozen, and a checkpoint after the second."""
    with piped(made("adapted", SIZE), cuts=[3], schedule="zb-h1", defer="all", seed=5) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=0.1, eps=EPS)
        losses = trained(pipe, optimizer, range(2), name="adapted")
        pipe.save(folder / "drawn", optimizer)
        letters = {block.name[0] for block in pipe.plan.problem.blocks if block.devices == (pipe.rank,)}
        return {"losses": losses + trained(pipe, optimizer, range(2, 3), name="adapted"),
                "named": [name for name, _ in pipe.named_parameters()], "letters": "".join(sorted(letters))}


def drawn_again(folder: Path) -> dict[str, Any]:
    """The third of them from the checkpoint, in other stages, of a pipeline with another seed."""
    with piped(made("adapted", SIZE), cuts=[5], seed=6) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1.0, eps=EPS)
        behind = pipe.resume(folder / "drawn", optimizer)
        return {"behind": behind, "losses": trained(pipe, optimizer, range(2, 3), name="adapted")}


def held(pipe: PipelineEngine) -> dict[str, int]:
    """The bytes of what this rank has numbers for, by name."""
    tensors = (*pipe.model.named_parameters(), *pipe.model.named_buffers())
    return {name: tensor.nbytes for name, tensor in tensors if not tensor.is_meta}


class Alive:
    """The most bytes of parameters that were alive at once in this process, looked at whenever numbers are made."""

    def __init__(self) -> None:
        self.most, of = 0, Materials.of

        def watched(materials: Materials, wanted: Any) -> dict[int, torch.Tensor]:
            found = of(materials, wanted)
            self.look(sum(value.nbytes for value in found.values()))
            return found

        self.patched: Any = watched

    def look(self, more: int = 0) -> None:
        gc.collect()
        alive = {thing.untyped_storage().data_ptr(): thing.nbytes for thing in gc.get_objects()
                 if type(thing) is torch.nn.Parameter and not thing.is_meta}
        self.most = max(self.most, more + sum(alive.values()))


def meta(folder: Path) -> dict[str, Any]:
    """A model on the meta device, with the numbers of a file; trained, gathered, saved."""
    alive, of = Alive(), Materials.of
    Materials.of = alive.patched  # type: ignore[method-assign]
    with piped(made("gpt", SIZE, device="meta"), state=folder / "gpt.pt") as pipe:
        Materials.of = of  # type: ignore[method-assign]
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
        alive.look()
        losses = trained(pipe, optimizer, range(2))
        own = held(pipe)
        alive.look()
        pipe.save(folder / "of meta", optimizer)
        losses += trained(pipe, optimizer, range(2, 4))
        return {"losses": losses, "held": own, "alive": alive.most, "state": pipe.state_dict(),
                "names": [name for name, _ in pipe.named_parameters()]}


def made_here(folder: Path) -> dict[str, Any]:
    """Such a model with the numbers that its modules make."""
    case = made("gpt", SIZE, device="meta")
    torch.manual_seed(11)
    with piped(case, cuts=[12]) as pipe:
        return {"state": pipe.state_dict(), "held": held(pipe), "loss": stepped(pipe, 0)}


def narrow(folder: Path) -> dict[str, Any]:
    """Three steps in bf16, with a checkpoint of the weights in fp32."""
    with piped(made("gpt", SIZE, dtype=torch.float32), dtype=torch.bfloat16) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3, eps=EPS)
        losses = trained(pipe, optimizer, range(3), torch.float32)
        pipe.save(folder / "narrow", optimizer)
        batch = made("gpt", SIZE)
        return {"losses": losses, "state": pipe.state_dict(), "loss": pipe.eval_step(*batch.args, target=batch.target),
                "modules": {str(p.dtype) for p in pipe.model.parameters()},
                "trained": {str(p.dtype) for p in pipe.parameters()}}


def narrow_on_meta(folder: Path) -> dict[str, Any]:
    """The same from that checkpoint, on the meta device."""
    case = made("gpt", SIZE, dtype=torch.float32, device="meta")
    with piped(case, dtype=torch.bfloat16, state=folder / "narrow") as pipe:
        batch = made("gpt", SIZE)
        return {"state": pipe.state_dict(), "loss": pipe.eval_step(*batch.args, target=batch.target)}


def cast(folder: Path) -> dict[str, Any]:
    """Three steps under autocast, with split backwards."""
    with piped(made("gpt", SIZE, dtype=torch.float32), autocast=torch.bfloat16, schedule="zb-h1") as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3, eps=EPS)
        losses = trained(pipe, optimizer, range(3), torch.float32)
        return {"losses": losses, "state": pipe.state_dict(), "plan": [b.name for b in pipe.plan.problem.blocks],
                "boundaries": [str(b.dtype) for b in pipe.cut.stages([]).boundaries.values()]}


def with_compile(folder: Path) -> dict[str, Any]:
    """Two steps of compiled stages, and one under autocast; how often a stage was compiled."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    with piped(made("gpt", SIZE), schedule=None, compile={"backend": backend}) as pipe:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2, eps=EPS)
        found = {"losses": trained(pipe, optimizer, range(2)), "graphs": len(graphs),
                 "plan": [b.name for b in pipe.plan.problem.blocks], "state": pipe.state_dict()}
    with piped(made("gpt", SIZE, dtype=torch.float32), compile={"backend": backend}, autocast=torch.bfloat16) as pipe:
        return {**found, "cast": stepped(pipe, 0, dtype=torch.float32), "graphs of both": len(graphs)}


def of_schedulers(folder: Path) -> dict[str, Any]:
    """Four steps, and the last two from a checkpoint, in other stages; the last state as a DCP, too."""
    def ready(pipe: PipelineEngine, lr: float) -> tuple[torch.optim.Optimizer, MultiStepLR]:
        optimizer = torch.optim.AdamW(pipe.parameters(), lr=lr, eps=EPS)
        return optimizer, MultiStepLR(optimizer, [1, 3], gamma=0.1)

    with piped(made("gpt", SIZE)) as pipe:
        optimizer, scheduler = ready(pipe, 1e-2)
        losses = trained(pipe, optimizer, range(2), scheduler=scheduler)
        pipe.save(folder / "scheduled", optimizer, extra={"rate": scheduler})
        losses += trained(pipe, optimizer, range(2, 4), scheduler=scheduler)
    with piped(made("gpt", SIZE), cuts=[34]) as pipe:
        optimizer, scheduler = ready(pipe, 1.0)
        behind = pipe.resume(folder / "scheduled", optimizer, extra={"rate": scheduler})
        again = trained(pipe, optimizer, range(2, 4), scheduler=scheduler)
        dcp.save(pipe.state_dict(whole=False), checkpoint_id=folder / "dcp")  # type: ignore[attr-defined]
        return {"losses": losses, "again": again, "behind": behind, "rate": scheduler.get_last_lr(),
                "state": pipe.state_dict(), "folder": str(folder / "dcp")}


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
    """The names of ranges in a profile of a step, behind a picture that cannot be written."""
    with piped(made("gpt", SIZE)) as pipe:
        stepped(pipe, 0)
        with pytest.raises(OSError) if pipe.rank == 0 else nullcontext():
            pipe.draw(str(folder / "none" / "step.svg"))
        with torch.profiler.profile() as profile:
            stepped(pipe, 1)
        names = {event.name for event in profile.events() or () if event.name.startswith("weft:")}
        return {"names": sorted(names), "plan": [str(i) for i in pipe._stepping.plan.program.ranks[pipe.rank]]}


PARTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "accumulated": accumulated, "added": added, "saved": saved, "resumed": resumed, "drawn": drawn,
    "of_losses": of_losses, "drawn_again": drawn_again, "meta": meta, "made_here": made_here,
    "narrow": narrow, "narrow_on_meta": narrow_on_meta, "cast": cast, "with_compile": with_compile,
    "of_schedulers": of_schedulers, "in_halves": in_halves, "profiled": profiled}


if __name__ == "__main__":
    run_parts(PARTS)
