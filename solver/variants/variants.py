"""Pipelines of one graph whose numbers differ, side by side in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Numbers", "Variants", "Wait"]

#: Variants x blocks (waits, devices): ticks of time or units of memory.
Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wait:
    """Block ``target`` waits for block ``source`` of its own micro-batch."""

    source: int
    target: int


@dataclass(frozen=True)
class Variants:
    """K pipelines with the same blocks on the same devices, which wait for each other in the same way.

    Of S ``stages``, block s is the forward of stage s; where they train, block S + s is its gradient (a full backward,
    or of the input) and 2 S + s its weight gradient. ``device``: of each block. ``order``: the blocks of one
    micro-batch, each after those it waits for. ``durations`` (K x blocks) may be 0, for a block that a variant does not
    have. ``lags`` (K x waits) is the transfer of each wait. ``take`` is what a block takes when it starts (workspace
    included), ``change`` by how much it has changed the level once it has ended (both K x blocks), ``capacity`` (K x
    devices) what a device has for them.
    """

    stages: int
    device: tuple[int, ...]
    waits: tuple[Wait, ...]
    order: tuple[int, ...]
    durations: Numbers
    lags: Numbers
    take: Numbers
    change: Numbers
    capacity: Numbers

    def __len__(self) -> int:
        return len(self.durations)

    @property
    def devices(self) -> int:
        """How many there are."""
        return int(self.capacity.shape[1])

    def blocks_on(self, device: int) -> list[int]:
        """The blocks that run on ``device``."""
        return [block for block, own in enumerate(self.device) if own == device]

    def chosen(self, which: npt.NDArray[np.intp] | npt.NDArray[np.bool_] | Sequence[int] | slice) -> Variants:
        """Some of them."""
        return replace(self, durations=self.durations[which], lags=self.lags[which], take=self.take[which],
                       change=self.change[which], capacity=self.capacity[which])
