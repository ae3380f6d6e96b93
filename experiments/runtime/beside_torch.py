"""A step of ``weft.pipeline`` beside PyTorch's pipelining schedules on the best cut between layers, and beside DDP.

    python -m experiments.runtime.beside_torch [--only NAME ...] [--rounds N] [--device cuda]

Two ranks over gloo (on GPUs over NCCL) train models whose layers take unequal times. The layers are timed one by one in
one process; of all cuts between them PyTorch gets the one whose busiest rank has least to do: two stages for
``Schedule1F1B``, four for ``ScheduleInterleaved1F1B`` and ``ScheduleZBVZeroBubble``. weft is told nothing of layers.
All take turns in one run, a burst of steps each, without optimizers; what counts is the median over the rounds of the
ratio within a round. DDP has half of the batch on each rank, at once. ``balance`` is the load of the busiest rank of
two stages over half of the whole: what no schedule on a cut between layers is rid of. Writes ``beside_torch.json``;
exits with 1 where a step takes more than 1.02 of the best of PyTorch's, or more than 0.95 where ``balance`` is above
:data:`UNEVEN`, on CPUs: ranks that share a GPU take turns, and a step takes the sum of their work.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

import weft
from experiments.lib.provenance import begun
from experiments.runtime.overhead import burst, in_rounds, ratio
from weft.runtime.ranks.launch import launch_local

RANKS, MICRO_BATCHES, STEPS = 2, 8, 2
#: Above which a cut between layers is one that does not balance ranks.
UNEVEN = 1.1
#: By method, which stages each rank runs.
THEIRS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "Schedule1F1B": (Schedule1F1B, ((0,), (1,))),
    "ScheduleInterleaved1F1B": (ScheduleInterleaved1F1B, ((0, 2), (1, 3))),
    "ScheduleZBVZeroBubble": (ScheduleZBVZeroBubble, ((0, 3), (1, 2)))}
Loss = Callable[[Tensor, Tensor], Tensor]


class _Block(nn.Module):
    """A feed-forward block with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def _words(scores: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _heavy_head(scale: int) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    width = 128 * scale
    layers = [nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True) for _ in range(6)]
    ids = torch.randint(6000, (4 * MICRO_BATCHES, 48))
    return [nn.Embedding(6000, width), *layers, nn.Linear(width, 6000)], ids, ids.roll(-1, 1), _words


def _blocks(scale: int) -> tuple[list[nn.Module], Tensor, Tensor, Loss]:
    x = torch.randn(128 * scale * MICRO_BATCHES, 384 * scale)
    return [_Block(384 * scale) for _ in range(5)], x, x.flip(1), nn.functional.mse_loss


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


def rank_main(name: str, rounds: int, kind: str) -> None:
    """One rank: all methods in rounds; process 0 prints seconds a step by round."""
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
    if not rank:
        wall = {method: [seconds for seconds, _ in each] for method, each in found.items()}
        best = min(THEIRS, key=lambda method: statistics.median(wall[method]))
        print(json.dumps({
            "model": name, "layers": seconds, "cuts": {method: cut for method, (_, cut) in cuts.items()},
            "balance": cuts["Schedule1F1B"][0] / (sum(seconds) / RANKS), "places": places,
            "stages": len(report.ranks), "planned": report.planned, "bound": report.bound,
            "seconds": {method: statistics.median(each) for method, each in wall.items()}, "best": best,
            "ratios": {method: ratio(wall["weft"], each) for method, each in wall.items() if method != "weft"}}))
    dist.destroy_process_group()


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model, and write them; 1 where weft is slower than it should be."""
    if (words := list(sys.argv[1:] if arguments is None else arguments))[:1] == ["--rank"]:
        rank_main(words[1], int(words[2]), words[3])
        return 0
    options, record = begun(__doc__, words, "beside_torch.json", only=list(MODELS), rounds=9, device="cpu")
    rows: list[dict[str, Any]] = []
    for name in options.only:
        ended = launch_local(RANKS, [sys.executable, "-m", "experiments.runtime.beside_torch", "--rank", name,
                                     str(options.rounds), options.device], timeout=280)
        if any(end.code for end in ended):
            raise SystemExit("\n".join(end.errors for end in ended))
        rows.append(json.loads(ended[0].output.splitlines()[-1]))
        print(json.dumps(rows[-1]), flush=True)
        record.write({"load": record.provenance["machine"]["load"], "ranks": RANKS, "micro_batches": MICRO_BATCHES,
                      "rounds": options.rounds, "steps_a_round": STEPS, "rows": rows})
    return int(options.device == "cpu" and any(
        row["ratios"][row["best"]] > (0.95 if row["balance"] > UNEVEN else 1.02) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
