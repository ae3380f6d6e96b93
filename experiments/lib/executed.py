"""Stages of a captured model run as ranks of 1F1B would, one rank after another in one process, every byte counted.

A rank's weights, gradients and two values of an optimizer are counted as they are; what its passes take, keep and give
back is what torch's allocator says. Messages are not: what a rank receives is put down when it is used.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from weft.runtime.captured.captured import Captured
from weft.runtime.captured.cut import BATCH, Cut, Stages
from weft.runtime.captured.loss import LOSS, LossStage
from weft.runtime.captured.memory.decisions import Decisions
from weft.runtime.captured.memory.treatment import treated
from weft.runtime.captured.purity import Purity
from weft.runtime.measure.measure import memory_of, single_threaded
from weft.runtime.train.stage import StageRunner

__all__ = ["Executed", "Ran", "one_f_one_b"]

CPU = torch.device("cpu")
STATE = 4  # a weight, its gradient, two values of an optimizer


@dataclass(frozen=True)
class Ran:
    """What a run came to: bytes held at most and planned, by rank; seconds of a micro-batch by rank; gradients."""

    peaks: tuple[int, ...]
    planned: tuple[int, ...]
    seconds: tuple[float, ...]
    gradients: Mapping[str, Tensor]


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """The passes of a rank, in order."""
    ahead = min(stages - 1 - stage, micro_batches)
    found = [("F", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        found += [("F", m + ahead), ("B", m)]
    return [*found, *(("B", m) for m in range(micro_batches - ahead, micro_batches))]


class Executed:
    """``captured`` cut at ``places`` with ``decisions``; the model gives its own loss. ``leaves``: the inputs of one
    micro-batch, which all are."""

    def __init__(self, captured: Captured, purity: Purity, places: Sequence[int], decisions: Decisions,
                 leaves: Sequence[Any], micro_batches: int) -> None:
        self.model, self.count, self.micro_batches = captured.model, len(places) + 1, micro_batches
        cut = Cut(treated(captured, decisions, leaves), places, purity)
        self.stages: Stages = cut.stages()
        self.modules: dict[int, nn.Module] = dict(self.stages.modules)
        last = self.count - 1
        self.modules[last] = LossStage(self.modules[last], captured.out_spec, self.stages.results, None)
        self.takes = {s: self.stages.ports[s].takes for s in self.modules}
        self.gives = {s: (LOSS,) if s == last else self.stages.ports[s].gives for s in self.modules}
        self.runners = {s: StageRunner(module, constant=[
            i for i, name in enumerate(self.takes[s]) if name.startswith(BATCH)]) for s, module in self.modules.items()}
        self.values: dict[str, Tensor] = {BATCH + node.name: leaf for node, leaf in zip(
            captured.inputs, leaves, strict=True) if isinstance(leaf, Tensor)}

    def run(self) -> Ran:
        """One micro-batch through all stages, for the gradients; then each rank by itself."""
        self.model.zero_grad()
        buffers = {buffer: buffer.clone() for buffer in self.model.buffers()}
        with single_threaded():
            gradients = self._through()
            found = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
            ranks = [self._rank(s, gradients) for s in range(self.count)]
        for runner in self.runners.values():
            runner.close()
        self.model.zero_grad()
        with torch.no_grad():
            for buffer, value in buffers.items():
                buffer.copy_(value)
        peaks, planned, seconds = zip(*ranks, strict=True)
        return Ran(peaks, planned, seconds, found)

    def _through(self) -> dict[str, Tensor]:
        """What comes back for each value; the values stay."""
        for s, runner in self.runners.items():
            self.values.update(zip(self.gives[s], runner.forward(0, *self._xs(s)), strict=True))
        gradients = {LOSS: torch.ones_like(self.values[LOSS])}
        for s in reversed(self.runners):
            for name, gradient in zip(self.takes[s], self.runners[s].backward(0, *self._back(s, gradients)),
                                      strict=True):
                if gradient is not None:
                    gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return gradients

    def _xs(self, s: int) -> list[Tensor]:
        return [self.values[name].clone() for name in self.takes[s]]

    def _back(self, s: int, gradients: Mapping[str, Tensor]) -> list[Tensor | None]:
        return [gradients[name].clone() if name in gradients else None for name in self.gives[s]]

    def _rank(self, s: int, gradients: Mapping[str, Tensor]) -> tuple[int, int, float]:
        """What a rank holds at most, what it was to hold, and how long it takes for a micro-batch."""
        runner = self.runners[s]
        passes: dict[str, Callable[[int], object]] = {
            "F": lambda m: runner.forward(m, *self._xs(s)),
            "B": lambda m: runner.backward(m, *self._back(s, gradients))}
        forward, backward = (memory_of(partial(_dropped, passes[letter]), CPU)[1] for letter in "FB")

        def step() -> None:
            for letter, m in one_f_one_b(s, self.count, self.micro_batches):
                passes[letter](m)

        _, memory = memory_of(step, CPU)
        laps = []
        for _ in range(3):
            begun = time.perf_counter()
            step()
            laps.append((time.perf_counter() - begun) / self.micro_batches)
        static = STATE * sum(p.numel() * p.element_size() for p in self.modules[s].parameters())
        flying = min(self.micro_batches, self.count - s)
        planned = static + flying * forward.change + max(forward.peak - forward.change, backward.peak)
        return static + memory.peak, planned, statistics.median(laps)


def _dropped(run: Callable[[int], object]) -> None:
    run(0)
