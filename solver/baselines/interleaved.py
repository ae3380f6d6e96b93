"""Interleaved 1F1B: several stages a device, in a loop over the devices, for a shorter ramp; with whole backwards, or
with deferred weight gradients.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
2.2. On uniform stages, v a device, each device is idle for (p - 1)(F + B) / v, where F and B are a whole device's; the
first device stores activations of p + (p - 1) / v micro-batches.

*Programs beyond the paper.* Megatron-LM lets groups of any size of at least p pass through a stage at a time
(``microbatch_group_size_per_vp_stage``), and can run one forward more ahead, so that a forward and the backward beside
it do not wait for each other. PyTorch's ``ScheduleInterleaved1F1B`` cuts micro-batches that are not a multiple of p
into equal rounds. Here any number of micro-batches runs: in rounds that differ by one at most, or in whole groups of
which the last is not full. Groups smaller than p, and devices that are less ahead, need less memory. The shortest that
fits the devices' memory is taken.

*With deferred weight gradients* (:func:`zero_bubble_orders`): PyTorch's ``ScheduleInterleavedZeroBubble``, ZB-H1 of Qi
et al., ICLR 2024, with several stages a device. Rank r is ahead by one forward for every device behind it instead of
two, and keeps its weight gradients r backwards behind. On uniform stages each device is idle for
(p - 1)(F + I - W) / v.
"""

from __future__ import annotations

from functools import partial

from weft.solver.baselines.lib.alternating import Grouping, TurnRule, groupings
from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.choosing import Maker, best_of
from weft.solver.pipeline import Pipeline
from weft.solver.problem import Problem

#: The rules tried, and those tried if none of them fits: the number of forwards by which a device is ahead for every
#: device behind it, the number it is ahead in addition, and the most backwards by which a weight gradient is deferred.
_Rules = tuple[tuple[int, int, int], ...]
#: As published, and Megatron-LM's for overlapped transfers; two that need less memory.
_AHEAD: tuple[_Rules, _Rules] = ((2, 0, 0), (2, 1, 0)), ((1, 0, 0), (0, 0, 0))
#: As published, and twice as far ahead; less deferred, and nothing, with less ahead.
_PUT_OFF: tuple[_Rules, _Rules] = ((1, 0, 10**9), (2, 0, 10**9)), ((1, 0, 2), (1, 0, 0), (0, 0, 0))


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline with stage s on device s modulo p; a split backward runs back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return _best(require_training(problem, "loop"), micro_batches, *_AHEAD)


def zero_bubble_orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards and stage s on device s modulo p.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return _best(require_training(problem, "loop", split=True), micro_batches, *_PUT_OFF)


def _best(pipeline: Pipeline, micro_batches: int, usual: _Rules, less: _Rules) -> list[Row]:
    groups, smaller = groupings(len(pipeline.chunks), micro_batches)

    def makers(rules: _Rules, groupings: list[Grouping]) -> list[Maker]:
        return [partial(_rows, pipeline, slope=slope, extra=extra, put_off=put_off, groups=grouping)
                for slope, extra, put_off in rules for grouping in groupings]

    return best_of(pipeline.problem, micro_batches, makers(usual, groups),
                   [*makers(less, groups), *makers((*less, *usual), smaller)])


def _rows(pipeline: Pipeline, micro_batches: int, *, slope: int, extra: int, put_off: int,
          groups: Grouping) -> list[Row]:
    turns = TurnRule(groups(micro_batches), slope, extra, put_off)
    return [turns.row(rank, len(pipeline.chunks), [(pipeline.stages[s],) for s in chunks], micro_batches)
            for rank, chunks in enumerate(pipeline.chunks)]
