"""A program of computation and communication as the instructions of one rank.

What moves data between ranks goes to a network lane, and is waited for just before the first that reads it; a fused
stage goes there if one of its parts does. The order is that of :mod:`weft.app.communication.ordering`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.app.communication.ordering import Order, lane_of
from weft.models.communication.functions import function_named
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, Overlap, Program, Stage
from weft.runtime.communication.instructions import (
    Call,
    Chunk,
    Instruction,
    Key,
    Lane,
    RankProgram,
    Step,
    TensorPart,
    Value,
    Wait,
)
from weft.solver.schedule import Schedule

__all__ = ["Emulated", "lower"]


@dataclass(frozen=True)
class Emulated:
    """What stages take at least on ranks without the devices they are for: ``seconds`` by stage, all its chunks
    together, and ``launches`` by stage, seconds of each chunk besides."""

    seconds: Mapping[str, float]
    launches: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, prices: Prices, written: Program | None = None) -> Emulated:
        """What ``prices`` say of the stages of ``program``; ``written``: the one that ``prices.compute`` names stages
        of, if another.

        Raises :class:`~weft.models.communication.program.CommunicationError` for a matmul without a price.
        """
        works = {stage.name: work_of(program, stage, prices, written) for stage in program.stages}
        return cls({name: sum(work.seconds for work in found) for name, found in works.items()},
                   {name: sum(work.launch for work in found) for name, found in works.items()})


def lower(program: Program, rank: int, emulated: Emulated | None = None, schedule: Schedule | None = None
          ) -> RankProgram:
    """The instructions of ``rank``: of pipeline group g, its i-th rank is rank g N + i; in the order of ``schedule``.

    Raises :class:`~weft.models.communication.program.CommunicationError` for emulated stages that are not there, or
    take less than 0 seconds, and for a schedule of another program.
    """
    emulated = emulated or Emulated({})
    for name, value in (*emulated.seconds.items(), *emulated.launches.items()):
        if not 0 <= value < math.inf:
            raise CommunicationError(f"emulated: the stage {program.stage(name).name!r} is to take {value} seconds, it "
                                     "takes 0 or more")
        program.stage(name)
    return _ProgramLowering(program, rank, emulated, Order(program, schedule)).lowered()


class _ProgramLowering:
    def __init__(self, program: Program, rank: int, emulated: Emulated, order: Order) -> None:
        self.program, self.rank, self.emulated, self.order = program, rank, emulated, order
        self.group = rank // program.ranks
        self.instructions: list[Instruction] = []
        self.lane_of: dict[Key, Lane] = {}
        self.waited: set[Key] = set()
        self.read: set[str] = set()

    def lowered(self) -> RankProgram:
        """All instructions, in order."""
        keys = self.order.steps()
        for stage, chunk in keys:
            self.step(self.program.by_name[stage], self.order.chain_of.get(stage), chunk)
        tensors = self.program.tensors
        mine = {name for name, tensor in tensors.items() if tensor.group == self.group}
        values = {name: Value(tensor.held_shape(self.program.ranks), tensor.itemsize, tensor.layout, tensor.axis,
                              tensor.shape) for name, tensor in tensors.items()}
        kept = [*dict.fromkeys((*self.program.outputs, *self.program.carried))]
        given = [name for name, tensor in tensors.items()
                 if tensor.source != "stage" and name in mine and (name in self.read or name in kept)]
        digest = hashlib.sha256(repr((self.program, keys)).encode()).hexdigest()
        return RankProgram(self.rank % self.program.ranks, self.program.ranks, self.group, self.program.groups,
                           f"{self.program.name}, {digest[:16]}", tuple(self.instructions), values, tuple(given),
                           tuple(name for name in kept if name in mine))

    def step(self, stage: Stage, overlap: Overlap | None, chunk: int) -> None:
        """One stage, or a chunk of it, behind waits for what it reads."""
        calls = tuple(call for leaf in stage.leaves() if (call := self.call(leaf, overlap, chunk)) is not None)
        if not calls:
            return
        made = {name for call in calls for name in call.outputs}
        reads = tuple(self.part(name, overlap, chunk) for name in dict.fromkeys(
            name for call in calls for name in call.inputs) if name not in made)
        writes = tuple(self.part(name, overlap, chunk) for name in stage.outputs if name in made)
        key, lane = (stage.name, chunk), lane_of(stage)
        open_keys = tuple(k for k in dict.fromkeys(self.order.reads(key)) if k not in self.waited
                          and self.lane_of.get(k, lane) not in (lane, "compute"))
        if open_keys and lane == "compute":
            self.instructions.append(Wait(open_keys))
            self.waited.update(open_keys)
        after = open_keys if lane != "compute" else ()
        parts = 1 if overlap is None else overlap.chunks
        seconds = self.emulated.seconds.get(stage.name, 0.0) / parts + self.emulated.launches.get(stage.name, 0.0)
        self.instructions.append(Step(key, lane, calls, reads, writes, after, seconds))
        self.lane_of[key] = lane
        self.read.update(part.name for part in reads)

    def part(self, name: str, overlap: Overlap | None, chunk: int) -> TensorPart:
        """A tensor, or its chunk in a chain that cuts it."""
        return TensorPart(name, self.chunk(name, overlap, chunk))

    def chunk(self, name: str, overlap: Overlap | None, chunk: int) -> Chunk | None:
        """As :func:`weft.models.communication.chunks.chunk_ranges` has it."""
        if overlap is None or name not in overlap.axes:
            return None
        tensor, axis = self.program.tensors[name], overlap.axes[name]
        own = tensor.layout == "sliced" and tensor.axis == axis
        return Chunk(axis, chunk, overlap.chunks, self.program.ranks if overlap.by_slices and not own else 1)

    def call(self, leaf: Stage, overlap: Overlap | None, chunk: int) -> Call | None:
        """What this rank does of a stage that is not fused; ``None`` where it has no part in it."""
        tensors, group = self.program.tensors, self.program.group_of(leaf)
        if leaf.kind == "send":
            return self.send(leaf, group, overlap, chunk)
        if group != self.group:
            return None
        attributes = dict(leaf.attributes)
        function = function_named(attributes.pop("function")).compute if leaf.kind == "pointwise" else None
        given, made = tensors[leaf.inputs[0]], tensors[leaf.outputs[0]]
        axis = given.axis if leaf.kind == "all_gather" else made.axis
        return Call(leaf.name, leaf.kind, leaf.inputs, leaf.outputs, attributes, function, axis,
                    given.layout == "sliced", self.chunk(leaf.outputs[0], overlap, chunk))

    def send(self, leaf: Stage, group: int, overlap: Overlap | None, chunk: int) -> Call | None:
        """The sending or the receiving side."""
        index, cut = self.rank % self.program.ranks, self.chunk(leaf.outputs[0], overlap, chunk)
        peers = group * self.program.ranks + index, (group + 1) * self.program.ranks + index
        if group == self.group:
            return Call(leaf.name, "send", leaf.inputs, (), peers=peers, chunk=cut)
        if group + 1 == self.group:
            return Call(leaf.name, "send", (), leaf.outputs, peers=peers, chunk=cut)
        return None
