"""A rank's slice of a bucket: its states, and what a rule does with its elements of weights and gradients.

Parameters that no rank has a gradient of in a step keep their weights and states, as they do with torch's optimizers:
so the slice is updated in runs of neighbours that have one, and have been updated equally often.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.runtime.communication.buckets import Bucket
from weft.runtime.communication.rules import RULES, STATES, direction, moments, stepped, trust_ratios

__all__ = ["Slice"]


class _UpdatedTogether(NamedTuple):
    """Elements of a slice that are updated together, and where they go."""

    begin: int
    end: int
    goes: Tensor


class Slice:
    """The states of ``bucket``'s slice on this rank, under ``rule``.

    A step is :meth:`advance`, and for rules by norms :meth:`squares` and :meth:`apply`. ``steps``: how often each
    member has been updated.
    """

    def __init__(self, bucket: Bucket, rule: str) -> None:
        self.bucket, self.rule = bucket, rule
        self.states = {name: torch.zeros_like(bucket.slice) for name in STATES}
        self.steps = [0] * len(bucket.members)
        self._runs: list[_UpdatedTogether] = []
        self._present: Sequence[bool] = ()

    @property
    def by_norms(self) -> bool:
        """Whether the rule needs norms of whole parameters."""
        return RULES[self.rule].by_norms

    def advance(self, gradient: Tensor, present: Sequence[bool], options: Mapping[str, Any]) -> None:
        """Let the mean ``gradient`` of the slice into the states of the members that are ``present``; their weights
        move, too, but for a rule by norms."""
        self._present = present
        self.steps = [step + there for step, there in zip(self.steps, present, strict=True)]
        self._runs = []
        for begin, end, step in self._neighbours():
            weight, came = self.bucket.slice[begin:end], gradient[begin:end]
            states = {name: tensor[begin:end] for name, tensor in self.states.items()}
            if self.rule in ("adam", "adamw"):
                stepped(self.rule, weight, came, states, step, options)
                continue
            moments(states, came, options["betas"])
            goes = direction(states, step, options)
            if options["weight_decay"]:
                goes.add_(weight, alpha=options["weight_decay"])
            self._runs.append(_UpdatedTogether(begin, end, goes))

    def squares(self) -> Tensor:
        """For each member, the sum of squares of its weights here, and in the second row of its directions."""
        wide = torch.promote_types(self.bucket.flat.dtype, torch.float32)  # squares of halves overflow, and are rounded
        found = self.bucket.flat.new_zeros(2, len(self.bucket.members), dtype=wide)
        for run in self._runs:
            for member, begin, end in self._members(run):
                found[0, member] += self.bucket.slice[begin:end].to(wide).square().sum()
                found[1, member] += run.goes[begin - run.begin:end - run.begin].to(wide).square().sum()
        return found

    def apply(self, options: Mapping[str, Any], squares: Tensor) -> None:
        """Move the weights by a rule by norms; ``squares`` are those of all ranks together."""
        ratios = trust_ratios(squares)
        for run in self._runs:
            for member, begin, end in self._members(run):
                run.goes[begin - run.begin:end - run.begin].mul_(ratios[member])
            self.bucket.slice[run.begin:run.end].sub_(run.goes, alpha=options["lr"])
        self._runs = []

    def load(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the slice of whole states, by the names of parameters."""
        names = [member.name for member in self.bucket.members]
        self.steps = [int(saved[name]["step"]) for name in names]
        for segment in self.bucket.segments:
            last = segment.offset + segment.end - segment.begin
            for state, tensor in self.states.items():
                tensor[segment.begin:segment.end].copy_(
                    saved[names[segment.member]][state].reshape(-1)[segment.offset:last])

    def _members(self, run: _UpdatedTogether) -> Iterator[tuple[int, int, int]]:
        for segment in self.bucket.segments:
            if run.begin <= segment.begin and segment.end <= run.end:
                yield segment.member, segment.begin, segment.end

    def _neighbours(self) -> Iterator[tuple[int, int, int]]:
        """First and last place of each run, and how often its members have been updated, now included."""
        open_run: tuple[int, int, int] | None = None
        for segment in self.bucket.segments:
            step = self.steps[segment.member]
            if open_run is not None and open_run[2] == step and self._present[segment.member]:
                open_run = open_run[0], segment.end, step
                continue
            if open_run is not None:
                yield open_run
            open_run = (segment.begin, segment.end, step) if self._present[segment.member] else None
        if open_run is not None:
            yield open_run
