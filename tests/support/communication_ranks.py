"""What each rank of a test of programs of computation and communication runs, and of optimizers with sliced states.

``python -m tests.support.communication_ranks FOLDER`` under two or three ranks; each writes ``RANK.json``. The process
of rank 1 ends on purpose, with exit code 3, in the last check.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.communication_programs import CHUNKS, chunked, pipeline, sliced_optimizer, tensor_parallel
from tests.support.sharded_training import LAMB, Model, losses_of, plain_rule
from weft.communication import Prices, ProgramOnRank, ShardedOptimizer, data_parallel, schedules, tune
from weft.models.communication import interpreter
from weft.models.communication.program import CommunicationProgram

STEPS = 5
RULES = ("adam", "adamw", "lamb")


# -- programs ---------------------------------------------------------------------------------------------------------


def run(program: CommunicationProgram, steps: int = 1, **options: Any) -> tuple[dict[str, Tensor], float]:
    """What this rank holds after some steps, and by how much it differs from the interpreter's, at most."""
    found: dict[str, Tensor] = {}
    on_rank = ProgramOnRank(program, timeout=900.0, **options)
    held: dict[str, Any] = {}
    index, worst = dist.get_rank() % program.ranks, 0.0
    for step in range(steps):
        given = {**interpreter.random_values(program, step), **held}
        values = interpreter.run(program, given)
        if step == 0:
            mine = of_rank(program, on_rank, given, index)
        else:
            mine = {**mine, **of_rank(program, on_rank, {name: value for name, value in given.items()
                                                         if name not in held}, index), **on_rank.next_step(found)}
        found = on_rank.run(mine)
        results = interpreter.results(program, values)
        held = {old: results[f"next {old}"] for old in program.carried.values()}
        worst = max([worst, *(float(np.abs(tensor.numpy() - values[name][index]).max())
                              for name, tensor in found.items())])
    on_rank.close()
    return found, worst


def of_rank(program: CommunicationProgram, on_rank: ProgramOnRank, given: Mapping[str, Any], index: int) -> dict[str,
                                                                                                                 Tensor]:
    """What this rank holds of what is given."""
    group = dist.get_rank() // program.ranks
    return {name: torch.tensor(np.asarray(value[index])) if program.tensors[name].layout == "local"
            else on_rank.held(name, torch.tensor(np.asarray(value)))
            for name, value in given.items() if program.tensors[name].group == group}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether both are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def chunks(ranks: int) -> Iterator[tuple[str, object]]:
    """A chain in chunks, with the matmul before the all-reduce and without, against the program as written."""
    program = tensor_parallel(ranks, 16 * ranks, 4 * ranks, 24)
    written, _ = run(program)
    names = [stage.name for stage in program.stages]
    for first in (0, 1):
        for count, one in zip(CHUNKS, chunked(program, tuple(names[first:])), strict=True):
            found, worst = run(one)
            yield f"{names[first]} in {count}", {"worst": worst, "same": same(found, written)}
    for schedule in schedules(program).schedules:
        found, worst = run(schedule.program)
        yield schedule.name, {"worst": worst, "same": same(found, written)}


def searched(ranks: int) -> Iterator[tuple[str, object]]:
    """What the search chooses, in the order of its schedule."""
    prices = Prices(bandwidth=1e6, memory=1e7, launch=1e-4, kernel=1e-5, flops=1e8, link=5e5)
    for program in (tensor_parallel(ranks, 64, 8 * ranks, 64), pipeline(1, 64, 64)):
        if program.ranks * program.groups == ranks:
            found = tune(program, prices, (1, 4), effort=1.0)
            yield program.name, {"worst": run(found.program, schedule=found.schedule)[1], "chunks": found.chunks}


def optimizer_programs(ranks: int) -> Iterator[tuple[str, object]]:
    """RS-C-AG with sliced states beside AR-C."""
    for rule in ("adam", "lamb"):
        whole, worst = run(data_parallel(rule, ranks, (8 * ranks, 3), itemsize=8), STEPS)
        program = sliced_optimizer(rule, ranks, (8 * ranks, 3))
        sliced, other = run(program, STEPS)
        yield rule, {"worst": max(worst, other), "same": torch.equal(whole["weight.next"], sliced["weight.next"]),
                     "difference": float((whole["weight.next"] - sliced["weight.next"]).abs().max()),
                     "state_bytes": program.state_bytes(),
                     "whole_bytes": data_parallel(rule, ranks, (8 * ranks, 3), itemsize=8).state_bytes()}


def pipelines() -> Iterator[tuple[str, object]]:
    """Sends between two groups, fused and not, whole and in chunks."""
    program = pipeline(dist.get_world_size() // 2, 8, 8)
    for schedule in schedules(program).schedules:
        found, worst = run(schedule.program)
        yield schedule.name, {"worst": worst, "held": sorted(found)}
    names = [stage.name for stage in program.stages]
    for one in chunked(program, tuple(names[1:]), (2, 4)):
        yield f"in {one.overlaps[0].chunks}", {"worst": run(one)[1]}


# -- optimizers of modules --------------------------------------------------------------------------------------------


def backward(loss: Tensor) -> None:
    """Compute the gradients of ``loss``."""
    loss.backward()  # type: ignore[no-untyped-call]


def training(rule: str) -> dict[str, Any]:
    """A module trained data parallel with sliced states, saved and loaded midway, against the plain rule."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model, plain = Model(), Model()
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()  # rank 0's are what counts
    optimizer = ShardedOptimizer(model, rule, lr=1e-2, weight_decay=0.03, clip_norm=0.5, bucket_bytes=900,
                                 timeout=900.0)
    by_rule = plain_rule(rule, plain, lr=1e-2, weight_decay=0.03)
    for step in range(STEPS):
        if step == 3:
            saved = optimizer.state_dict()
            weights = model.state_dict()
            optimizer.close()
            model = Model()
            model.load_state_dict(weights)
            optimizer = ShardedOptimizer(model, rule, lr=1.0, clip_norm=0.5, bucket_bytes=500, timeout=900.0)
            optimizer.load_state_dict(saved)
        parts = losses_of(plain, step, ranks)
        backward(sum(parts, torch.zeros(())) / ranks)
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        by_rule.step()
        plain.zero_grad()
        first, second = losses_of(model, step, ranks)[rank] / 2, losses_of(model, step, ranks)[rank] / 2
        with optimizer.accumulating():
            backward(first)
        backward(second)
        optimizer.step()
    state = model.state_dict()
    found: dict[str, Any] = {
        "difference": max(float((state[name] - value).abs().max()) for name, value in plain.state_dict().items()),
        "state_bytes": optimizer.state_bytes, "buckets": len(optimizer.buckets),
        "whole_bytes": 2 * sum(parameter.nbytes for parameter in model.parameters()),
        "moved": max(float((state[name] - value).abs().max()) for name, value in Model().state_dict().items())}
    moments = optimizer.state_dict()["state"]
    if not isinstance(by_rule, LAMB):
        named = {parameter: name for name, parameter in plain.named_parameters()}
        found["moments"] = max(float((moments[named[parameter]]["exp_avg_sq"] - entry["exp_avg_sq"]).abs().max())
                               for parameter, entry in by_rule.state.items())
        found["steps"] = {name: int(entry["step"]) for name, entry in moments.items()}
        found["plain_steps"] = {named[p]: int(entry["step"]) for p, entry in by_rule.state.items()}
    optimizer.close()
    return found


def recovered() -> float:
    """A backward ends in an error on rank 0 when others have made more gradients; how far a step after that is from
    the same without it."""
    ranks, rank, ends = dist.get_world_size(), dist.get_rank(), list[Tensor]()
    for fails in (False, True):
        torch.manual_seed(2)
        model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4))).double()
        optimizer = ShardedOptimizer(model, bucket_bytes=100, timeout=900.0)
        x = torch.randn(ranks, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))[rank]
        if fails:
            def failing(*_: object) -> None:
                raise MemoryError
            hook = model[1].register_full_backward_pre_hook(failing if rank == 0 else lambda *_: None)
            with suppress(MemoryError):
                backward(model(-x).square().mean())
            hook.remove()
            optimizer.zero_grad()
        backward(model(x).square().mean())
        optimizer.step()
        ends.append(torch.cat([value.reshape(-1) for value in model.state_dict().values()]))
        optimizer.close()
    return float((ends[0] - ends[1]).abs().max())


# -- what cannot be ---------------------------------------------------------------------------------------------------


def said(call: Callable[[], object]) -> str:
    """The sentence of the error that ``call`` ends with."""
    try:
        call()
    except (ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def mistakes() -> Iterator[tuple[str, str]]:
    """Each on some rank; what every rank says of it."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    program = tensor_parallel(ranks, 4, 4 * ranks, 6)
    other = replace(program, name="another") if rank else program
    yield "different programs", said(lambda: ProgramOnRank(other, timeout=900.0))
    yield "ranks", said(lambda: ProgramOnRank(tensor_parallel(ranks + 1, 4, 4 * (ranks + 1), 6), timeout=900.0))
    on_rank = ProgramOnRank(program, timeout=900.0)
    given = of_rank(program, on_rank, interpreter.random_values(program), rank)
    wrong = {**given, "r": given["r"][:-1]} if rank == 1 else given
    yield "shape", said(lambda: on_rank.run(wrong))
    yield "after", said(lambda: on_rank.run(given))
    model = Model() if rank == 0 else torch.nn.Linear(3, 3)
    yield "different models", said(lambda: ShardedOptimizer(model, timeout=900.0))
    optimizer = ShardedOptimizer(twice := Model(), timeout=900.0)
    backward(losses_of(twice, 0, ranks)[rank])
    yield "twice", said(lambda: backward(losses_of(twice, 1, ranks)[rank]) if rank == 1 else optimizer.step())
    dist.barrier()
    late = ProgramOnRank(program, timeout=3.0)
    yield "late", said(lambda: late.run(given)) if rank != 1 else "late"
    dist.barrier()
    gone = ProgramOnRank(program, timeout=900.0)
    if rank == 1:
        os._exit(3)
    yield "gone", said(lambda: gone.run(given))


def main(folder: Path) -> None:
    """All checks; what every rank found goes into ``RANK.json``."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, rank = dist.get_world_size(), dist.get_rank()
    found: dict[str, Any] = {"chunks": dict(chunks(ranks)), "searched": dict(searched(ranks)),
                             "optimizer_programs": dict(optimizer_programs(ranks)),
                             "pipelines": dict(pipelines()) if ranks == 2 else {},
                             "training": {rule: training(rule) for rule in RULES}}
    found["mistakes"], found["recovered"] = {}, recovered()
    file = folder / f"{rank}.json"
    file.write_text(json.dumps(found))
    for name, sentence in mistakes():
        found["mistakes"][name] = sentence
        file.write_text(json.dumps(found))
    with suppress(RuntimeError):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
