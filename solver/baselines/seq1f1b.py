"""Seq1F1B: 1F1B by chunks of a sequence, which shortens the ramp and holds less of each micro-batch.

Sun et al., "Seq1F1B: Efficient Sequence-Level Pipeline Parallelism for Large Language Model Training", NAACL 2025,
section 3; with several stages a device (their Seq1F1B-I) section 3.3; and the repository's ``sp_queue``. Forwards run a
micro-batch's chunks first to last, backwards last to first, micro-batches in order: a queue of stacks. Device r of p is
ahead by k - 1 more than in 1F1B, as the first backward is the last chunk's; with v stages a device by
2(p - 1 - r) + k - 1 beyond what interleaving asks for. On uniform stages and chunks of equal work (the paper's
computation-wise partition), f + b each, each device is idle for (p - 1)(f + b), 1 / k of 1F1B's; the first device
holds p + k - 1 chunks, where 1F1B holds k p.

What such a problem looks like: :mod:`weft.solver.baselines.lib.sequence_chunks`. Where backwards are split, weight
gradients run behind them or, as in ZB-H1, as many backwards later as the device's rank; the shortest that fits the
devices' memory is taken.
"""

from __future__ import annotations

from functools import partial

from weft.solver.baselines.lib.alternating import Grouping, Turns, groupings
from weft.solver.baselines.lib.base import NotApplicable, Row
from weft.solver.baselines.lib.choosing import Maker, best_of
from weft.solver.baselines.lib.sequence_chunks import SequencePipeline
from weft.solver.problem import Problem

__all__ = ["orders"]


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
    turns = Turns(groups(micro_batches), slope, put_off=put_off)
    return [turns.row(rank, p, found.pieces[rank::p], micro_batches) for rank in range(p)]
