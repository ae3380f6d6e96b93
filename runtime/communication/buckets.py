"""A module's parameters in flat buckets that are divided equally over the ranks, and a rank's slice of a bucket.

A bucket has the parameters of one dtype, device and group of options in sequence, padded with zeros to a multiple of
the number of ranks; rank i owns slice i. The parameters' data are views of the bucket, so gathering the slices writes
the parameters. Gradients have the same layout, with one more element after each slice: the number of the bucket's
parameters without a gradient on the rank, which is summed with the gradients.

A slice has the optimizer states of its elements, and updates them and the weights by a rule. Parameters without a
gradient on any rank in a step keep their weights and states, as with torch's optimizers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from weft.runtime.communication.channel import Pending
from weft.runtime.communication.rules import RULES, STATES, direction, moments, stepped, trust_ratios


class Member(NamedTuple):
    """A parameter of a bucket, with its name in the model and the offset ``begin`` of its first element."""

    name: str
    parameter: nn.Parameter
    begin: int

    @property
    def end(self) -> int:
        """The offset after its last element."""
        return self.begin + self.parameter.numel()


class MemberPart(NamedTuple):
    """The part of a member in a slice: elements ``begin`` to before ``end`` of the slice; its first is element
    ``offset`` of the flattened parameter. ``member``: its number in the bucket."""

    member: int
    begin: int
    end: int
    offset: int


class Summing(NamedTuple):
    """The pending sum of a bucket's gradients. ``mine``: receives this rank's slice and, after it, the number of
    missing gradients. ``came``: whether this rank had a gradient, for each member."""

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
        self.width = max(1, -(-self.elements // self.ranks))  # 1 if all parameters are empty
        self.flat = torch.zeros(self.ranks * self.width, dtype=first.dtype, device=first.device)
        for member in self.members:
            place = self.flat[member.begin:member.end]
            place.copy_(member.parameter.detach().reshape(-1))
            member.parameter.data = place.view(member.parameter.shape)
        self.segments = tuple(self.segments_of(self.rank))
        self.slice = self.flat[self.rank * self.width:(self.rank + 1) * self.width]
        self.gradient: Tensor | None = None  # all slices, while gradients are collected
        self.came = [False] * len(self.members)
        self.summing: Summing | None = None
        self.gathering: Pending | None = None  # the pending gathering of parameters

    def segments_of(self, rank: int) -> Iterator[MemberPart]:
        """The members' parts in the slice of ``rank``, in order."""
        low, high = rank * self.width, (rank + 1) * self.width
        for number, member in enumerate(self.members):
            begin, end = max(low, member.begin), min(high, member.end)
            if begin < end:
                yield MemberPart(number, begin - low, end - low, begin - member.begin)

    def take(self, number: int, gradient: Tensor) -> None:
        """Copy the gradient of a member into the bucket. Raises ``ValueError`` for a sparse gradient."""
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
        """Whether all gradients have been taken."""
        return all(self.came)

    def closed(self) -> Tensor:
        """Remove the gradients from the bucket and return them, with the number of missing ones after each slice."""
        flat = self.flat.new_zeros(self.ranks, self.width + 1) if self.gradient is None else self.gradient
        flat[:, -1] = float(self.came.count(False))
        self.gradient = None
        return flat

    def forget(self) -> None:
        """Drop all gradients."""
        self.gradient, self.summing, self.came = None, None, [False] * len(self.members)

    def wait(self) -> None:
        """Wait until the parameters have been gathered."""
        if self.gathering is not None:
            self.gathering.wait()
            self.gathering = None

    def require_in_place(self) -> None:
        """Raise ``ValueError`` if a parameter's data are no longer in the bucket."""
        for member in self.members:
            if member.begin < member.end and member.parameter.data_ptr() != self.flat[member.begin:].data_ptr():
                raise ValueError(f"the data of the parameter {member.name!r} have been replaced since the optimizer "
                                 "was made: move or cast the module before, and load weights into it in place")


def buckets_of(named: Sequence[tuple[str, nn.Parameter, int]], ranks: int, rank: int, most: int) -> list[Bucket]:
    """Buckets of at most ``most`` bytes (a larger parameter has its own), in the order of ``named``: for each parameter
    its name, the parameter, and the number of its group of options."""
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


class BucketSlice:
    """The states of ``bucket``'s slice on this rank, under ``rule``.

    A step is :meth:`advance`, and for rules by norms :meth:`squares` and :meth:`apply`. ``steps``: the number of
    updates of each member.
    """

    def __init__(self, bucket: Bucket, rule: str) -> None:
        self.bucket, self.rule = bucket, rule
        self.states = {name: torch.zeros_like(bucket.slice) for name in STATES}
        self.steps = [0] * len(bucket.members)
        self._goes: list[tuple[MemberPart, Tensor]] = []  # the directions of a rule by norms

    @property
    def by_norms(self) -> bool:
        """Whether the rule needs norms of whole parameters."""
        return RULES[self.rule].by_norms

    def advance(self, gradient: Tensor, present: Sequence[bool], options: Mapping[str, Any]) -> None:
        """Update the states of the members that are ``present`` with the mean ``gradient`` of the slice; their weights
        too, except for a rule by norms."""
        self.steps = [step + there for step, there in zip(self.steps, present, strict=True)]
        own = [segment for segment in self.bucket.segments if present[segment.member]]
        weights, came = ([whole[segment.begin:segment.end] for segment in own]
                         for whole in (self.bucket.slice, gradient))
        states = [{name: whole[segment.begin:segment.end] for name, whole in self.states.items()} for segment in own]
        steps = [self.steps[segment.member] for segment in own]
        if not self.by_norms:
            if own:
                stepped(self.rule, weights, came, states, steps, options)
            return
        for segment, weight, part, state, step in zip(own, weights, came, states, steps, strict=True):
            moments(state, part, options["betas"])
            goes = direction(state, step, options)
            if options["weight_decay"]:
                goes.add_(weight, alpha=options["weight_decay"])
            self._goes.append((segment, goes))

    def squares(self) -> Tensor:
        """For each member, the sum of squares of its weights on this rank, and in the second row that of its
        directions."""
        wide = torch.promote_types(self.bucket.flat.dtype, torch.float32)  # squares in half precision overflow
        found = self.bucket.flat.new_zeros(2, len(self.bucket.members), dtype=wide)
        for segment, goes in self._goes:
            for row, tensor in enumerate((self.bucket.slice[segment.begin:segment.end], goes)):
                found[row, segment.member] += tensor.to(wide).square().sum()
        return found

    def apply(self, options: Mapping[str, Any], squares: Tensor) -> None:
        """Move the weights by a rule by norms; ``squares`` are the sums over all ranks."""
        ratios = trust_ratios(squares)
        for segment, goes in self._goes:
            self.bucket.slice[segment.begin:segment.end].sub_(goes.mul_(ratios[segment.member]), alpha=options["lr"])
        self._goes = []

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Load this rank's slice of the full states, by parameter name."""
        names = [member.name for member in self.bucket.members]
        self.steps = [int(saved[name]["step"]) for name in names]
        for segment in self.bucket.segments:
            last = segment.offset + segment.end - segment.begin
            for state, tensor in self.states.items():
                tensor[segment.begin:segment.end].copy_(
                    saved[names[segment.member]][state].reshape(-1)[segment.offset:last])
