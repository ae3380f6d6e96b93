"""A module's parameters in flat buckets that are cut equally over the ranks.

A bucket holds parameters of one type, device and group of options one after another, and is filled up with zeros to a
multiple of the number of ranks: rank i has its i-th slice. The parameters' own data are views of it, so what gathers
the slices writes the parameters. Gradients lie alike, but for one element behind each slice: how many of the bucket's
parameters had no gradient on the rank, which the sum of gradients sums along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft.runtime.communication.channel import Pending

__all__ = ["Bucket", "Member", "Segment", "Summing", "buckets_of"]


class Member(NamedTuple):
    """A parameter of a bucket, by the model's name of it; ``begin`` is its first element's place there."""

    name: str
    parameter: nn.Parameter
    begin: int

    @property
    def end(self) -> int:
        """The place after its last element."""
        return self.begin + self.parameter.numel()


class Segment(NamedTuple):
    """The part of a member that lies in a slice: elements ``begin`` to before ``end`` of the slice; its first is
    element ``offset`` of the parameter, as a row. ``member``: its number in the bucket."""

    member: int
    begin: int
    end: int
    offset: int


class Summing(NamedTuple):
    """The sum of a bucket's gradients under way: ``mine`` is where this rank's slice comes, and behind it how many
    gradients were missing; ``came``: which of them this rank had."""

    pending: Pending
    mine: Tensor
    came: tuple[bool, ...]


@dataclass
class Bucket:
    """Number ``number`` of the buckets; ``options``: the number of its parameters' group of options."""

    number: int
    members: Sequence[Member]
    ranks: int
    rank: int
    options: int

    def __post_init__(self) -> None:
        first = self.members[0].parameter
        self.elements = sum(member.parameter.numel() for member in self.members)
        self.width = max(1, -(-self.elements // self.ranks))  # 1 where all parameters are empty
        self.flat = torch.zeros(self.ranks * self.width, dtype=first.dtype, device=first.device)
        for member in self.members:
            place = self.flat[member.begin:member.end]
            place.copy_(member.parameter.detach().reshape(-1))
            member.parameter.data = place.view(member.parameter.shape)
        self.segments = tuple(self.segments_of(self.rank))
        self.slice = self.flat[self.rank * self.width:(self.rank + 1) * self.width]
        self.gradient: Tensor | None = None  # of all ranks' slices, while they are filled and summed
        self.came = [False] * len(self.members)
        self.summing: Summing | None = None
        self.gathering: Pending | None = None  # the parameters under way

    def segments_of(self, rank: int) -> Iterator[Segment]:
        """What lies in the slice of ``rank``, in order."""
        low, high = rank * self.width, (rank + 1) * self.width
        for number, member in enumerate(self.members):
            begin, end = max(low, member.begin), min(high, member.end)
            if begin < end:
                yield Segment(number, begin - low, end - low, begin - member.begin)

    def take(self, number: int, gradient: Tensor) -> None:
        """Put the gradient of a member where it lies. Raises ``ValueError`` for a sparse one."""
        if gradient.layout != torch.strided:
            raise ValueError(f"the gradient of {self.members[number].name!r} is sparse, and slices are dense: make the "
                             "module with sparse=False")
        if self.gradient is None:
            self.gradient = self.flat.new_zeros(self.ranks, self.width + 1)
        member, row = self.members[number], gradient.detach().reshape(-1)
        for rank in range(member.begin // self.width, (member.end - 1) // self.width + 1):
            low = rank * self.width
            begin, end = max(low, member.begin), min(low + self.width, member.end)
            self.gradient[rank, begin - low:end - low].copy_(row[begin - member.begin:end - member.begin])
        self.came[number] = True

    @property
    def is_full(self) -> bool:
        """Whether all gradients have come."""
        return all(self.came)

    def closed(self) -> Tensor:
        """The gradients to sum, with the number of those that are missing behind each slice; they are handed over."""
        flat = self.flat.new_zeros(self.ranks, self.width + 1) if self.gradient is None else self.gradient
        flat[:, -1] = float(self.came.count(False))
        self.gradient = None
        return flat

    def forget(self) -> None:
        """Have no gradients, as before a backward."""
        self.gradient, self.summing, self.came = None, None, [False] * len(self.members)

    def wait(self) -> None:
        """Go on when the parameters are there."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def require_in_place(self) -> None:
        """Raise ``ValueError`` where a parameter's data lie elsewhere now."""
        for member in self.members:
            if member.begin < member.end and member.parameter.data_ptr() != self.flat[member.begin:].data_ptr():
                raise ValueError(f"the data of the parameter {member.name!r} have been replaced since the optimizer "
                                 "was made: move or cast the module before, and load weights into it in place")


def buckets_of(named: Sequence[tuple[str, nn.Parameter, int]], ranks: int, rank: int, most: int) -> list[Bucket]:
    """Buckets of at most ``most`` bytes (a larger parameter has one of its own), in the order of ``named``: names,
    parameters that are no other's views, and the number of each one's group of options."""
    buckets: list[Bucket] = []
    lists: dict[tuple[torch.dtype, torch.device, int], list[Member]] = {}

    def close(members: list[Member], options: int) -> None:
        buckets.append(Bucket(len(buckets), tuple(members), ranks, rank, options))
        members.clear()

    for name, parameter, options in named:
        members = lists.setdefault((parameter.dtype, parameter.device, options), [])
        begin = members[-1].end if members else 0
        if members and (begin + parameter.numel()) * parameter.element_size() > most:
            close(members, options)
            begin = 0
        members.append(Member(name, parameter, begin))
    for (_, _, options), members in lists.items():
        if members:
            close(members, options)
    return buckets
