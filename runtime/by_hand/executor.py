"""A rank runs its instructions: parts with torch kernels, communication over ``torch.distributed``.

The process group is the caller's (gloo or NCCL). Groups of collectives are made once, by all ranks in one order, with
their own timeout; messages between pairs use a group of all ranks. A tensor is released after the last instruction that
reads it. With NCCL, messages of an exchange are launched together, as that library requires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from weft.runtime.by_hand.instructions import (
    Collective,
    Compute,
    Exchange,
    Instruction,
    Piece,
    RankProgram,
    Span,
    TakePart,
    reads,
)
from weft.runtime.by_hand.kernels import of_one_backward, run_kernel
from weft.runtime.communication.others import Others

_T = TypeVar("_T")


class ShardedExecutor:
    """One rank's program, ready to run any number of times. All ranks must make it together.

    ``kept``: the keys of a run's results, by default all; others are released after their last reader. ``timeout``:
    seconds that a communication may take, by default the process group's own.
    """

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu", *,
                 kept: Collection[str] | None = None, timeout: float | None = None) -> None:
        self.program, self.device = program, torch.device(device)
        limit: dict[str, Any] = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.world = dist.new_group(list(range(dist.get_world_size())), **limit)
        self.others = Others(self.world, timeout)
        self.groups = {ranks: dist.new_group(list(ranks), **limit) for ranks in program.groups}
        self.together = dist.get_backend() == "nccl"
        self.dying = _dying(program, kept)
        self.also = _also(program)
        self.values: dict[str, Tensor] = {}
        self.floating = torch.get_default_dtype()  # of numbers without another source of their type

    def run(self, given: Mapping[str, Tensor], held: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """This rank's kept tensors by key, from the whole tensors ``given``, of each of which it reads its part.
        ``held``: tensors that it already has, by key.

        Raises :class:`~weft.runtime.communication.others.RankError` if another rank does not do its part in time.
        """
        known = held or {}
        self.values = {key: known[key] if key in known else given[name][_slices(span)].to(self.device)
                       for key, (name, span) in self.program.given.items()}
        self.floating = next((one.dtype for one in (*self.values.values(), *given.values()) if one.is_floating_point()),
                             torch.get_default_dtype())
        try:
            with self.others.telling(), torch.device(self.device):
                for instruction, dying in zip(self.program.instructions, self.dying, strict=True):
                    self.do(instruction)
                    for key in dying:
                        del self.values[key]
            return self.values
        finally:
            self.values = {}  # of a run that failed, too

    def do(self, instruction: Instruction) -> None:
        """Run one instruction."""
        if isinstance(instruction, Compute):
            self.compute(instruction)
        elif isinstance(instruction, Piece):
            self.piece(instruction)
        elif isinstance(instruction, Collective):
            value = self.values[instruction.key].contiguous()
            made = self.awaited(instruction.kind, instruction.group,
                                lambda: self.collective(instruction, _sendable(value)))
            self.values[instruction.into] = made.bool() if value.dtype == torch.bool else made
        elif isinstance(instruction, TakePart):
            self.cut(instruction)
        else:
            ranks = sorted({rank for rank, _ in (*instruction.sends, *instruction.receives)})
            self.awaited("messages", ranks, lambda: self.exchange(instruction))

    def awaited(self, kind: str, ranks: Sequence[int], run: Callable[[], _T]) -> _T:
        """The result of ``run``; a communication with ``ranks`` that fails is reported in one sentence."""
        try:
            return run()
        except RuntimeError as error:
            found = self.others.error(f"{kind} with ranks {', '.join(map(str, ranks))}", error, ranks)
            self.others.told.write(str(found))
            raise found from error

    def compute(self, instruction: Compute) -> None:
        """Run a kernel on its inputs, unless it ran with another of the same backward."""
        if instruction.outputs[0] in self.values:
            return
        also = self.also.get(instruction.outputs[0], [])
        inputs = []
        for operand in instruction.inputs:
            parts = [self.values[key][_slices(span)] for key, span in operand.terms]
            inputs.append(sum(parts[1:], parts[0]))
        results = run_kernel(instruction.call, inputs, [one.call for one in also])
        self.values.update(zip([key for one in (instruction, *also) for key in one.outputs], results, strict=True))

    def piece(self, instruction: Piece) -> None:
        """Assemble a piece; a single copy is used directly."""
        whole = instruction.copies[0]
        value = self.values[whole.key]
        if len(instruction.copies) == 1 and tuple(high - low for low, high in whole.target) == instruction.shape:
            self.values[instruction.key] = value[_slices(whole.source)]
            return
        total = torch.zeros(instruction.shape, dtype=value.dtype, device=self.device)
        for copy in instruction.copies:
            total[_slices(copy.target)] += self.values[copy.key][_slices(copy.source)]
        self.values[instruction.key] = total

    def cut(self, instruction: TakePart) -> None:
        """Keep a part, or all of the numbers, or zeros."""
        value = self.values[instruction.key]
        if instruction.dimension is not None:
            value = value.chunk(instruction.parts, instruction.dimension)[instruction.index]
        elif instruction.index:
            value = torch.zeros_like(value)
        self.values[instruction.into] = value

    def collective(self, instruction: Collective, value: Tensor) -> Tensor:
        """This rank's result of a collective."""
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
        dtype = value.dtype if value is not None else (
            getattr(torch, instruction.dtype) if instruction.dtype else self.floating)
        sends = []  # kept until they are sent
        for rank, span in instruction.sends:
            assert value is not None
            sends.append((rank, _sendable(value[_slices(span)].contiguous())))
        buffers = [(rank, span, torch.empty([high - low for low, high in span], dtype=dtype, device=self.device))
                   for rank, span in instruction.receives]
        works = self.launched(sends, [(rank, _sendable(buffer)) for rank, _, buffer in buffers])
        if instruction.into is not None:
            total = torch.zeros(instruction.shape, dtype=dtype, device=self.device)
            for source, target in instruction.own:
                assert value is not None
                total[_slices(target)] += value[_slices(source)]
        for work in works:
            work.wait()
        if instruction.into is not None:
            for _, span, buffer in buffers:
                total[_slices(span)] += buffer
            self.values[instruction.into] = total

    def launched(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """The work of all messages; NCCL takes them together, so that none waits for another to be launched."""
        if self.together:
            every = [dist.P2POp(dist.isend, tensor, rank, self.world) for rank, tensor in sends]
            every += [dist.P2POp(dist.irecv, tensor, rank, self.world) for rank, tensor in receives]
            return list(dist.batch_isend_irecv(every)) if every else []
        works: list[Any] = [dist.isend(tensor, rank, group=self.world) for rank, tensor in sends]
        return works + [dist.irecv(tensor, rank, group=self.world) for rank, tensor in receives]


def _dying(program: RankProgram, kept: Collection[str] | None) -> list[list[str]]:
    """By instruction, the keys without later readers."""
    dying: list[list[str]] = [[] for _ in program.instructions]
    if kept is None:
        return dying
    last: dict[str, int] = {}
    for i, instruction in enumerate(program.instructions):
        made = instruction.outputs if isinstance(instruction, Compute) else (
            instruction.key if isinstance(instruction, Piece) else instruction.into,)
        last.update(dict.fromkeys((*reads(instruction), *(key for key in made if key is not None)), i))
    for key, i in last.items():
        if key not in kept:
            dying[i].append(key)
    return dying


def _also(program: RankProgram) -> dict[str, list[Compute]]:
    """By the output of the first of several gradients of one backward, the others, which come next."""
    found: dict[str, list[Compute]] = {}
    first: Compute | None = None
    for instruction in program.instructions:
        if isinstance(instruction, Compute):
            if first is not None and first.inputs == instruction.inputs and of_one_backward(
                    first.call, instruction.call):
                found.setdefault(first.outputs[0], []).append(instruction)
            else:
                first = instruction
    return found


def _sendable(value: Tensor) -> Tensor:
    """Booleans travel as bytes, in place."""
    return value.view(torch.uint8) if value.dtype == torch.bool else value


def _slices(span: Span | Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in span)
