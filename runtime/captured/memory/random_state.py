"""What a second forward draws and writes: the random numbers of the first, and no buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from weft.runtime.captured.memory.tensors import attribute_of
from weft.runtime.train.moment import Seeded

__all__ = ["RandomState", "unwritten"]

#: How far the seeds of shares are from each other.
FAR = 1_000_003


class RandomState:
    """What random numbers are drawn from at one point of a forward: torch's generators, and the moment of operators
    with seeds of their own."""

    def __init__(self, seeded: Sequence[Seeded], device: torch.device, share: int) -> None:
        self.devices = [device] if device.type == "cuda" else []
        self.here, self.there = torch.get_rng_state(), [torch.cuda.get_rng_state(device) for device in self.devices]
        self.moments = [(moment, replace(moment, seed=moment.seed + share * FAR)) for moment in {
            id(part.moment): part.moment for part in seeded}.values()]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Whatever runs inside draws what was drawn then."""
        now = [replace(moment) for moment, _ in self.moments]
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.here)
            for device, state in zip(self.devices, self.there, strict=True):
                torch.cuda.set_rng_state(state, device)
            try:
                for moment, then in self.moments:
                    vars(moment).update(vars(then))
                yield
            finally:
                for (moment, _), own in zip(self.moments, now, strict=True):
                    vars(moment).update(vars(own))


@contextmanager
def unwritten(stage: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Whatever is written into these buffers inside, afterwards they are as they were."""
    before = [(buffer, buffer.clone()) for name in names for buffer in [attribute_of(stage, name)]]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.data.copy_(value)  # for torch, nothing has been written: what others have saved still holds
