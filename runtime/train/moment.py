"""Random numbers that depend on the computation alone: not on cuts, schedules, ranks, or repetitions.

Each random operator draws from its own seed, made from the training's seed, the step, the micro-batch, and the
operator's number in the whole model. So a micro-batch has the same masks wherever and whenever it is run, and a
recomputation has those of the first run. Other code's random numbers are not affected.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


@dataclass
class Moment:
    """The current ``step`` and ``micro_batch``, counted over all replicas. ``seed`` is the training's."""

    seed: int = 0
    step: int = 0
    micro_batch: int = 0

    def seed_of(self, operator: int) -> int:
        """The current seed of operator number ``operator``, with 63 bits."""
        packed = struct.pack("<Qqqq", self.seed % 2**64, self.step, self.micro_batch, operator)
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 1

    @contextmanager
    def drawing(self, operator: int, device: torch.device | None = None) -> Iterator[None]:
        """Code inside, on the CPU or on ``device``, draws from the seed of ``operator``; afterwards torch's generators
        are restored."""
        generators = [torch.default_generator]
        if device is not None and device.type == "cuda":
            generators.append(torch.cuda.default_generators[
                torch.cuda.current_device() if device.index is None else device.index])
        states = [generator.get_state() for generator in generators]
        seed = self.seed_of(operator)
        for generator in generators:
            generator.manual_seed(seed)
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


class Seeded(nn.Module):
    """The operator ``target``, which draws random numbers, as number ``number`` of its model. The runner of its stage
    sets ``moment``."""

    def __init__(self, target: Callable[..., Any], number: int) -> None:
        super().__init__()
        self.target, self.number, self.moment = target, number, Moment()

    def forward(self, *args: Any, **settings: Any) -> Any:
        """The operator's result."""
        device = settings.get("device") or next(
            (x.device for x in tree_leaves(args) if isinstance(x, Tensor) and x.is_cuda), None)
        with self.moment.drawing(self.number, None if device is None else torch.device(device)):
            return self.target(*args, **settings)

    def extra_repr(self) -> str:
        """The operator."""
        return str(self.target)


def seeds_of(module: nn.Module, moment: Moment) -> None:
    """Make all random operators of ``module`` draw at ``moment``, as it is when they run."""
    for part in module.modules():
        if isinstance(part, Seeded):
            part.moment = moment
