"""The chains of a program that may run in chunks: along them computation and communication overlap.

Short names of programs, in CoCoNet's notation: ``AR-C``, ``RS-C-AG``, ``MM-(RS-C-AG)``; brackets denote one stage.

Its stages become blocks on engines. A lower bound on the time of a run of blocks, and its time in one order, are
sufficient to rule out variants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from weft.models.communication.passes.overlap import overlap, overlaps
from weft.models.communication.prices import Engine, EngineWork, Prices, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import attempted, followers
from weft.solver.problem import Block, BlockKind, Dependency, Options

#: Blocks last microseconds, rounded up to a tenth of a nanosecond.
UNIT, _PARTS = 1e6, 10_000


class ProgramBlocks:
    """One block for each piece of work of each chunk; ``index`` maps engines to devices. All blocks exist under
    ``when``.

    A chunk waits for the previous chunk of the same stage, and for its inputs: within the same chain, the same chunk.
    """

    def __init__(self, program: CommunicationProgram, prices: Prices, written: CommunicationProgram,
                 index: Mapping[Engine, int], when: Options) -> None:
        self.program, self.index, self.when = program, index, when
        self.works: dict[str, tuple[EngineWork, ...]] = {
            stage.name: work_of(program, stage, prices, written) for stage in program.stages}
        self.chain = {name: number for number, overlap in enumerate(program.overlaps) for name in overlap.stages}
        self.chunks = {name: overlap.chunks for overlap in program.overlaps for name in overlap.stages}

    def all(self) -> list[Block]:
        """The blocks, stage by stage."""
        return [block for stage in self.program.stages for chunk in range(self.chunks.get(stage.name, 1))
                for block in self._pieces(stage.name, chunk)]

    def _pieces(self, stage: str, chunk: int) -> list[Block]:
        found: list[Block] = []
        count = self.chunks.get(stage, 1)
        for i, work in enumerate(self.works[stage]):
            waits = dict.fromkeys([self._name(stage, chunk, i - 1)] if i else self._read(stage, chunk))
            if chunk:
                waits[self._name(stage, chunk - 1, i)] = None
            seconds = _rounded_up(work.seconds / count + work.launch)
            found.append(Block(self._name(stage, chunk, i), BlockKind.OTHER,
                               tuple(self.index[engine] for engine in work.engines),
                               seconds, after=tuple(map(Dependency, waits)),
                               when=self.when))
        return found

    def _name(self, stage: str, chunk: int, piece: int) -> str:
        name = stage if piece == 0 else f"{stage}, summed"
        return f"{name} {chunk}" if stage in self.chunks else name

    def _read(self, stage: str, chunk: int) -> list[str]:
        """The blocks that produce the inputs of a chunk of a stage."""
        return [name for tensor in self.program.by_name[stage].inputs for name in self._making(tensor, stage, chunk)]

    def _making(self, tensor: str, reader: str, chunk: int) -> list[str]:
        """The last block of a tensor's producer, for a chunk of its reader; through stages without time."""
        maker = self.program.producer.get(tensor)
        if maker is None:
            return []
        same = maker in self.chain and self.chain[maker] == self.chain.get(reader)
        last = chunk if same else self.chunks.get(maker, 1) - 1
        if self.works[maker]:
            return [self._name(maker, last, len(self.works[maker]) - 1)]
        return [name for read in self.program.by_name[maker].inputs for name in self._making(read, maker, last)]


def _rounded_up(seconds: float) -> float:
    """Microseconds; floating-point errors of sums are not rounded up."""
    return max(math.ceil(seconds * UNIT * _PARTS - 1e-3), 1) / _PARTS


def least(blocks: Sequence[Block]) -> float:
    """A lower bound on schedules of one micro-batch of ``blocks``, which are in topological order.

    A device runs its blocks one after the other, begins none before the predecessors of its first one, and the
    successors of its last one follow. Each block ends no sooner than its longest chain of waits, and the rest of its
    chain follows.
    """
    heads, tails = _heads(blocks), _tails(blocks)
    found = max((heads[block.name] + block.duration + tails[block.name] for block in blocks), default=0.0)
    for device in {device for block in blocks for device in block.devices}:
        own = [block for block in blocks if device in block.devices]
        found = max(found, min(heads[block.name] for block in own) + sum(block.duration for block in own)
                    + min(tails[block.name] for block in own))
    return found


def listed(blocks: Sequence[Block]) -> float:
    """The end of one schedule: blocks in order of their tails, each as soon as its predecessors have ended."""
    tails = _tails(blocks)
    free: dict[int, float] = {}
    ends: dict[str, float] = {}
    # Successors of a block have shorter tails, as all blocks take time.
    for block in sorted(blocks, key=lambda block: -(tails[block.name] + block.duration)):
        start = max([*(ends[wait.block] for wait in block.after), *(free.get(device, 0.0) for device in block.devices)],
                    default=0.0)
        ends[block.name] = start + block.duration
        free |= dict.fromkeys(block.devices, ends[block.name])
    return max(ends.values(), default=0.0)


def _heads(blocks: Sequence[Block]) -> dict[str, float]:
    ends: dict[str, float] = {}
    found: dict[str, float] = {}
    for block in blocks:
        found[block.name] = max((ends[wait.block] for wait in block.after), default=0.0)
        ends[block.name] = found[block.name] + block.duration
    return found


def _tails(blocks: Sequence[Block]) -> dict[str, float]:
    found = {block.name: 0.0 for block in blocks}
    for block in reversed(blocks):
        for wait in block.after:
            found[wait.block] = max(found[wait.block], found[block.name] + block.duration)
    return found


#: Stages by name, each of which reads the previous one's output.
Chain: TypeAlias = tuple[str, ...]


def chains(program: CommunicationProgram) -> Iterator[Chain]:
    """The paths of two stages or more that can run in chunks, for some number of chunks.

    Prefixes of such a path qualify too, so no path is followed beyond a stage that it cannot include.
    """
    for stage in program.stages:
        rest: list[Chain] = [(stage.name,)]
        while rest:
            path = rest.pop()
            for name in followers(program, path[-1]):
                longer = (*path, name)
                if _can_be_cut(program, longer):
                    yield longer
                    rest.append(longer)


def chain_sets(program: CommunicationProgram, prices: Prices, written: CommunicationProgram | None = None, *,
               every: bool = True
               ) -> list[tuple[Chain, ...]]:
    """Sets of chains that may run in chunks together: the longest chain with the compatible ones; with ``every``, also
    each alone.

    Only chains on several engines are included: those of longest time first, of two with equal times the shorter. One
    empty set if there is none.
    """
    ranked = []
    for path in chains(program):
        works = [work for name in path for work in work_of(program, program.by_name[name], prices, written)]
        if len({work.engines for work in works}) > 1:
            ranked.append((-sum(work.seconds for work in works), len(path), path))
    together: list[Chain] = []
    beside = program
    for _, _, path in sorted(ranked):
        made = attempted(overlap, beside, path, 1)
        if made is not None:  # it shares no stage with one of them, and their waits form no cycle
            beside = made
            together.append(path)
    return list(dict.fromkeys([tuple(together), *((path,) for _, _, path in sorted(ranked) if every)]))


def in_chunks(program: CommunicationProgram, chosen: Iterable[Chain], count: int) -> CommunicationProgram:
    """``program`` with the chains ``chosen`` in ``count`` chunks; chains whose axes it does not divide stay whole."""
    for path in chosen if count > 1 else ():
        program = attempted(overlap, program, path, count) or program
    return program


def _can_be_cut(program: CommunicationProgram, path: Chain) -> bool:
    try:
        next(overlaps(program, path, 1))
    except CommunicationError:
        return False
    return True


_SHORT = {"matmul": "MM", "all_reduce": "AR", "reduce_scatter": "RS", "all_gather": "AG", "reduce": "R",
          "broadcast": "B", "send": "P2P"}


def title(program: CommunicationProgram) -> str:
    """Its stages in order; consecutive computation is one C, slices and updates are left out."""
    return "-".join(_row(program.stages)) or "nothing"


def titles(programs: Sequence[CommunicationProgram]) -> list[str]:
    """The title of each; duplicates are numbered from the second on."""
    seen: Counter[str] = Counter()
    found = []
    for program in programs:
        name = title(program)
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


def _row(stages: Iterable[ProgramStage]) -> list[str]:
    found: list[str] = []
    for stage in stages:
        if stage.kind in ("slice", "update"):
            continue
        name = f"({'-'.join(_row(stage.parts))})" if stage.parts else _SHORT.get(stage.kind, "C")
        if name != "C" or found[-1:] != [name]:
            found.append(name)
    return found
