"""A step of ``weft.pipeline`` beside PyTorch's pipelining schedules on the best cut between layers, and beside DDP.

    python -m experiments.runtime.beside_torch [--only NAME ...] [--rounds N] [--device cuda]
    python -m experiments.runtime.beside_torch --tiny [--rounds N]

Two ranks over gloo (on GPUs over NCCL) train models whose layers take unequal times. The layers are timed one by one in
one process; of all cuts between them PyTorch gets the one whose busiest rank has least to do: two stages for
``Schedule1F1B``, four for ``ScheduleInterleaved1F1B`` and ``ScheduleZBVZeroBubble``. weft is told nothing of layers.
All take turns in one run, a burst of steps each, without optimizers; what counts is the median over the rounds of the
ratio within a round. DDP has half of the batch on each rank, at once. ``balance`` is the load of the busiest rank of
two stages over half of the whole: what no schedule on a cut between layers is rid of. Writes ``beside_torch.json``;
exits with 1 where a step takes more than 1.02 of the best of PyTorch's, or more than 0.95 where ``balance`` is above
:data:`UNEVEN`, on CPUs: ranks that share a GPU take turns, and a step takes the sum of their work.

``--tiny``: what the executor itself costs, beside PyTorch's runtimes. The ranks run the same 1F1B schedule of the same
two layers, which take next to no time: through the executor; through PyTorch's runtime for any schedule, which loads it
from the CSV that ``weft export`` writes; and through its ``Schedule1F1B``, which has this one schedule written out in
Python. Writes ``overhead.json``; exits with 1 if the executor takes more CPU time than either runtime (seconds depend
on what else the machine does).
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
    schedules,
)
from torch.nn.parallel import DistributedDataParallel

import weft
from experiments.lib.foreign_models import perceptron
from experiments.lib.provenance import Record, Row
from experiments.lib.script import on_ranks, script
from weft.runtime.execute.executor import Executor
from weft.runtime.export.torch_csv import torch_csv
from weft.runtime.interface.training import Boundary, Training
from weft.runtime.plan.plan import Plan, plan_of
from weft.runtime.ranks.session import Session, join
from weft.runtime.train.worker import StageWorker
from weft.solver.baselines import baseline
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule

RANKS, MICRO_BATCHES, STEPS = 2, 8, 2
#: Above which a cut between layers is one that does not balance ranks.
UNEVEN = 1.1
#: By method, which stages each rank runs.
THEIRS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "Schedule1F1B": (Schedule1F1B, ((0,), (1,))),
    "ScheduleInterleaved1F1B": (ScheduleInterleaved1F1B, ((0, 2), (1, 3))),
    "ScheduleZBVZeroBubble": (ScheduleZBVZeroBubble, ((0, 3), (1, 2)))}
Loss = Callable[[Tensor, Tensor], Tensor]
Found = TypeVar("Found")


def _words(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _heavy_head(scale: int) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    width = 128 * scale
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(6)]
    ids = torch.randint(6000, (4 * MICRO_BATCHES, 48))
    return [nn.Embedding(6000, width), *layers, nn.Linear(width, 6000)], ids, ids.roll(-1, 1), _words


def _blocks(scale: int) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    x = torch.randn(128 * scale * MICRO_BATCHES, 384 * scale)
    return [perceptron(384 * scale) for _ in range(5)], x, x.flip(1), nn.functional.mse_loss


def _convolutions(scale: int) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    sizes = (3, 24, 48, 64, 96, 96)
    layers = [nn.Sequential(nn.Conv2d(a, b, 3, stride=1 + (i in (1, 3)), padding=1), nn.GroupNorm(8, b), nn.SiLU())
              for i, (a, b) in enumerate(itertools.pairwise(sizes))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    return [*layers, head], torch.randn(4 * MICRO_BATCHES, 3, 40 * scale, 40 * scale), torch.randint(
        10, (4 * MICRO_BATCHES,)), nn.functional.cross_entropy


def made(name: str, device: torch.device) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    """Layers, a batch, its targets and the loss; on a GPU wider, so that kernels take longer than their launch."""
    layers, x, y, loss = MODELS[name](4 if device.type == "cuda" else 1)
    return [layer.to(device) for layer in layers], x.to(device), y.to(device), loss


MODELS = {"a heavy head": _heavy_head, "five equal blocks": _blocks, "convolutions that narrow": _convolutions}


def seconds_of(layers: Sequence[nn.Module], x: Tensor, y: Tensor, loss: Loss) -> list[float]:
    """What a micro-batch takes forward and backward in each layer, the loss with the last."""
    found = [float("inf")] * len(layers)
    for _ in range(5):
        value = x.chunk(MICRO_BATCHES)[0]
        for i, layer in enumerate(layers):
            value = value.detach().requires_grad_(value.is_floating_point())
            begun = time.perf_counter()
            result = layer(value)
            end = loss(result, y.chunk(MICRO_BATCHES)[0]) if i == len(layers) - 1 else result
            end.backward(torch.ones_like(end))
            if x.device.type == "cuda":
                torch.cuda.synchronize()
            found[i], value = min(found[i], time.perf_counter() - begun), result
    return found


def best_cut(seconds: Sequence[float], ranks: Sequence[Sequence[int]]) -> tuple[float, tuple[int, ...]]:
    """The load of the busiest rank, and where stages begin and end."""
    count = sum(map(len, ranks))
    return min((max(sum(sum(seconds[cut[s]:cut[s + 1]]) for s in own) for own in ranks), cut)
               for inner in itertools.combinations(range(1, len(seconds)), count - 1)
               for cut in [(0, *inner, len(seconds))])


# -- in turns ----------------------------------------------------------------------------------------------------------


def burst(session: Session, step: Callable[[], None], steps: int) -> tuple[float, float]:
    """Seconds and CPU seconds a step, of ``steps``."""
    session.barrier("before a burst")
    begun, worked = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    worked = time.process_time() - worked
    session.barrier("to end a turn")
    return (time.perf_counter() - begun) / steps, worked / steps


def in_rounds(ways: Mapping[str, Callable[[], Found]], rounds: int) -> dict[str, list[Found]]:
    """What each of ``ways`` gave in each of ``rounds`` rounds; one more round before is for warming up. What else the
    machine does then affects all ways alike."""
    found: dict[str, list[Found]] = {name: [] for name in ways}
    for number in range(-1, rounds):
        for name, way in ways.items():
            result = way()
            if number >= 0:
                found[name].append(result)
    return found


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    """The median over the rounds of one over the other."""
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


# -- models whose layers take unequal times ----------------------------------------------------------------------------


def on_rank(name: str, rounds: int, kind: str) -> Row | None:
    """One rank: all methods in rounds; what process 0 found, in seconds a step."""
    device = torch.device("cpu")
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers, x, y, loss = made(name, device)
    rank, told = dist.get_rank(), [None]
    if not rank:
        told = [seconds_of(layers, x, y, loss)]  # type: ignore[list-item]
    dist.broadcast_object_list(told)
    seconds: Any = told[0]
    cuts = {method: best_cut(seconds, ranks) for method, (_, ranks) in THEIRS.items()}
    with weft.pipeline(nn.Sequential(*layers), (x,), loss=loss, target=y, micro_batches=MICRO_BATCHES,
                       remeasure=True) as pipe:
        def ours() -> None:
            pipe.step(x, target=y)
            for parameter in pipe.parameters():
                parameter.grad = None

        steps = {"weft": ours, **{method: theirs(method, cut, made(name, device)[0], x, y, loss)
                                for method, (_, cut) in cuts.items()},
                 "DDP": in_copies(x, y, loss, made(name, device)[0])}
        found = in_rounds({method: partial(burst, pipe.session, step, STEPS) for method, step in steps.items()}, rounds)
        report, places = pipe.report(), vars(pipe.cut)["places"]
    dist.destroy_process_group()
    if rank:
        return None
    wall = {method: [seconds for seconds, _ in each] for method, each in found.items()}
    return {"model": name, "layers": seconds, "cuts": {method: cut for method, (_, cut) in cuts.items()},
            "balance": cuts["Schedule1F1B"][0] / (sum(seconds) / RANKS), "places": places,
            "stages": len(report.ranks), "planned": report.planned, "bound": report.bound,
            "seconds": {method: statistics.median(each) for method, each in wall.items()},
            "best": min(THEIRS, key=lambda method: statistics.median(wall[method])),
            "ratios": {method: ratio(wall["weft"], each) for method, each in wall.items() if method != "weft"}}


def theirs(method: str, cut: Sequence[int], layers: Sequence[nn.Module], x: Tensor, y: Tensor,
           loss: Loss) -> Callable[[], None]:
    """A step through one of PyTorch's."""
    (kind, ranks), rank = THEIRS[method], dist.get_rank()
    count = len(cut) - 1
    stages = [PipelineStage(nn.Sequential(*layers[cut[s]:cut[s + 1]]), s, count, x.device)
              for s in ranks[rank]]
    runtime = kind(stages if count > RANKS else stages[0], MICRO_BATCHES, loss_fn=loss)
    given = (x,) if 0 in ranks[rank] else ()
    target = {"target": y} if count - 1 in ranks[rank] else {}

    def step() -> None:
        runtime.step(*given, **target)
        for stage in stages:
            stage.submod.zero_grad()
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    step()  # it learns its shapes
    return step


def in_copies(x: Tensor, y: Tensor, loss: Loss, layers: Sequence[nn.Module]) -> Callable[[], None]:
    """A step of DDP, whose copies have equal parts of the batch."""
    model = DistributedDataParallel(nn.Sequential(*layers))
    mine, label = (part.chunk(RANKS)[dist.get_rank()] for part in (x, y))

    def step() -> None:
        model.zero_grad()
        loss(model(mine), label).backward()  # type: ignore[no-untyped-call]
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    return step


# -- stages that take next to no time ----------------------------------------------------------------------------------


TINY_MICRO_BATCHES, ROWS, WIDTH, TINY_STEPS = 16, 2, 8, 20
OURS, FROM_CSV, WRITTEN_OUT = "weft", "PyTorch, schedule from CSV", "PyTorch, Schedule1F1B"


def one_f_one_b() -> Schedule:
    """The schedule that all run."""
    blocks = [Block(f"F{s}", BlockKind.FORWARD, (s,), 1, (1,), (), (Dependency(f"F{s - 1}"),) if s else ())
              for s in range(RANKS)]
    blocks += [Block(f"B{s}", BlockKind.BACKWARD, (s,), 2, (-1,), (),
                     (Dependency(f"B{s + 1}" if s < RANKS - 1 else f"F{s}"),)) for s in reversed(range(RANKS))]
    problem = Problem("tiny", tuple(Device(f"rank {r}") for r in range(RANKS)), tuple(blocks))
    return baseline("1f1b", problem, TINY_MICRO_BATCHES)


def module(stage: int) -> nn.Module:
    """A layer that takes next to no time."""
    torch.manual_seed(stage)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())


def by_executor(plan: Plan, session: Session, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step through ours."""
    xs, ys = x.chunk(TINY_MICRO_BATCHES), y.chunk(TINY_MICRO_BATCHES)
    part = Training({session.rank: module(session.rank)}, [Boundary((ROWS, WIDTH))], lambda step, m: xs[m],
                    targets=lambda step, m: ys[m], loss=nn.functional.mse_loss)
    worker = StageWorker(plan, session, part)
    executor = Executor(plan, session, worker)
    executor.run()

    def step() -> None:
        worker.begin(0)
        executor.run(together=False)

    return step


def by_pytorch(folder: Path | None, rank: int, x: Tensor, y: Tensor) -> Callable[[], None]:
    """A step through PyTorch's: of the schedule in ``folder``'s CSV, or its own 1F1B."""
    stage: Any = PipelineStage(module(rank), rank, RANKS, torch.device("cpu"))
    runtime: Any
    if folder is None:
        runtime = Schedule1F1B(stage, TINY_MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
    else:
        maker: Any = schedules._PipelineScheduleRuntime
        runtime = maker([stage], TINY_MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
        runtime._load_csv(str(folder / "schedule.csv"), format="compute_comms")

    def step() -> None:
        if rank == 0:
            runtime.step(x)
        else:
            runtime.step(target=y)

    step()  # it learns its shapes
    return step


def on_tiny_rank(folder: str, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """One rank: all methods in rounds; seconds a step and CPU seconds a step, by round."""
    with join(120) as session:
        torch.manual_seed(9)
        x, y = (torch.randn(TINY_MICRO_BATCHES * ROWS, WIDTH) for _ in range(2))
        steps = {OURS: by_executor(plan_of(one_f_one_b()), session, x, y),
                 FROM_CSV: by_pytorch(Path(folder), session.rank, x, y),
                 WRITTEN_OUT: by_pytorch(None, session.rank, x, y)}
        return in_rounds({name: partial(burst, session, step, TINY_STEPS) for name, step in steps.items()}, rounds)


def compared(rounds: int) -> Row:
    """All methods on two processes of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schedule.csv").write_text(torch_csv(one_f_one_b(), communication=True,
                                                             torch=torch.__version__))
        ranks = on_ranks(on_tiny_rank, RANKS, folder, rounds)
    wall = {name: [seconds for seconds, _ in each] for name, each in ranks[0].items()}
    worked = {name: [sum(work for _, work in rounds) for rounds in zip(*(rank[name] for rank in ranks), strict=True)]
              for name in ranks[0]}
    return {"ranks": RANKS, "micro_batches": TINY_MICRO_BATCHES, "rounds": rounds, "steps_a_round": TINY_STEPS,
            "methods": [{"method": name, "microseconds_a_step": 1e6 * statistics.median(wall[name]),
                         "ratio_to_weft": ratio(wall[name], wall[OURS]),
                         "cpu_ratio_to_weft": ratio(worked[name], worked[OURS])} for name in wall]}


@script(lambda asked: "overhead.json" if asked.tiny else "beside_torch.json", only=list(MODELS), rounds=int,
        device="cpu", tiny=False)
def main(options: Namespace, record: Record) -> bool:
    rounds = options.rounds or (15 if options.tiny else 9)
    if options.tiny:
        found = compared(rounds)
        print(found)
        record.write(found)
        return any(row["cpu_ratio_to_weft"] < 1 for row in found["methods"])
    rows = record.rows((on_ranks(on_rank, RANKS, name, rounds, options.device)[0] for name in options.only),
                       load=record.provenance["machine"]["load"], ranks=RANKS, micro_batches=MICRO_BATCHES,
                       rounds=rounds, steps_a_round=STEPS)
    return options.device == "cpu" and any(
        row["ratios"][row["best"]] > (0.95 if row["balance"] > UNEVEN else 1.02) for row in rows)
