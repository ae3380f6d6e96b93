"""A rank runs its instructions: parts with torch kernels, communication over ``torch.distributed``.

The process group is the caller's (gloo or NCCL), and so is its timeout. Groups of collectives are made once, by all
ranks in one order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from weft.runtime.by_hand.instructions import Collective, Compute, Cut, Exchange, Piece, RankProgram, Span
from weft.runtime.by_hand.kernels import run_kernel

__all__ = ["ShardedExecutor"]


class ShardedExecutor:
    """One rank's program, ready to run any number of times. To be made by all ranks together."""

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu") -> None:
        self.program, self.device = program, torch.device(device)
        self.groups = {ranks: dist.new_group(list(ranks)) for ranks in program.groups}

    def run(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of this rank by key, from the whole tensors that are given: it reads its part of each."""
        self.values = {key: given[name][_slices(span)].to(self.device) for key, (name, span) in
                       self.program.given.items()}
        for instruction in self.program.instructions:
            if isinstance(instruction, Compute):
                self.compute(instruction)
            elif isinstance(instruction, Piece):
                self.piece(instruction)
            elif isinstance(instruction, Collective):
                self.values[instruction.into] = self.collective(instruction, self.values[instruction.key].contiguous())
            elif isinstance(instruction, Cut):
                self.cut(instruction)
            else:
                self.exchange(instruction)
        return self.values

    def compute(self, instruction: Compute) -> None:
        """Run a kernel on what it reads."""
        inputs = []
        for operand in instruction.inputs:
            parts = [self.values[key][_slices(span)] for key, span in operand.terms]
            inputs.append(sum(parts[1:], parts[0]))
        results = run_kernel(instruction.call, inputs)
        self.values.update(zip(instruction.outputs, results, strict=True))

    def piece(self, instruction: Piece) -> None:
        """Put a piece together."""
        whole = instruction.copies[0]
        total = torch.zeros(instruction.shape, dtype=self.values[whole.key].dtype, device=self.device)
        for copy in instruction.copies:
            total[_slices(copy.target)] += self.values[copy.key][_slices(copy.source)]
        self.values[instruction.key] = total

    def cut(self, instruction: Cut) -> None:
        """Keep a part, or all or nothing of the numbers."""
        value = self.values[instruction.key]
        if instruction.dimension is not None:
            value = value.chunk(instruction.parts, instruction.dimension)[instruction.index]
        elif instruction.index:
            value = torch.zeros_like(value)
        self.values[instruction.into] = value

    def collective(self, instruction: Collective, value: Tensor) -> Tensor:
        """What this rank has after a collective."""
        group, ranks, k = self.groups[instruction.group], instruction.group, len(instruction.group)
        if instruction.kind == "all_reduce":
            value = value.clone()
            dist.all_reduce(value, group=group)
            return value
        if instruction.kind == "all_gather":
            found = [torch.empty_like(value) for _ in ranks]
            dist.all_gather(found, value, group=group)
            return torch.cat([found[ranks.index(rank)] for rank in instruction.had], instruction.source or 0)
        assert instruction.target is not None
        cut = value.chunk(k, instruction.target)
        sent = torch.stack([cut[instruction.get.index(rank)] for rank in ranks])
        if instruction.kind == "reduce_scatter":
            result = torch.empty_like(cut[0], memory_format=torch.contiguous_format)
            dist.reduce_scatter_tensor(result, sent.reshape(k * cut[0].shape[0], *cut[0].shape[1:]), group=group)
            return result
        assert instruction.source is not None
        came = torch.empty_like(sent)
        dist.all_to_all_single(came, sent, group=group)
        return torch.cat([came[ranks.index(rank)] for rank in instruction.had], instruction.source)

    def exchange(self, instruction: Exchange) -> None:
        """Messages between pairs, all under way at once; each pair's in one order."""
        value = None if instruction.key is None else self.values[instruction.key]
        dtype = self.dtype(value)
        works: list[Any] = []
        buffers = []
        outgoing = []  # held until they are sent
        for rank, span in instruction.sends:
            assert value is not None
            outgoing.append(value[_slices(span)].contiguous())
            works.append(dist.isend(outgoing[-1], rank))
        for rank, span in instruction.receives:
            buffers.append((span, torch.empty([high - low for low, high in span], dtype=dtype, device=self.device)))
            works.append(dist.irecv(buffers[-1][1], rank))
        if instruction.into is not None:
            total = torch.zeros(instruction.shape, dtype=dtype, device=self.device)
            for source, target in instruction.own:
                assert value is not None
                total[_slices(target)] += value[_slices(source)]
        for work in works:
            work.wait()
        if instruction.into is not None:
            for span, buffer in buffers:
                total[_slices(span)] += buffer
            self.values[instruction.into] = total

    def dtype(self, value: Tensor | None) -> torch.dtype:
        """Of what comes in: that of what this rank has, or of any parameter."""
        if value is not None:
            return value.dtype
        return next((one.dtype for one in self.values.values() if one.is_floating_point()), torch.get_default_dtype())


def _slices(span: Span | Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in span)
