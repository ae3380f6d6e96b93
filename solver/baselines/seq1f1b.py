"""Seq1F1B: 1F1B by chunks of a sequence, which shortens the ramp and stores less of each micro-batch.

Sun et al., "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language Model Training", NAACL 2025,
section 3; with several stages a device (their Seq1F1B-I) section 3.3; and the repository's ``sp_queue``. Forwards run a
micro-batch's chunks first to last, backwards last to first, micro-batches in order: a queue of stacks. Device r of p is
ahead by k - 1 more than in 1F1B, as the first backward is the last chunk's; with v stages a device by 2(p - 1 - r) + k
- 1 beyond the lead of interleaving. On uniform stages and chunks of equal work (the paper's computation-wise
partition), f + b each, each device is idle for (p - 1)(f + b), 1 / k of 1F1B's; the first device stores p + k - 1
chunks, where 1F1B stores k p.

If backwards are split, weight gradients run after them or, as in ZB-H1, as many backwards later as the device's rank;
the shortest that fits the devices' memory is taken.

Recognising a pipeline whose micro-batches pass through it in chunks of their sequence.

*The form of such a problem.* A micro-batch's tokens are cut into k consecutive chunks. Block F{s}.{j} is the forward of
chunk j on stage s. It waits for F{s-1}.{j}, the stage before, and for F{s}.{j-1}, whose keys and values it attends to.
Backwards run the other way: B{s}.{j} (or an input gradient, followed by a weight gradient) waits for B{s+1}.{j} and for
B{s}.{j+1}, which adds to the gradients of its keys and values; the first of them, B{S-1}.{k-1}, waits for the last
forward. F{s}.{j} takes the memory that chunk j keeps on stage s, B{s}.{j} gives it back. Names are arbitrary: chunks
and stages are found by dependencies, kinds, and devices.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from weft.solver.baselines.lib.alternating import Grouping, TurnRule, groupings
from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.baselines.lib.choosing import Maker, best_of
from weft.solver.pipeline import Shape, Stage, shape_of
from weft.solver.problem import BlockKind, Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline in sequence chunks, one stage a device or stages in a loop.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    found = SequencePipeline.of(problem)
    if found.shape not in ("chain", "loop"):
        raise NotApplicable("it needs one stage on each device, in device order, or several in a loop over the devices")
    p, pieces = len(problem.devices), len(found.pieces[0])
    looped = found.shape == "loop"
    split = any(piece.weights for row in found.pieces for piece in row)
    groups, smaller = groupings(-(-p // pieces), micro_batches)
    if not looped:
        groups, smaller = groups[:1], []
    usual = [(2 if looped else 1, 0), *([(2, p)] if split and looped else []), *([(1, p)] if split else [])]
    less = [(1, 0), (0, 0)] if looped else []

    def makers(rules: list[tuple[int, int]], groupings: list[Grouping]) -> list[Maker]:
        return [partial(_rows, found, groups=grouping, slope=slope, put_off=put_off)
                for slope, put_off in rules for grouping in groupings]

    return best_of(problem, micro_batches, makers(usual, groups),
                   [*makers(less, groups), *makers([*less, *usual], smaller)])


def _rows(found: SequencePipeline, micro_batches: int, *, groups: Grouping, slope: int, put_off: int) -> list[Row]:
    p = len(found.problem.devices)
    turns = TurnRule(groups(micro_batches), slope, put_off=put_off)
    return [turns.row(rank, p, found.pieces[rank::p], micro_batches) for rank in range(p)]


_NONE = ("it needs micro-batches in chunks of their sequence: a forward of each chunk on each stage, which waits for "
         "the stage before and for the chunk before")
_KINDS = (BlockKind.FORWARD, BlockKind.BACKWARD, BlockKind.INPUT_GRAD, BlockKind.WEIGHT_GRAD)


@dataclass(frozen=True)
class SequencePipeline:
    """``pieces``: per stage, per chunk of the sequence, its blocks. There are two chunks at least, two stages at least,
    and a backward."""

    problem: Problem
    pieces: tuple[tuple[Stage, ...], ...]

    @property
    def shape(self) -> Shape:
        """The arrangement of the stages on the devices."""
        return shape_of([row[0].device for row in self.pieces], len(self.problem.devices))

    @classmethod
    def of(cls, problem: Problem) -> SequencePipeline:
        """The pipeline in ``problem``.

        Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` with the reason if it is not one.
        """
        grid = _Waits(problem)
        forwards = grid.rows(BlockKind.FORWARD)
        if len(forwards) < 2 or len(forwards[0]) < 2:
            raise NotApplicable(_NONE)
        backwards = grid.rows(BlockKind.BACKWARD, BlockKind.INPUT_GRAD)
        gradients = {(len(forwards) - 1 - s, len(forwards[0]) - 1 - j): block
                     for s, row in enumerate(backwards) for j, block in enumerate(row)}
        weights = grid.weights(gradients)
        pieces = tuple(tuple(_piece(problem, forward, gradients.get((s, j)), weights.get((s, j)))
                             for j, forward in enumerate(row)) for s, row in enumerate(forwards))
        _require_whole(problem, pieces)
        grid.require_implied(pieces)
        return cls(problem, pieces)


class _Waits:
    """The dependencies within a micro-batch."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.before: list[set[int]] = [set() for _ in problem.blocks]
        self.after: list[set[int]] = [set() for _ in problem.blocks]
        if any(len(block.devices) > 1 or block.kind not in _KINDS for block in problem.blocks):
            raise NotApplicable(_NONE)
        for producer, consumer, dependency in problem.dependencies():
            if dependency.distance and producer != consumer:
                raise NotApplicable(f"block {problem.blocks[consumer].name!r} waits for an earlier micro-batch")
            if not dependency.distance:
                self.before[consumer].add(producer)
                self.after[producer].add(consumer)

    def rows(self, *kinds: BlockKind) -> list[list[int]]:
        """The blocks of ``kinds`` as a grid: rows are stages, columns chunks, both in the order in which a micro-batch
        runs them. Empty if they are not one."""
        mine = {i for i, block in enumerate(self.problem.blocks) if block.kind in kinds}
        sources = [i for i in mine if not self.before[i] & mine]
        # A pipeline's blocks wait for one before each; a grid's, from the second stage and chunk on, for two.
        if len(sources) != 1 or all(len(self.before[i] & mine) < 2 for i in mine):
            return []
        first, met = [sources[0]], {sources[0]}
        while (following := self._next(first[-1], first, mine, met)) is not None:
            first.append(following)
            met.add(following)
        rows, starts = [first], [sources[0]]
        while (start := self._next(starts[-1], starts, mine, met, elsewhere=True)) is not None:
            starts.append(start)
            met.add(start)
            row = [start]
            for above in rows[-1][1:]:
                found = [i for i in self.after[above] & self.after[row[-1]] & mine if self.before[i] & mine <= met]
                if len(found) != 1 or found[0] in met:
                    return []
                row.append(found[0])
                met.add(found[0])
            rows.append(row)
        return rows if met == mine else []

    def _next(self, last: int, line: Collection[int], mine: set[int], met: set[int], *,
              elsewhere: bool = False) -> int | None:
        """The block after ``last`` that waits for none of ``mine`` except the ``line``: on the same device, or
        anywhere."""
        device = self.problem.blocks[last].devices
        known = set(line)
        found = [i for i in self.after[last] & mine if i not in met and self.before[i] & mine <= known
                 and (elsewhere or self.problem.blocks[i].devices == device)]
        return found[0] if len(found) == 1 else None

    def weights(self, gradients: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
        """The weight gradient of each stage and chunk: after the last gradient that it waits for on its device; on
        stage 0, where there may be no gradient, after that of stage 1."""
        place = {block: cell for cell, block in gradients.items()}
        blocks = self.problem.blocks
        found: dict[tuple[int, int], int] = {}
        for i, block in enumerate(blocks):
            if block.kind != BlockKind.WEIGHT_GRAD:
                continue
            waited = [place[j] for j in self.before[i] if j in place]
            here = [cell for cell in waited if blocks[gradients[cell]].devices == block.devices]
            if here and blocks[gradients[min(here)]].kind == BlockKind.INPUT_GRAD and min(here) not in found:
                found[min(here)] = i
            elif waited and (0, min(waited)[1]) not in {*gradients, *found}:
                found[0, min(waited)[1]] = i
            else:
                raise NotApplicable(f"weight_grad block {block.name!r} waits for no input_grad block of its own")
        return found

    def require_implied(self, pieces: tuple[tuple[Stage, ...], ...]) -> None:
        """Refuse blocks with more waits than stages and chunks require."""
        forward = {piece.forward: (s, j) for s, row in enumerate(pieces) for j, piece in enumerate(row)}
        backward = {block: (-s, -j) for s, row in enumerate(pieces) for j, piece in enumerate(row)
                    for block in piece.blocks[1:]}
        last, turn = pieces[-1][-1].forward, pieces[-1][-1].blocks[1]
        if last not in self.before[turn]:
            raise NotApplicable(f"block {self.problem.blocks[turn].name!r} does not wait for the last forward")
        for consumer, producers in enumerate(self.before):
            for producer in producers:
                if producer in forward and consumer in backward:
                    continue
                places = forward if consumer in forward else backward
                weight = self.problem.blocks[producer].kind == BlockKind.WEIGHT_GRAD
                if weight or producer not in places or any(
                        before > after for before, after in zip(places[producer], places[consumer], strict=True)):
                    raise NotApplicable(f"block {self.problem.blocks[consumer].name!r} waits for "
                                        f"{self.problem.blocks[producer].name!r}, which no sequence in chunks asks for")


def _piece(problem: Problem, forward: int, gradient: int | None, weight: int | None) -> Stage:
    full = gradient is not None and problem.blocks[gradient].kind == BlockKind.BACKWARD
    return Stage(forward, gradient if full else None, None if full else gradient, weight,
                 problem.blocks[forward].devices[0])


def _require_whole(problem: Problem, pieces: tuple[tuple[Stage, ...], ...]) -> None:
    """Every block has its place, all of a stage are on one device, and there is a backward for every forward."""
    if sum(len(piece.blocks) for row in pieces for piece in row) != len(problem.blocks):
        raise NotApplicable("it needs a backward for each forward of a stage and a chunk, the last chunk first")
    for row in pieces:
        for piece in row:
            if len(piece.blocks) < 2:
                raise NotApplicable(f"it needs backwards; {problem.blocks[piece.forward].name!r} has none")
            if piece.input_grad is not None and piece.weight_grad is None:
                raise NotApplicable(f"no weight_grad block waits for {problem.blocks[piece.input_grad].name!r}")
            for block in piece.blocks:
                if problem.blocks[block].devices[0] != row[0].device:
                    raise NotApplicable(f"block {problem.blocks[block].name!r} is not on its stage's device")
