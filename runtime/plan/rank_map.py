"""Which rank runs which devices of a problem.

A rank is a device that is not a lane, with its lanes: its *pool*. Ranks are numbered in the order of their devices, so
without lanes rank r is device r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.solver.problem import Problem


@dataclass(frozen=True)
class RankMap:
    """The ranks of ``problem``. ``devices``: per rank, its device; ``of_device``: per device, its rank."""

    problem: Problem
    devices: tuple[int, ...]
    of_device: tuple[int, ...]

    @classmethod
    def of(cls, problem: Problem) -> RankMap:
        """The ranks of ``problem``."""
        devices = tuple(d for d, owner in enumerate(problem.pool_of) if d == owner)
        rank = {device: r for r, device in enumerate(devices)}
        return cls(problem, devices, tuple(rank[owner] for owner in problem.pool_of))

    def __len__(self) -> int:
        return len(self.devices)

    def of_block(self, block: int) -> tuple[int, ...]:
        """The ranks that run ``block`` together, each once, in the order of its devices."""
        return tuple(dict.fromkeys(self.of_device[device] for device in self.problem.blocks[block].devices))

    def pool(self, rank: int) -> tuple[int, ...]:
        """The devices of ``rank``: its own, then its lanes."""
        device = self.devices[rank]
        return device, *self.problem.lanes_of[device]

    def held(self, rank: int, block: int) -> tuple[int, ...]:
        """The devices of ``rank`` that ``block`` occupies."""
        return tuple(device for device in self.problem.blocks[block].devices if self.of_device[device] == rank)

    def blocks_on(self, rank: int) -> Sequence[int]:
        """The blocks that ``rank`` runs, in file order."""
        return tuple(self.problem.pool_places[self.devices[rank]])
