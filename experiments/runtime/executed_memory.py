"""The largest micro-batch that runs under a limit of bytes: memory planned by operators, by whole layers, and all kept.

    python -m experiments.runtime.executed_memory [--only NAME ...] [--most 64]

DawnPiper's question (Peng et al., arXiv 2505.05856), with plans that are executed: each model is captured at
micro-batches of growing size, its operators are measured, and three planners cut it into two stages under the limit:
weft's, which decides for every operator whether it is kept, recomputed or offloaded; a rule for whole layers, as vPipe
plans (:func:`weft.solver.placement.memory.layer_rule.whole_layers`); and the best cut with everything kept. Stages
then do what was decided, rank by rank in the order of 1F1B with four micro-batches in one process, and every byte that
torch allocates is counted (:mod:`experiments.lib.executed`). A size *runs* if no rank holds more than the limit. Where
a plan turns out to hold more than it says, it is made again for less, for all three planners alike. The limit is what
all kept needs at the size named ``base``.

Told are the largest size that runs; the largest whose time a sample is at most 1/0.9 of the planner's own best
(``fast``: without such a limit a slow plan counts as much as a good one; these are times of the clock); how far the
measured peak was from the planned one; and the largest relative error of a gradient against the plain model: in fp32 of
all that ran, and in fp64 of the largest plan by operators. ``co-shard``: the peak of the model as one stage on one rank
with its layers in four shares of the batch, over that with all kept, and the error of its gradients.

Writes ``executed_memory.json``; exits with 1 where a gradient is not the model's or a measured peak is further than 5 %
from the planned one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from experiments.lib.executed import CPU, Executed, Ran
from experiments.lib.provenance import RESULTS, Record
from weft.app.pipeline.planning.memory.chain import Chain, chain_of, copy_bandwidth
from weft.app.pipeline.planning.memory.rounds import MemoryRounds
from weft.runtime.captured.captured import Captured, CaptureError
from weft.runtime.captured.loss import loss_of
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.purity import Purity
from weft.solver.placement.memory.layer_rule import whole_layers
from weft.solver.placement.memory.plan import MemoryPlan, MemoryProblem
from weft.solver.placement.memory.plan_memory import plan_memory

__all__ = ["MODELS", "PLANNERS", "main"]

STAGES, MICRO_BATCHES = 2, 4
SIZES = (4, 8, 12, 16, 20, 24, 32, 40, 48, 64)
FAST = 0.9
#: Largest relative errors of a gradient that count as none, in fp64 and fp32, and of a peak.
EXACT, CLOSE, NEAR = 1e-12, 1e-4, 0.05


class Model(NamedTuple):
    """What makes the module, what makes the inputs of so many samples, the size whose needs with all kept are the
    limit, and the layers that are computed in shares."""

    make: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    base: int
    layers: tuple[str, ...]


class Transformer(nn.Module):
    """Layers on vectors in a row; ``causal`` ones see what is before them only."""

    def __init__(self, into: nn.Module, width: int, layers: int, length: int, out: int, causal: bool) -> None:
        super().__init__()
        self.into, self.places = into, nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True,
                                                                norm_first=causal) for _ in range(layers)])
        self.head, self.causal = nn.Linear(width, out), causal

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        y = self.into(x) + self.places
        mask = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1) if self.causal else None
        for layer in self.layers:
            y = layer(y, src_mask=mask)
        scores = self.head(y if labels.dim() == 2 else y.mean(1))
        return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())


class Patches(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)])

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + x)


class Convolutions(nn.Module):
    def __init__(self, channels: int = 16, blocks: int = 6) -> None:
        super().__init__()
        self.into = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList([Residual(channels) for _ in range(blocks)])
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        y = self.into(x)
        for layer in self.layers:
            y = layer(y)
        return nn.functional.cross_entropy(self.head(y.mean((2, 3))), labels)


def _tokens(size: int) -> tuple[Tensor, ...]:
    return torch.randint(97, (size, 64)), torch.randint(97, (size, 64))


def _pictures(size: int) -> tuple[Tensor, ...]:
    return torch.randn(size, 3, 32, 32), torch.randint(10, (size,))


_LAYERS = tuple(f"layers.{i}" for i in range(6))
MODELS = {
    "GPT": Model(lambda: Transformer(nn.Embedding(97, 64), 64, 6, 64, 97, True), _tokens, 8, _LAYERS),
    "BERT-like": Model(lambda: Transformer(nn.Embedding(97, 64), 64, 6, 64, 97, False), _tokens, 8, _LAYERS),
    "ViT-like": Model(lambda: Transformer(Patches(64), 64, 6, 64, 10, False), _pictures, 8, _LAYERS),
    "residual convolutions": Model(Convolutions, _pictures, 8, ()),  # batch norm mixes samples: no shares
}


def _by_operators(problem: MemoryProblem) -> MemoryPlan:
    return plan_memory(problem, gap=1e-2, time_limit=3.0)


def _keeping(problem: MemoryProblem) -> MemoryPlan:
    return plan_memory(replace(problem, modes=frozenset()))


#: How a chain is planned.
PLANNERS: dict[str, Callable[[MemoryProblem], MemoryPlan]] = {
    "operators": _by_operators, "whole layers": whole_layers, "all kept": _keeping}


class At:
    """A model at one size."""

    def __init__(self, model: Model, size: int, dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.module = model.make().to(dtype)
        torch.manual_seed(1)
        self.inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in model.inputs(size))
        self.size = size
        self.captured = Captured.of(self.module, self.inputs)
        self.purity = Purity(self.captured)
        buffers = {buffer: buffer.clone() for buffer in self.module.buffers()}
        loss_of(self.module(*self.inputs)).backward()  # type: ignore[no-untyped-call]
        self.wanted = {n: p.grad.clone() for n, p in self.module.named_parameters() if p.grad is not None}
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)

    def chain(self) -> Chain:
        """Its operators, measured."""
        return chain_of(self.captured, self.purity, self.inputs, loss_of, first=2)

    def ran(self, places: Sequence[int], decisions: Decisions, micro_batches: int = MICRO_BATCHES) -> Ran:
        """What comes of running it."""
        return Executed(self.captured, self.purity, places, decisions, self.inputs, micro_batches).run()

    def error(self, found: Mapping[str, Tensor]) -> float:
        """The largest relative error of a gradient; what is zero but for rounding is held against all."""
        least = 1e-6 * max(float(g.norm()) for g in self.wanted.values())
        assert set(found) == set(self.wanted)
        return max(float((found[n] - g).norm()) / max(float(g.norm()), least) for n, g in self.wanted.items())


def tried(at: At, chain: Chain, planner: str, limit: int, bandwidth: float) -> tuple[dict[str, Any], Decisions] | None:
    """The best run of one planner's plans that stays under the limit, and what it decided; ``None`` if none does."""
    problem = chain.problem(STAGES, limit, bandwidth, micro_batches=MICRO_BATCHES)
    rounds = MemoryRounds(lambda memory: PLANNERS[planner](replace(problem, memory=memory)), limit)
    best: tuple[dict[str, Any], Decisions] | None = None
    while (plan := rounds.following()) is not None:
        decisions = Decisions.made(at.captured, at.purity, chain.modes(plan.modes))
        places = chain.cuts(plan.cuts)
        try:
            ran = at.ran(places, decisions)
        except CaptureError:
            break  # no cut may be there
        rounds.learn(max(ran.peaks))
        row = {"size": at.size, "seconds_a_sample": max(ran.seconds) / at.size, "peaks": list(ran.peaks),
               "peak_error": max(abs(measured / planned - 1) for measured, planned in zip(ran.peaks, ran.planned,
                                                                                         strict=True)),
               "error": at.error(ran.gradients), "places": list(places),
               "modes": {mode: sum(own == mode for own in decisions.modes.values())
                         for mode in ("recompute", "offload")}}
        if max(ran.peaks) <= limit and (best is None or row["seconds_a_sample"] < best[0]["seconds_a_sample"]):
            best = row, decisions
    return best


def measured(name: str, most: int) -> dict[str, Any]:
    """All that is told of one model, with sizes up to ``most``."""
    model = MODELS[name]
    bandwidth = copy_bandwidth(CPU)
    base = At(model, model.base)
    problem = base.chain()
    kept = _keeping(problem.problem(STAGES, 2**50, bandwidth, micro_batches=MICRO_BATCHES))
    limit = max(base.ran(problem.cuts(kept.cuts), Decisions()).peaks)
    rows: dict[str, list[dict[str, Any]]] = {planner: [] for planner in PLANNERS}
    failed: dict[str, int] = dict.fromkeys(PLANNERS, 0)
    largest: tuple[int, Sequence[int], Decisions] | None = None
    for size in SIZES:
        if size > most or all(count > 1 for count in failed.values()):
            break
        at = At(model, size)
        chain = at.chain()
        for planner in PLANNERS:
            if failed[planner] > 1:
                continue
            found = tried(at, chain, planner, limit, bandwidth)
            if found is None:
                failed[planner] += 1
                continue
            failed[planner] = 0
            rows[planner].append(found[0])
            if planner == "operators":
                largest = size, found[0]["places"], found[1]
    exact = None
    if largest is not None:
        size, places, decisions = largest
        at = At(model, size, torch.float64)
        exact = at.error(at.ran(places, decisions).gradients)
    return {"limit": limit, "base": model.base, "planners": {planner: _summed(own) for planner, own in rows.items()},
            "rows": rows, "error_fp64": exact, "co_shard": _shared(model)}


def _summed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    best = min((row["seconds_a_sample"] for row in rows), default=0.0)
    return {"runs": max((row["size"] for row in rows), default=0),
            "fast": max((row["size"] for row in rows if row["seconds_a_sample"] * FAST <= best), default=0),
            "peak_error": max((row["peak_error"] for row in rows), default=0.0),
            "error": max((row["error"] for row in rows), default=0.0)}


def _shared(model: Model) -> dict[str, float] | None:
    """Layers in four shares of the batch: the peak over that of all kept, and the error, in fp64."""
    if not model.layers:
        return None
    at = At(model, model.base, torch.float64)
    whole, shared = (at.ran([], decisions, 1) for decisions in (
        Decisions(), Decisions({}, dict.fromkeys(model.layers, 4))))
    return {"peak": shared.peaks[0] / whole.peaks[0], "error": at.error(shared.gradients)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model and planner, and write them; 1 where a gradient or a peak is not as planned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=MODELS, help="these models")
    parser.add_argument("--most", type=int, default=max(SIZES), help="samples of a micro-batch, at most")
    parser.add_argument("--output", type=Path, default=RESULTS / "executed_memory.json")
    options = parser.parse_args(arguments)
    record = Record(options.output)
    models: dict[str, Any] = record.kept().get("models", {})
    wrong = False
    for name in options.only or MODELS:
        found = models[name] = measured(name, options.most)
        print(f"{name}: {found['limit'] / 2**20:.2f} MiB a rank, what size {found['base']} needs with all kept")
        for planner, it in found["planners"].items():
            print(f"  {planner:13} runs {it['runs']:3d}, fast {it['fast']:3d}, peaks within {it['peak_error']:.2%}, "
                  f"gradients within {it['error']:.1e}", flush=True)
            wrong |= it["peak_error"] > NEAR or it["error"] > CLOSE
        shared = found["co_shard"]
        told = "" if shared is None else f", co-shard: {shared['peak']:.0%} of the peak, {shared['error']:.1e}"
        print(f"  in fp64 within {found['error_fp64']:.1e}{told}", flush=True)
        wrong |= max(found["error_fp64"] or 0.0, 0.0 if shared is None else shared["error"]) > EXACT
        record.write({"models": models}, part=bool(options.only) or options.most < max(SIZES))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
