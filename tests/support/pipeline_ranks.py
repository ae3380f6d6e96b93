"""What each rank of a test runs: a small model as a pipeline for two steps of AdamW, beside one process.

``python -m tests.support.pipeline_ranks FOLDER CASE SCHEDULE [FAULT]`` under ranks; each writes what it found.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

import weft
from tests.support.captured_models import Case, made
from tests.support.uncut import Whole
from weft.app.pipeline.of_module import pipeline
from weft.app.pipeline.run.pipe import PipelineEngine
from weft.runtime import AdamA, Plan
from weft.runtime.captured.captured import Captured
from weft.runtime.captured.loss import loss_of
from weft.runtime.plan.buffers import OPEN_SENDS

MICRO_BATCHES = 4
SIZE = 8
EPS = 1e-3  # of AdamW: with its 1e-8, rounding in a gradient that is nought (a bias on attention's keys) moves weights


#: Plans by what they are of.
_PLANS: dict[Hashable, Plan] = {}


def planned_once(of: Hashable, module: nn.Module, args: tuple[Any, ...], **options: Any) -> PipelineEngine:
    """:func:`weft.pipeline`, which measures and plans what it is ``of`` at the first call in this process; at others
    it is given that plan. All ranks call it in one order."""
    options |= {"plan": _PLANS[of]} if of in _PLANS else {}
    pipe: PipelineEngine = pipeline(module, args, **options)
    _PLANS[of] = pipe.plan
    return pipe


def parts(case: Case) -> list[tuple[Any, ...]]:
    """The micro-batches of a case: arguments, keywords, target."""
    def cut(value: Any) -> list[Any]:
        if isinstance(value, torch.Tensor):
            return list(value.chunk(MICRO_BATCHES))
        return [value] * MICRO_BATCHES

    args = zip(*map(cut, case.args), strict=True)
    kwargs = [dict(zip(case.kwargs, values, strict=True)) for values in zip(*map(cut, case.kwargs.values()),
                                                                            strict=True)] or [{}] * MICRO_BATCHES
    return list(zip(args, kwargs, cut(case.target), strict=True))


def one_process(name: str, steps: int, seed: int = 0, lr: float = 1e-3) -> tuple[
        list[float], list[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    """Losses, gradients and the last state of the plain model; with dropout, of the uncut graph."""
    model = made(name, SIZE).model
    whole = Whole(Captured.of(model, *parts(made(name, SIZE))[0][:2]), seed) if name == "adapted" else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, eps=EPS)
    losses, gradients = [], []
    for step in range(steps):
        total = 0.0
        for m, (args, kwargs, target) in enumerate(parts(made(name, SIZE, seed=step))):
            case = made(name, SIZE)
            output = model(*args, **kwargs) if whole is None else whole(step, m, args, kwargs)
            loss = (loss_of(output) if case.loss is None else case.loss(output, target)) / MICRO_BATCHES
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        losses.append(total)
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients, model.state_dict()


def two_steps(pipe: PipelineEngine, name: str) -> tuple[list[float], list[dict[str, torch.Tensor]]]:
    """The losses and gradients of two steps on batches of the case ``name``."""
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3, eps=EPS)
    losses, gradients = [], []
    for step in range(2):
        batch = made(name, SIZE, seed=step)
        losses.append(pipe.step(*batch.args, target=batch.target, **batch.kwargs))
        gradients.append({n: g.clone() for n, g in pipe.gradients().items()})
        optimizer.step()
        optimizer.zero_grad()
    return losses, gradients


def refuse(pipe: Any, case: Case, fault: str) -> None:
    """Do what a pipeline refuses."""
    if fault == "target":
        pipe.step(*case.args, target=case.target[:6])
    if fault == "loss":
        pipe.step(*case.args)
    if fault == "early" and pipe.rank == 1:
        sys.exit()
    if fault == "no_grad":
        with torch.no_grad():
            pipe.step(*case.args, target=case.target)
    if fault == "untrained":
        torch.optim.SGD(case.model.parameters()).step()
    if fault == "adama":
        pipe.step(*case.args, target=case.target)
        AdamA(pipe.parameters()).step()


def run_parts(parts: Mapping[str, Callable[[Path], dict[str, Any]]]) -> None:
    """What one rank does that is called with a folder and names of ``parts``: one after another, each written."""
    folder, port = Path(sys.argv[1]), int(os.environ["MASTER_PORT"])
    for number, part in enumerate(sys.argv[2:]):
        os.environ["MASTER_PORT"] = str(port + number)  # each has a store of its own
        torch.save(parts[part](folder), folder / f"{part}.{os.environ['RANK']}.pt")


def main() -> None:
    """What one rank does."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    schedule = None if sys.argv[3] == "search" else sys.argv[3]
    fault = sys.argv[4] if len(sys.argv) > 4 else ""
    case = made(name, SIZE)
    if fault == "seed" and os.environ["RANK"] == "1":
        torch.nn.init.normal_(next(case.model.parameters()))
    if fault == "unread":
        case.model.register_parameter("idle", torch.nn.Parameter(torch.ones(2)))
    loss = case.loss if fault != "scalar" else lambda output, target: output
    pipe = weft.pipeline(case.model, case.args, case.kwargs, loss=loss, target=case.target,
                         micro_batches=MICRO_BATCHES, schedule=schedule, time_limit=2.0,
                         timeout=900.0, spec=os.environ.get("WEFT_SPEC"),
                         dtype=torch.bfloat16 if fault == "untrained" else None,
                         memory="16 GiB" if fault == "memory" else None,  # type: ignore[arg-type]
                         cuts=[int(place) for place in os.environ["WEFT_CUTS"].split()]
                         if "WEFT_CUTS" in os.environ else None,
                         split=os.environ["WEFT_SPLIT"].split() if "WEFT_SPLIT" in os.environ else None)
    refuse(pipe, case, fault)
    losses, gradients = two_steps(pipe, name)
    state = pipe.state_dict()
    batch = made(name, SIZE)
    evaluated = pipe.eval_step(*batch.args, target=batch.target, **batch.kwargs)
    results = None if case.loss is None else pipe.eval_step(*batch.args, **batch.kwargs)
    report, sent = pipe.report(), sorted(send.layout.size for send in pipe._stepping.running[0].executor.table.sends)
    torch.save({"losses": losses, "gradients": gradients, "state": state, "evaluated": evaluated,
                "results": results, "under_way": sum(sent[-OPEN_SENDS:]),
                "report": report.to_json(), "text": str(report)}, folder / f"{pipe.rank}.pt")
    pipe.close()


if __name__ == "__main__":
    main()
