"""The building blocks that a search tries: offsets uniform along each way over the devices, and slack between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from weft.solver.baselines.rivals.weights_anew import Rule
from weft.solver.pipeline import Pipeline

__all__ = ["NEVER", "BlockChoice", "shares", "ways"]

NEVER = float("inf")

@dataclass(frozen=True, slots=True)
class BlockChoice:
    """A building block: ``slack`` along even and odd ways of the forwards and of the gradients, in slots, the ``gap``
    between forwards and gradients, the interval's ``stretch``; ``even`` where all durations count as one slot; ``lead``
    and ``patience`` as in the block, the former in intervals; the weight gradients placed anew by ``rule``, if any."""

    slack: tuple[float, float, float, float]
    gap: float
    stretch: float
    lead: float = 1.0
    patience: float = 0.0
    even: bool = False
    rule: Rule | None = None

    def neighbours(self) -> Iterator[BlockChoice]:
        """Choices a step away."""
        for step in (0.5, -0.5, 1.0, -1.0):
            if self.gap + step >= 0:
                yield replace(self, gap=self.gap + step)
            for k in range(4):
                if self.slack[k] + step >= 0:
                    slack = (*self.slack[:k], self.slack[k] + step, *self.slack[k + 1:])
                    yield replace(self, slack=slack)  # type: ignore[arg-type]
        for factor in (0.97, 1.03, 0.9, 1.1):
            if self.stretch * factor >= 0.9:
                yield replace(self, stretch=self.stretch * factor)
        for lead in (1.0, NEVER, 0.0):
            yield replace(self, lead=lead)
        for patience in (0.0, 1.0, 0.5):
            yield replace(self, patience=patience)
        yield replace(self, even=not self.even)


def ways(pipeline: Pipeline) -> list[int]:
    """Per stage, the number of the way along the devices on which it lies, a new one where a device comes again."""
    found, way, met = [], 0, set[int]()
    for stage in pipeline.stages:
        if stage.device in met:
            way, met = way + 1, set()
        met.add(stage.device)
        found.append(way)
    return found


def shares(pipeline: Pipeline) -> npt.NDArray[np.float64]:
    """Per step, which of a choice's slacks and gap lies before it."""
    way = ways(pipeline)
    count = len(way)
    found = np.zeros((2 * count, 5))
    for s in range(1, count):
        if way[s] == way[s - 1]:
            found[s, way[s] % 2] = 1
            found[2 * count - s, 2 + way[s] % 2] = 1  # from the gradient of stage s to that of stage s - 1
    found[count, 4] = 1
    return found
