"""In which order a rank runs the stages of a program, and the chunks of its chains.

Without a schedule, stages keep the program's order, a chain in chunks at the place where all that it reads is there. A
chain is taken apart into runs: neighbouring stages that compute, and the collectives behind them. Of two runs, all
chunks of the first come before those of the second: the network then has each chunk as early as can be, and no order
ends earlier. Of more, run r's chunk c comes beside run 0's chunk c + r, as in a pipeline: collectives behind a later
run would else stand in the queue behind all of the first one's.

With a schedule (:func:`weft.models.communication.search.tuning.tune` has one), each lane has its order, and what is
started on a network lane is started as early as that order allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from weft.models.communication.program import COLLECTIVES, CommunicationError, Overlap, Program, Stage
from weft.runtime.communication.instructions import Key, Lane
from weft.solver.schedule import Schedule

__all__ = ["Order", "lane_of"]


def lane_of(stage: Stage) -> Lane:
    """Where a stage runs: on the lane between pipeline groups where it sends, on the network lane where it has any
    other collective."""
    kinds = {leaf.kind for leaf in stage.leaves()}
    if "send" in kinds:
        return "sends"
    return "network" if kinds & COLLECTIVES else "compute"


@dataclass(frozen=True)
class Order:
    """Of the stages of ``program``: by ``schedule`` where there is one, whose blocks are named as those of
    :func:`weft.models.communication.search.blocks.blocks_of`."""

    program: Program
    schedule: Schedule | None = None

    @cached_property
    def chain_of(self) -> Mapping[str, Overlap]:
        """The chain of each stage that runs in chunks."""
        return {name: overlap for overlap in self.program.overlaps for name in overlap.stages}

    def steps(self) -> list[Key]:
        """All chunks of all stages, in order.

        Raises :class:`~weft.models.communication.program.CommunicationError` for a schedule of another program.
        """
        default = [key for unit in _units(self.program) for key in _chunks(self.program, unit)]
        return default if self.schedule is None else self._by(self.schedule, default)

    def reads(self, key: Key) -> Iterator[Key]:
        """What makes the tensors that ``key`` reads: of its own chain, the same chunk."""
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
                        break  # what this one feeds comes first
            if len(done) == before:
                raise CommunicationError("the schedule has stages before what they read: give one of this program")
        return list(done)

    def _begins(self, schedule: Schedule, default: Sequence[Key]) -> dict[Key, float]:
        """When each begins; what takes no time, when all that it reads is there."""
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


def _chunks(program: Program, unit: Stage | Overlap) -> Iterator[Key]:
    """A stage, or the chunks of a chain in order."""
    if isinstance(unit, Stage):
        yield unit.name, 0
        return
    runs = _runs([program.stage(name) for name in unit.stages])
    lag = 1 if len(runs) > 2 else unit.chunks
    for beat in range(unit.chunks + lag * (len(runs) - 1)):
        for number, run in enumerate(runs):
            if 0 <= (chunk := beat - lag * number) < unit.chunks:
                yield from ((stage.name, chunk) for stage in run)


def _runs(stages: Sequence[Stage]) -> list[list[Stage]]:
    """A chain cut before each stage that computes with what a network lane brought."""
    found: list[list[Stage]] = [[]]
    for is_network, run in groupby(stages, key=lambda stage: lane_of(stage) != "compute"):
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
            raise CommunicationError(f"the stage {rest[0].name!r} waits for a chain in chunks that waits for it")
        yield stage if overlap is None else overlap
        known |= made
        rest = [other for other in rest if other not in unit]
