"""A program of computation and communication as the instructions of one rank.

Communication runs on a network lane, and is waited for just before its first reader; a fused stage runs there if one of
its parts does.

The order in which a rank runs the stages of a program, and the chunks of its chains.

Without a schedule, stages keep the program's order, a chain in chunks at the point where all its inputs are available.
A chain is divided into runs: neighbouring compute stages, and the collectives after them. With two runs, all chunks of
the first come before those of the second: the network then has each chunk as early as possible, and no order ends
earlier. With more, run r's chunk c comes beside run 0's chunk c + r, as in a pipeline: otherwise collectives of a later
run would queue behind all of the first one's.

With a schedule (:func:`weft.models.communication.search.problem.tune` returns one), each lane follows its order, and
operations on a network lane start as early as that order allows.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from weft.models.communication.chunks import pieces_of
from weft.models.communication.functions import function_named
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import (
    COLLECTIVES,
    CommunicationError,
    CommunicationProgram,
    Overlap,
    ProgramStage,
)
from weft.models.communication.rebuilding import in_order
from weft.runtime.communication.instructions import (
    Chunk,
    Instruction,
    Key,
    Lane,
    LaneProgram,
    LaneStep,
    LaneWait,
    RankTensor,
    StageCall,
    TensorPart,
)
from weft.solver.schedule import Schedule


@dataclass(frozen=True)
class Emulated:
    """Minimum times of stages, for ranks without the target devices: ``seconds`` by stage, all its chunks together, and
    ``launches`` by stage, additional seconds for each chunk."""

    seconds: Mapping[str, float]
    launches: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, program: CommunicationProgram, prices: Prices, written: CommunicationProgram | None = None) -> Emulated:
        """The times of the stages of ``program`` by ``prices``; ``written``: the program whose stages
        ``prices.compute`` names, if another.

        Raises :class:`~weft.models.communication.program.CommunicationError` for a matmul without a price.
        """
        works = {stage.name: work_of(program, stage, prices, written) for stage in program.stages}
        return cls({name: sum(work.seconds for work in found) for name, found in works.items()},
                   {name: sum(work.launch for work in found) for name, found in works.items()})


def lower(program: CommunicationProgram, rank: int, emulated: Emulated | None = None, schedule: Schedule | None = None
          ) -> LaneProgram:
    """The instructions of ``rank``: of pipeline group g, its i-th rank is rank g N + i; in the order of ``schedule``.

    Raises :class:`~weft.models.communication.program.CommunicationError` for emulated stages that do not exist or have
    negative times, and for a schedule of another program.
    """
    emulated = emulated or Emulated({})
    for name, value in (*emulated.seconds.items(), *emulated.launches.items()):
        if not 0 <= value < math.inf:
            raise CommunicationError(f"emulated: the stage {program.stage(name).name!r} is to take {value} seconds, it "
                                     "takes 0 or more")
        program.stage(name)
    return _ProgramLowering(program, rank, emulated, StageOrder(program, schedule)).lowered()


class _ProgramLowering:
    def __init__(self, program: CommunicationProgram, rank: int, emulated: Emulated, order: StageOrder) -> None:
        self.program, self.rank, self.emulated, self.order = program, rank, emulated, order
        self.group = rank // program.ranks
        self.instructions: list[Instruction] = []
        self.lane_of: dict[Key, Lane] = {}
        self.waited: set[Key] = set()
        self.read: set[str] = set()

    def lowered(self) -> LaneProgram:
        """All instructions, in order."""
        keys = self.order.steps()
        for stage, chunk in keys:
            self.step(self.program.by_name[stage], self.order.chain_of.get(stage), chunk)
        tensors = self.program.tensors
        mine = {name for name, tensor in tensors.items() if tensor.group == self.group}
        values = {name: RankTensor(tensor.held_shape(self.program.ranks), tensor.itemsize, tensor.layout, tensor.axis,
                                   tensor.shape) for name, tensor in tensors.items()}
        kept = [*dict.fromkeys((*self.program.outputs, *self.program.carried))]
        given = [name for name in self.program.given if name in mine and (name in self.read or name in kept)]
        digest = hashlib.sha256(repr((self.program, keys)).encode()).hexdigest()
        return LaneProgram(self.rank % self.program.ranks, self.program.ranks, self.group, self.program.groups,
                           f"{self.program.name}, {digest[:16]}", tuple(self.instructions), values, tuple(given),
                           tuple(name for name in kept if name in mine))

    def step(self, stage: ProgramStage, overlap: Overlap | None, chunk: int) -> None:
        """One stage, or a chunk of it, after waits for its inputs."""
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
            self.instructions.append(LaneWait(open_keys))
            self.waited.update(open_keys)
        after = open_keys if lane != "compute" else ()
        parts = 1 if overlap is None else overlap.chunks
        seconds = self.emulated.seconds.get(stage.name, 0.0) / parts + self.emulated.launches.get(stage.name, 0.0)
        self.instructions.append(LaneStep(key, lane, calls, reads, writes, after, seconds))
        self.lane_of[key] = lane
        self.read.update(part.name for part in reads)

    def part(self, name: str, overlap: Overlap | None, chunk: int) -> TensorPart:
        """A tensor, or its chunk in a chain that cuts it."""
        return TensorPart(name, self.chunk(name, overlap, chunk))

    def chunk(self, name: str, overlap: Overlap | None, chunk: int) -> Chunk | None:
        """The elements of :func:`weft.models.communication.chunks.chunk_places`."""
        if overlap is None or name not in overlap.axes:
            return None
        pieces = pieces_of(self.program.tensors[name], overlap, self.program.ranks)
        return Chunk(overlap.axes[name], chunk, overlap.chunks, pieces)

    def call(self, leaf: ProgramStage, overlap: Overlap | None, chunk: int) -> StageCall | None:
        """This rank's call for a stage that is not fused; ``None`` if it does not take part."""
        tensors, group = self.program.tensors, self.program.group_of(leaf)
        if leaf.kind == "send":
            return self.send(leaf, group, overlap, chunk)
        if group != self.group:
            return None
        attributes = dict(leaf.attributes)
        function = function_named(attributes.pop("function")).compute if leaf.kind == "pointwise" else None
        given, made = tensors[leaf.inputs[0]], tensors[leaf.outputs[0]]
        axis = given.axis if leaf.kind == "all_gather" else made.axis
        return StageCall(leaf.name, leaf.kind, leaf.inputs, leaf.outputs, attributes, function, axis,
                         given.layout == "sliced", self.chunk(leaf.outputs[0], overlap, chunk))

    def send(self, leaf: ProgramStage, group: int, overlap: Overlap | None, chunk: int) -> StageCall | None:
        """The sending or the receiving side."""
        index, cut = self.rank % self.program.ranks, self.chunk(leaf.outputs[0], overlap, chunk)
        peers = group * self.program.ranks + index, (group + 1) * self.program.ranks + index
        if group == self.group:
            return StageCall(leaf.name, "send", leaf.inputs, (), peers=peers, chunk=cut)
        if group + 1 == self.group:
            return StageCall(leaf.name, "send", (), leaf.outputs, peers=peers, chunk=cut)
        return None


def lane_of(stage: ProgramStage) -> Lane:
    """The lane of a stage: the lane between pipeline groups for a send, the network lane for any other collective."""
    kinds = {leaf.kind for leaf in stage.leaves()}
    if "send" in kinds:
        return "sends"
    return "network" if kinds & COLLECTIVES else "compute"


@dataclass(frozen=True)
class StageOrder:
    """The order of the stages of ``program``: by ``schedule`` if given, with blocks named as in
    :class:`weft.models.communication.search.chains.ProgramBlocks`."""

    program: CommunicationProgram
    schedule: Schedule | None = None

    @cached_property
    def chain_of(self) -> Mapping[str, Overlap]:
        """The chain of each stage that runs in chunks."""
        return {name: overlap for overlap in self.program.overlaps for name in overlap.stages}

    def steps(self) -> list[Key]:
        """All chunks of all stages, in order.

        Raises :class:`~weft.models.communication.program.CommunicationError` for a schedule of another program.
        """
        default = [key for unit in in_order(self.program) for key in _chunks(self.program, unit)]
        return default if self.schedule is None else self._by(self.schedule, default)

    def reads(self, key: Key) -> Iterator[Key]:
        """The producers of the tensors that ``key`` reads: within its own chain, the same chunk."""
        chain = self.chain_of.get(key[0])
        for name in self.program.by_name[key[0]].inputs:
            maker = self.program.producer.get(name)
            if maker is None:
                continue
            own = chain is not None and maker in chain.stages and name in chain.axes
            yield from [(maker, key[1])] if own else [(maker, chunk) for chunk in range(self._count(maker))]

    def _count(self, stage: str) -> int:
        return self.chain_of[stage].chunks if stage in self.chain_of else 1

    def _by(self, schedule: Schedule, default: Sequence[Key]) -> list[Key]:
        begins = self._begins(schedule, default)
        index = {key: i for i, key in enumerate(default)}
        queues: dict[Lane, list[Key]] = {"network": [], "sends": [], "compute": []}
        for key in sorted(default, key=lambda key: (begins[key], index[key])):
            queues[lane_of(self.program.by_name[key[0]])].append(key)
        done: dict[Key, None] = {}
        while any(queues.values()):
            before = len(done)
            for lane, queue in queues.items():
                while queue and all(read in done for read in self.reads(queue[0])):
                    done[queue.pop(0)] = None
                    if lane == "compute":
                        break  # its consumers come first
            if len(done) == before:
                raise CommunicationError("the schedule has stages before what they read: give one of this program")
        return list(done)

    def _begins(self, schedule: Schedule, default: Sequence[Key]) -> dict[Key, float]:
        """The start of each; for stages without duration, the time when all inputs are available."""
        if schedule.micro_batches != 1:
            raise CommunicationError(f"the schedule has {schedule.micro_batches} runs of its blocks: give one of 1")
        times: dict[str, tuple[float, float]] = {}
        for operation in schedule.operations:
            times[schedule.problem.blocks[operation.block].name] = operation.start, operation.end
        begins: dict[Key, float] = {}
        ends: dict[Key, float] = {}
        for key in default:
            stage, chunk = key
            mark = f" {chunk}" if stage in self.chain_of else ""
            found = times.pop(f"{stage}{mark}", None)
            ready = max((ends[read] for read in self.reads(key)), default=0.0)
            begins[key], ends[key] = (ready, ready) if found is None else found
            ends[key] = max(ends[key], times.pop(f"{stage}, summed{mark}", (0.0, 0.0))[1])
        if times:
            raise CommunicationError(f"the schedule has {next(iter(times))!r}, which this program does not run: give "
                                     "the schedule that was found with it")
        return begins


def _chunks(program: CommunicationProgram, unit: ProgramStage | Overlap) -> Iterator[Key]:
    """A stage, or the chunks of a chain in order."""
    if isinstance(unit, ProgramStage):
        yield unit.name, 0
        return
    runs = _runs(program.members(unit))
    lag = 1 if len(runs) > 2 else unit.chunks
    for beat in range(unit.chunks + lag * (len(runs) - 1)):
        for number, run in enumerate(runs):
            if 0 <= (chunk := beat - lag * number) < unit.chunks:
                yield from ((stage.name, chunk) for stage in run)


def _runs(stages: Sequence[ProgramStage]) -> list[list[ProgramStage]]:
    """A chain, split before each compute stage that reads a network lane's result."""
    found: list[list[ProgramStage]] = [[]]
    for is_network, run in groupby(stages, key=lambda stage: lane_of(stage) != "compute"):
        if not is_network and found[-1]:
            found.append([])
        found[-1] += run
    return found
