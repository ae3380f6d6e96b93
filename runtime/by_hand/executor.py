"""A rank runs its instructions: parts with torch kernels, communication over ``torch.distributed``; or all ranks run
theirs in one process, to check a plan.

The process group is the caller's (gloo or NCCL). Groups of collectives are made once, by all ranks in one order, with
their own timeout; messages between pairs use a group of all ranks. A tensor is released after the last instruction that
reads it. With NCCL, messages of an exchange are launched together, as that library requires.
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
from weft.runtime.communication.others import Others

_T = TypeVar("_T")


class RankValues:
    """The tensors of one rank while it runs ``program``, and what it does with them alone.

    ``kept``: the keys of a run's results, by default all; others are released after their last reader.
    """

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu", *,
                 kept: Collection[str] | None = None) -> None:
        self.program, self.device = program, torch.device(device)
        self.dying = _dying(program, kept)
        self.also = _also(program)
        self.values: dict[str, Tensor] = {}
        self.floating = torch.get_default_dtype()  # of numbers without another source of their type

    def begin(self, given: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> None:
        """Take the rank's parts of ``given`` tensors, those in ``held`` as they are."""
        self.values = {key: held[key] if key in held else given[name][_slices(span)].to(self.device)
                       for key, (name, span) in self.program.given.items()}
        self.floating = next((one.dtype for one in (*self.values.values(), *given.values()) if one.is_floating_point()),
                             torch.get_default_dtype())

    def steps(self) -> Iterator[Collective | Exchange]:
        """Run all instructions, but for those together with other ranks, which are given to the caller to run."""
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

    def sent(self, instruction: Exchange) -> list[tuple[int, Tensor]]:
        """The messages of an exchange to other ranks."""
        return [] if instruction.key is None else [
            (rank, self.values[instruction.key][_slices(span)].contiguous()) for rank, span in instruction.sends]

    def places(self, instruction: Exchange) -> list[tuple[int, Tensor]]:
        """Memory for the messages of an exchange from other ranks."""
        dtype = self.dtype(instruction)
        return [(rank, torch.empty([high - low for low, high in span], dtype=dtype, device=self.device))
                for rank, span in instruction.receives]

    def received(self, instruction: Exchange, came: Sequence[Tensor]) -> None:
        """Put what the rank has itself of the piece of an exchange together with the messages that have come."""
        if instruction.into is None:
            return
        total = torch.zeros(instruction.shape, dtype=self.dtype(instruction), device=self.device)
        for source, target in instruction.own:
            total[_slices(target)] += self.values[str(instruction.key)][_slices(source)]
        for (_, span), message in zip(instruction.receives, came, strict=True):
            total[_slices(span)] += message
        self.values[instruction.into] = total

    def dtype(self, instruction: Exchange) -> torch.dtype:
        """The type of the elements of an exchange."""
        if instruction.key is not None:
            return self.values[instruction.key].dtype
        return getattr(torch, instruction.dtype) if instruction.dtype else self.floating


class ShardedExecutor(RankValues):
    """One rank's program, ready to run any number of times. All ranks must make it together. ``timeout``: seconds that
    a communication may take, by default the process group's own."""

    def __init__(self, program: RankProgram, device: torch.device | str = "cpu", *,
                 kept: Collection[str] | None = None, timeout: float | None = None) -> None:
        super().__init__(program, device, kept=kept)
        limit: dict[str, Any] = {} if timeout is None else {"timeout": timedelta(seconds=timeout)}
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.world = dist.new_group(list(range(dist.get_world_size())), **limit)
        self.others = Others(self.world, timeout)
        self.groups = {ranks: dist.new_group(list(ranks), **limit) for ranks in program.groups}
        self.together = dist.get_backend() == "nccl"

    def run(self, given: Mapping[str, Tensor], held: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """This rank's kept tensors by key, from the whole tensors ``given``, of each of which it reads its part.
        ``held``: tensors that it already has, by key.

        Raises :class:`~weft.runtime.communication.others.RankError` if another rank does not do its part in time.
        """
        self.begin(given, held or {})
        try:
            with self.others.telling(), torch.device(self.device):
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
            self.values = {}  # of a run that failed, too

    def awaited(self, kind: str, ranks: Sequence[int], run: Callable[[], _T]) -> _T:
        """The result of ``run``; a communication with ``ranks`` that fails is reported in one sentence."""
        try:
            return run()
        except RuntimeError as error:
            found = self.others.error(f"{kind} with ranks {', '.join(map(str, ranks))}", error, ranks)
            self.others.told.write(str(found))
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
        """Messages between pairs, all under way at once; each pair's in one order."""
        sends = [(rank, _sendable(message)) for rank, message in self.sent(instruction)]  # kept until they are sent
        places = self.places(instruction)
        works = self.launched(sends, [(rank, _sendable(place)) for rank, place in places])
        for work in works:
            work.wait()
        self.received(instruction, [place for _, place in places])

    def launched(self, sends: Sequence[tuple[int, Tensor]], receives: Sequence[tuple[int, Tensor]]) -> list[Any]:
        """The work of all messages; NCCL takes them together, so that none waits for another to be launched."""
        if self.together:
            every = [dist.P2POp(dist.isend, tensor, rank, self.world) for rank, tensor in sends]
            every += [dist.P2POp(dist.irecv, tensor, rank, self.world) for rank, tensor in receives]
            return list(dist.batch_isend_irecv(every)) if every else []
        works: list[Any] = [dist.isend(tensor, rank, group=self.world) for rank, tensor in sends]
        return works + [dist.irecv(tensor, rank, group=self.world) for rank, tensor in receives]


def run_together(programs: Sequence[RankProgram], given: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of all ranks, by key, after each has run its program of ``programs`` in this process.

    Raises ``ValueError`` for ranks that wait for each other, and ``KeyError`` for one that reads what it does not have.
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
    """A rank's result of a collective in which each of the group has its tensor in ``every``."""
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
