"""Execution of a rank's instructions: parts with torch kernels, communication over ``torch.distributed``. To check a
plan, all ranks can also run in one process.

The process group is the caller's (gloo or NCCL). Groups of collectives are created once, by all ranks in the same
order, with their own timeout; messages between pairs use a group of all ranks. A tensor is released after the last
instruction that reads it. With NCCL, the messages of an exchange are launched together, as NCCL requires.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from weft.runtime.by_hand.instructions import (
    Collective,
    Compute,
    Exchange,
    Piece,
    RankProgram,
    Span,
    TakePart,
    reads,
)
from weft.runtime.by_hand.kernels import of_one_backward, run_kernel
from weft.runtime.communication.failures import PeerRanks

_T = TypeVar("_T")


class RankValues:
    """The tensors of one rank while it runs ``program``, and the instructions that need no other rank.

    ``kept``: the keys of the results of a run (default: all); other tensors are released after their last reader.
    """

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu", *,
                 kept: Collection[str] | None = None) -> None:
        self.program, self.device = program, torch.device(device)
        self.dying = _dying(program, kept)
        self.also = _also(program)
        self.values: dict[str, Tensor] = {}
        self.floating = torch.get_default_dtype()  # the dtype of numbers without another source

    def begin(self, given: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
        """Start a run with the rank's parts of the full tensors ``given``, and the parts in ``held``, by key."""
        self.values = {key: held[key] if key in held else given[name][_slices(span)].to(self.device)
                       for key, (name, span) in self.program.given.items()}
        self.floating = next((one.dtype for one in (*self.values.values(), *given.values()) if one.is_floating_point()),
                             torch.get_default_dtype())

    def steps(self) -> Iterator[Collective | Exchange]:
        """Run all instructions; those that involve other ranks are yielded for the caller to run."""
        for instruction, dying in zip(self.program.instructions, self.dying, strict=True):
            if isinstance(instruction, Compute):
                self.compute(instruction)
            elif isinstance(instruction, Piece):
                self.piece(instruction)
            elif isinstance(instruction, TakePart):
                self.cut(instruction)
            else:
                yield instruction
            for key in dying:
                del self.values[key]

    def compute(self, instruction: Compute) -> None:
        """Run a kernel on its inputs, unless it ran with another gradient of the same backward."""
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
        """Keep a part of a tensor, the full tensor, or zeros."""
        value = self.values[instruction.key]
        if instruction.dimension is not None:
            value = value.chunk(instruction.parts, instruction.dimension)[instruction.index]
        elif instruction.index:
            value = torch.zeros_like(value)
        self.values[instruction.into] = value

    def sent(self, instruction: Exchange) -> list[tuple[int, Tensor]]:
        """The messages of an exchange to other ranks."""
        return [] if instruction.key is None else [
            (rank, self.values[instruction.key][_slices(span)].contiguous()) for rank, span in instruction.sends]

    def places(self, instruction: Exchange) -> list[tuple[int, Tensor]]:
        """Receive buffers for the messages of an exchange."""
        dtype = self.dtype(instruction)
        return [(rank, torch.empty([high - low for low, high in span], dtype=dtype, device=self.device))
                for rank, span in instruction.receives]

    def received(self, instruction: Exchange, came: Sequence[Tensor]) -> None:
        """Assemble the piece of an exchange from this rank's own elements and the received messages."""
        if instruction.into is None:
            return
        total = torch.zeros(instruction.shape, dtype=self.dtype(instruction), device=self.device)
        for source, target in instruction.own:
            total[_slices(target)] += self.values[str(instruction.key)][_slices(source)]
        for (_, span), message in zip(instruction.receives, came, strict=True):
            total[_slices(span)] += message
        self.values[instruction.into] = total

    def dtype(self, instruction: Exchange) -> torch.dtype:
        """The dtype of an exchange."""
        if instruction.key is not None:
            return self.values[instruction.key].dtype
        return getattr(torch, instruction.dtype) if instruction.dtype else self.floating


class ShardedExecutor(RankValues):
    """Runs one rank's program, any number of times. All ranks must create it together. ``timeout``: seconds that a
    communication may take (default: that of the process group)."""

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu", *,
                 kept: Collection[str] | None = None, timeout: float | None = None) -> None:
        super().__init__(program, device, kept=kept)
        limit: dict[str, Any] = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.world = dist.new_group(list(range(dist.get_world_size())), **limit)
        self.others = PeerRanks(self.world, timeout)
        self.groups = {ranks: dist.new_group(list(ranks), **limit) for ranks in program.groups}
        self.together = dist.get_backend() == "nccl"

    def run(self, given: Mapping[str, Tensor], held: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Run the program; returns this rank's kept tensors by key. ``given``: full tensors, of which the rank reads
        its parts. ``held``: parts that it already has, by key.

        Raises :class:`~weft.runtime.communication.failures.RankError` if another rank fails or times out.
        """
        self.begin(given, held or {})
        try:
            with self.others.reporting(), torch.device(self.device):
                for instruction in self.steps():
                    if isinstance(instruction, Collective):
                        value = self.values[instruction.key].contiguous()
                        made = self.awaited(instruction.kind, instruction.group,
                                            partial(self.collective, instruction, _sendable(value)))
                        self.values[instruction.into] = made.bool() if value.dtype == torch.bool else made
                    else:
                        ranks = sorted({rank for rank, _ in (*instruction.sends, *instruction.receives)})
                        self.awaited("messages", ranks, partial(self.exchange, instruction))
            return self.values
        finally:
            self.values = {}  # after an error, too

    def awaited(self, kind: str, ranks: Sequence[int], run: Callable[[], _T]) -> _T:
        """The result of ``run``, a communication with ``ranks``; its errors become a :class:`~weft.runtime
        .communication.failures.RankError`."""
        try:
            return run()
        except RuntimeError as error:
            found = self.others.error(f"{kind} with ranks {', '.join(map(str, ranks))}", error, ranks)
            self.others.record.write(str(found))
            raise found from error

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
        """Send and receive all messages concurrently; those of each pair in the same order."""
        sends = [(rank, _sendable(message)) for rank, message in self.sent(instruction)]  # alive until they are sent
        places = self.places(instruction)
        works = self.launched(sends, [(rank, _sendable(place)) for rank, place in places])
        for work in works:
            work.wait()
        self.received(instruction, [place for _, place in places])

    def launched(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """The launched work of all messages; with NCCL they are launched together, so that none waits for another."""
        if self.together:
            every = [dist.P2POp(dist.isend, tensor, rank, self.world) for rank, tensor in sends]
            every += [dist.P2POp(dist.irecv, tensor, rank, self.world) for rank, tensor in receives]
            return list(dist.batch_isend_irecv(every)) if every else []
        works: list[Any] = [dist.isend(tensor, rank, group=self.world) for rank, tensor in sends]
        return works + [dist.irecv(tensor, rank, group=self.world) for rank, tensor in receives]


def run_together(programs: Sequence[RankProgram], given: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Run the programs of all ranks in this process; returns each rank's tensors by key.

    Raises ``ValueError`` for a deadlock, and ``KeyError`` for a rank that reads a tensor that it does not have.
    """
    ranks = [RankValues(program) for program in programs]
    mail: dict[tuple[int, int], deque[Tensor]] = defaultdict(deque)
    shared: dict[tuple[str, tuple[int, ...]], dict[int, Tensor]] = defaultdict(dict)
    for rank in ranks:
        rank.begin(given, {})
    running = {number: rank.steps() for number, rank in enumerate(ranks)}
    waiting: dict[int, Collective | Exchange] = {}
    while running:
        moved = False
        for number in list(running):
            rank, instruction = ranks[number], waiting.get(number)
            if isinstance(instruction, Collective):
                every = shared[instruction.into, instruction.group]
                if len(every) < len(instruction.group):
                    continue
                rank.values[instruction.into] = _of_all(instruction, number, every)
            elif isinstance(instruction, Exchange):
                if any(not mail[source, number] for source, _ in instruction.receives):
                    continue
                rank.received(instruction, [mail[source, number].popleft() for source, _ in instruction.receives])
            moved = True
            instruction = next(running[number], None)
            if instruction is None:
                del running[number]
                continue
            waiting[number] = instruction
            if isinstance(instruction, Collective):
                shared[instruction.into, instruction.group][number] = rank.values[instruction.key]
            else:
                for target, message in rank.sent(instruction):
                    mail[number, target].append(message)
        if not moved:
            raise ValueError(f"the ranks {', '.join(map(str, running))} wait for each other")
    return [rank.values for rank in ranks]


def _of_all(instruction: Collective, rank: int, every: Mapping[int, Tensor]) -> Tensor:
    """The result on ``rank`` of a collective; ``every``: the input of each rank of the group."""
    had, k = [every[one] for one in instruction.had], len(instruction.had)
    if instruction.kind == "all_gather":
        return torch.cat(had, instruction.source or 0)
    if instruction.kind == "all_to_all":
        assert instruction.source is not None and instruction.target is not None
        return torch.cat([one.chunk(k, instruction.target)[instruction.get.index(rank)] for one in had],
                         instruction.source)
    total = sum(had[1:], had[0])
    if instruction.kind == "all_reduce":
        return total.bool() if had[0].dtype == torch.bool else total
    assert instruction.target is not None
    return total.chunk(k, instruction.target)[instruction.get.index(rank)]


def _dying(program: RankProgram, kept: Collection[str] | None) -> list[list[str]]:
    """The keys without later readers, by instruction."""
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
    """For consecutive gradients of one backward, by the output of the first one: the others."""
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
    """``value`` as a dtype that can be sent: booleans as bytes, without a copy."""
    return value.view(torch.uint8) if value.dtype == torch.bool else value


def _slices(span: Span | Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in span)
