"""Times of steps with collectives beside computation, in chunks: two engines, each in order.

A pass of a stage is a sequence of steps on one GPU; some are collectives, which run on the network lane, the others
compute. Cut into n chunks along a dimension (the samples of a micro-batch, or the positions of its sequences), a
divisible step becomes n pieces, each with its part of the work and a full launch; an indivisible one waits for all
pieces of its inputs. Compute steps between two collectives run chunk by chunk, all of them for the first chunk, then
for the next; so the collective of one chunk overlaps the computation of the next. Both engines process pieces in this
order and wait for their inputs. A GPU and its network can execute this order, so the time is that of a schedule, not a
bound; it is assumed that a piece of a kernel takes its share of the whole time, and that collectives do not slow
concurrent computation.

A pass of a stage with its collectives as separate blocks, on the network lanes.

Each piece of the pass (:func:`weft.models.overlap.flow.pieces`) is a block, and pieces on one engine keep their order.
Between them the GPU is free for other micro-batches, and for its other stages. The last block has the name of the pass
and follows all others, so that successors of the pass wait for it.

*Memory.* The first block allocates the pass's kept memory and all its workspace, the last one frees the workspace and
the memory that the pass frees: never less than the live memory in between. Memory of a block on a lane counts on its
GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from weft.solver.problem import Block, BlockKind, Dependency


@dataclass(frozen=True)
class FlowStep:
    """``waits``: indices of the earlier steps whose results it reads. ``seconds``: its total time.

    ``launch``: the part of it that every piece repeats. ``pieces``: for a collective, the seconds of one piece by
    number of pieces; a step with them runs on the network lane. ``divides``: units along its divisible dimensions.
    ``is_heavy``: whether it is a matrix product, which is not worth cutting unless a collective follows immediately.
    """

    name: str
    waits: tuple[int, ...]
    seconds: float
    launch: float = 0.0
    pieces: Mapping[int, float] = field(default_factory=dict)
    divides: Mapping[str, int] = field(default_factory=dict)
    is_heavy: bool = False

    @property
    def is_sent(self) -> bool:
        """Whether it is a collective."""
        return bool(self.pieces)

    def piece(self, count: int) -> float:
        """Seconds of one of ``count`` pieces."""
        if count == 1:
            return self.seconds
        return self.pieces[count] if self.is_sent else min(self.launch, self.seconds) + max(
            0.0, self.seconds - self.launch) / count


def serial(steps: Sequence[FlowStep]) -> float:
    """Seconds of all ``steps``, one after another."""
    return sum(step.seconds for step in steps)


@dataclass(frozen=True)
class FlowPiece:
    """A unit of an engine's work: on the network lane (``is_sent``) or the GPU, after the earlier pieces ``waits``."""

    seconds: float
    is_sent: bool
    waits: tuple[int, ...]


def duration(steps: Sequence[FlowStep], count: int, dimension: str = "", *, wide: bool = True) -> float:
    """Seconds until all ``steps`` have ended, in ``count`` chunks along ``dimension``; see :func:`pieces`."""
    return ended(pieces(steps, count, dimension, wide=wide))


def ended(row: Sequence[FlowPiece]) -> float:
    """Seconds until all pieces of ``row`` have ended."""
    ends: list[float] = []
    engines = [0.0, 0.0]  # the times when the GPU and its lane are free
    for piece in row:
        start = max([engines[piece.is_sent], *(ends[source] for source in piece.waits)])
        engines[piece.is_sent] = start + piece.seconds
        ends.append(engines[piece.is_sent])
    return max(engines)


def each_beside(computing: Sequence[float], sent: Sequence[float], *, ahead: bool = False, begin: float = 0.0) -> float:
    """When all have ended of as many collectives as there are computations: each waits for its own, or goes ``ahead``
    of it; both in order, from ``begin`` on."""
    gpu = lane = begin
    for own, collective in zip(computing, sent, strict=True):
        if ahead:
            lane += collective
            gpu = max(gpu, lane) + own
        else:
            gpu += own
            lane = max(lane, gpu) + collective
    return max(gpu, lane)


def pieces(steps: Sequence[FlowStep], count: int, dimension: str = "", *, wide: bool = True) -> list[FlowPiece]:
    """The pieces in the order of each engine: ``steps`` in ``count`` chunks along ``dimension``.

    ``wide``: cut every divisible step; else matrix products only if a collective reads them. Consecutive compute steps
    are one piece of each chunk, up to the next one that waits for a collective.
    """
    sent_from = {source for step in steps if step.is_sent for source in step.waits}
    cut = [count if step.divides.get(dimension, 1) % count == 0 and count > 1
           and (wide or not step.is_heavy or number in sent_from) else 1 for number, step in enumerate(steps)]
    found: list[FlowPiece] = []
    made: list[list[int]] = [[] for _ in steps]  # by step, the pieces of its chunks
    for run in _runs(steps, cut):
        for chunk in range(cut[run[0]]):
            sources = {source for number in run for source in steps[number].waits} - set(run)
            waits = {made[source][chunk] if cut[source] == cut[run[0]] else made[source][-1] for source in sources}
            seconds = sum(steps[number].piece(cut[number]) for number in run)
            for number in run:
                made[number].append(len(found))
            found.append(FlowPiece(seconds, steps[run[0]].is_sent, tuple(sorted(waits))))
    return found


def _runs(steps: Sequence[FlowStep], cut: Sequence[int]) -> list[list[int]]:
    """Consecutive steps on one engine, with equal numbers of chunks; a step that waits for a collective starts a new
    run."""
    runs: list[list[int]] = []
    for number, step in enumerate(steps):
        last = runs[-1][-1] if runs else number
        if (runs and not step.is_sent and not steps[last].is_sent and cut[last] == cut[number]
                and not any(steps[source].is_sent and source < runs[-1][0] and not _reads(steps, runs[-1], source)
                            for source in step.waits)):
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _reads(steps: Sequence[FlowStep], run: Sequence[int], source: int) -> bool:
    return any(source in steps[number].waits for number in run)


#: A piece without time is a block of a nanosecond.
_INSTANT = 1e-9


def apart_blocks(whole: Block, pieces: Sequence[FlowPiece], lanes: Mapping[int, int]) -> list[Block]:
    """``whole``, a pass in one block on devices alike, as a block for each of ``pieces``; ``lanes``: the lane of each
    device."""
    pieces = _with_one_end(pieces)
    last = len(pieces) - 1
    names = [*(f"{whole.name} {number}" for number in range(last)), whole.name]
    (kept,), (workspace,) = {*whole.memory}, {*whole.workspace}
    blocks: list[Block] = []
    before: dict[bool, int] = {}
    for number, piece in enumerate(pieces):
        waits = {*piece.waits, *([before[piece.is_sent]] if piece.is_sent in before else [])}
        if number and not waits:
            waits = {0}  # memory is allocated by the first one
        before[piece.is_sent] = number
        after = tuple(Dependency(names[source]) for source in sorted(waits))
        memory = ((max(kept, 0) + workspace if not number else 0)
                  + (min(kept, 0) - workspace if number == last else 0))
        where = tuple(lanes[device] for device in whole.devices) if piece.is_sent else whole.devices
        kind = BlockKind.COLLECTIVE if piece.is_sent else whole.kind
        blocks.append(Block(names[number], kind, where, max(round(piece.seconds, 9), _INSTANT), (memory,), (0,),
                            after or whole.after, whole.when))
    return blocks


def _with_one_end(pieces: Sequence[FlowPiece]) -> Sequence[FlowPiece]:
    """``pieces``, with the last one after all others: if the two engines end concurrently, an instant after both.
    """
    last = len(pieces) - 1
    other = max((number for number, piece in enumerate(pieces) if piece.is_sent != pieces[last].is_sent), default=None)
    behind: set[int] = set()
    for number in range(last, -1, -1):
        if number == last or number in behind:
            engine = [earlier for earlier in range(number) if pieces[earlier].is_sent == pieces[number].is_sent][-1:]
            behind |= {*pieces[number].waits, *engine}
    if other is None or other in behind:
        return pieces
    return [*pieces, FlowPiece(0.0, False, (other, last))]
