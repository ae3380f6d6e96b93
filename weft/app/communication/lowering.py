"""A program of computation and communication as the instructions of one rank.

Stages keep the program's order, a chain that runs in chunks at the place where all that it reads is there. What moves
data between ranks goes to a network lane and is waited for just before the first that reads it; a fused stage goes
there if one of its parts does. A chain is emitted run by run: the chunks of neighbouring stages that compute, each
followed by the start of the collectives behind them, before the first chunk of what reads those. So the network has its
first chunk as early as can be, and with one computation before and one behind, no order of the chunks ends earlier.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from weft.models.communication.functions import function_named
from weft.models.communication.program import COLLECTIVES, CommunicationError, Overlap, Program, Stage
from weft.runtime.communication.instructions import (
    Call,
    Chunk,
    Instruction,
    Key,
    Lane,
    Part,
    RankProgram,
    Step,
    Value,
    Wait,
)

__all__ = ["Emulated", "lower"]


@dataclass(frozen=True)
class Emulated:
    """What stages take at least on ranks without the devices they are for: ``seconds`` by stage, all its chunks
    together, and ``launches`` by stage, seconds of each chunk besides."""

    seconds: Mapping[str, float]
    launches: Mapping[str, float] = field(default_factory=dict)


def lower(program: Program, rank: int, emulated: Emulated | None = None) -> RankProgram:
    """The instructions of ``rank``: of pipeline group g, its i-th rank is rank g N + i.

    Raises :class:`~weft.models.communication.program.CommunicationError` for emulated stages that are not there, or
    take less than 0 seconds.
    """
    emulated = emulated or Emulated({})
    for name, value in (*emulated.seconds.items(), *emulated.launches.items()):
        if not 0 <= value < math.inf:
            raise CommunicationError(f"emulated: the stage {program.stage(name).name!r} is to take {value} seconds, it "
                                     "takes 0 or more")
        program.stage(name)
    return _Lowering(program, rank, emulated).lowered()


class _Lowering:
    def __init__(self, program: Program, rank: int, emulated: Emulated) -> None:
        self.program, self.rank, self.emulated = program, rank, emulated
        self.group = rank // program.ranks
        self.instructions: list[Instruction] = []
        self.lane_of: dict[Key, Lane] = {}
        self.makes: dict[str, list[Key]] = {}  # by tensor, the steps that make it
        self.waited: set[Key] = set()
        self.read: set[str] = set()

    def lowered(self) -> RankProgram:
        """All instructions, in order."""
        for unit in _units(self.program):
            if isinstance(unit, Overlap):
                self.chain(unit)
            else:
                self.step(unit, None, 0)
        tensors = self.program.tensors
        mine = {name for name, tensor in tensors.items() if tensor.group == self.group}
        values = {name: Value(tensor.held_shape(self.program.ranks), tensor.itemsize, tensor.layout, tensor.axis,
                              tensor.shape) for name, tensor in tensors.items()}
        kept = [*dict.fromkeys((*self.program.outputs, *self.program.carried))]
        given = [name for name, tensor in tensors.items()
                 if tensor.source != "stage" and name in mine and (name in self.read or name in kept)]
        digest = hashlib.sha256(repr(self.program).encode()).hexdigest()
        return RankProgram(self.rank % self.program.ranks, self.program.ranks, self.group, self.program.groups,
                           f"{self.program.name}, {digest[:16]}", tuple(self.instructions), values, tuple(given),
                           tuple(name for name in kept if name in mine))

    def chain(self, overlap: Overlap) -> None:
        """Stages in chunks: those that compute together, and the start of what they feed."""
        stages = [self.program.stage(name) for name in overlap.stages]
        for run in _runs(stages):
            for chunk in range(overlap.chunks):
                for stage in run:
                    self.step(stage, overlap, chunk)

    def step(self, stage: Stage, overlap: Overlap | None, chunk: int) -> None:
        """One stage, or a chunk of it, behind waits for what it reads."""
        calls = tuple(call for leaf in stage.leaves() if (call := self.call(leaf, overlap, chunk)) is not None)
        if not calls:
            return
        made = {name for call in calls for name in call.outputs}
        reads = tuple(self.part(name, overlap, chunk) for name in dict.fromkeys(
            name for call in calls for name in call.inputs) if name not in made)
        writes = tuple(self.part(name, overlap, chunk) for name in stage.outputs if name in made)
        key, lane = (stage.name, chunk), _lane(stage)
        before = [made_by for part in reads for made_by in self.producers(part, overlap, chunk)]
        open_keys = tuple(k for k in dict.fromkeys(before) if self.lane_of[k] != lane and k not in self.waited
                          and self.lane_of[k] != "compute")
        if open_keys and lane == "compute":
            self.instructions.append(Wait(open_keys))
            self.waited.update(open_keys)
        after = open_keys if lane != "compute" else ()
        parts = 1 if overlap is None else overlap.chunks
        seconds = self.emulated.seconds.get(stage.name, 0.0) / parts + self.emulated.launches.get(stage.name, 0.0)
        self.instructions.append(Step(key, lane, calls, reads, writes, after, seconds))
        self.lane_of[key] = lane
        self.read.update(part.name for part in reads)
        for part in writes:
            self.makes.setdefault(part.name, []).append(key)

    def producers(self, part: Part, overlap: Overlap | None, chunk: int) -> Iterator[Key]:
        """The steps that make what is read: of a chunk of the same chain, that chunk's."""
        keys = self.makes.get(part.name, [])
        own = overlap is not None and part.chunk is not None and keys and keys[0][0] in overlap.stages
        yield from (key for key in keys if not own or key[1] == chunk)

    def part(self, name: str, overlap: Overlap | None, chunk: int) -> Part:
        """A tensor, or its chunk in a chain that cuts it."""
        return Part(name, self.chunk(name, overlap, chunk))

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


def _lane(stage: Stage) -> Lane:
    kinds = {leaf.kind for leaf in stage.leaves()}
    if "send" in kinds:
        return "sends"
    return "network" if kinds & COLLECTIVES else "compute"


def _runs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """A chain cut before each stage that computes with what a network lane brought."""
    found: list[list[Stage]] = [[]]
    for is_network, run in groupby(stages, key=lambda stage: _lane(stage) != "compute"):
        if not is_network and found[-1]:
            found.append([])
        found[-1] += run
    return found


def _units(program: Program) -> Iterator[Stage | Overlap]:
    """Stages and chains, each once all that it reads from outside is there, as early as the program has its first."""
    chain_of = {name: overlap for overlap in program.overlaps for name in overlap.stages}
    known = {name for name, tensor in program.tensors.items() if tensor.source != "stage"}
    rest = list(program.stages)
    while rest:
        for stage in rest:
            overlap = chain_of.get(stage.name)
            unit = [stage] if overlap is None else [program.stage(name) for name in overlap.stages]
            made = {name for one in unit for name in one.outputs}
            if all(name in known or name in made for one in unit for name in one.inputs):
                break
        else:
            raise ValueError(f"the stage {rest[0].name!r} waits for a chain in chunks that waits for it")
        yield stage if overlap is None else overlap
        known |= made
        rest = [other for other in rest if other not in unit]
