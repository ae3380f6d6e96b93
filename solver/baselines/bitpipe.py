"""BitPipe: two replicas of the model in opposite directions, each with several stages a device, in Vs.

Wu et al., "BitPipe: Bidirectional Interleaved Pipeline Parallelism for Accelerating Large Models Training", 2024
(arXiv 2410.19367), section 3: two V-shaped interleaved pipelines of two chunks a device, one from each end, merged as
Chimera merges two chains. The unit is p micro-batches, p / 2 either way; more run one unit after the other. On p
uniform devices (p even), f and b the times of one of a device's 2v stages, B >= F, each device is idle for (p - 2) b in
one unit: with b = 2f and v = 2 the share (p - 2) / (3 m + p - 2) of the step that the paper states for m = p
micro-batches, half of Chimera's.

Any number of stages a device runs here, in waves as well as in a loop (the paper's variant without Vs). Besides the
paper's order there is a variant in which a device that would be idle runs the ready operation that comes first in that
order, such as forwards of the next unit; the shortest that fits the devices' memory is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.lib.bidirectional import both_ways, in_slots
from weft.solver.baselines.lib.choosing import best_of
from weft.solver.baselines.lib.priority_rule import schedule_by_priority
from weft.solver.pipeline import Stage
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Two training pipelines in opposite directions, two stages or more a device; a micro-batch is a
    pair. A split backward runs its parts back to back if the paper's order is taken.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    down, up = both_ways(problem, split=False, several=True)
    return best_of(problem, micro_batches, [
        partial(in_slots, down, up, len(problem.devices)), partial(_early, problem, down, up)])


def _early(problem: Problem, down: Sequence[Stage], up: Sequence[Stage], micro_batches: int) -> list[Row] | None:
    """The same, without waiting for a slot: micro-batches are 4 S / p slots apart on average."""
    offsets = [0.0] * len(problem.blocks)
    for stages in (down, up):
        for s, stage in enumerate(stages):
            offsets[stage.forward] = float(s)
            for later, block in enumerate(stage.blocks[1:]):
                offsets[block] = 2 * len(stages) - 1 - s + later / 2
    interval = 4 * len(down) / len(problem.devices)
    made = schedule_by_priority(problem, micro_batches, offsets, interval, float("inf"), Amounts.of(problem))
    return None if made is None else made[1]
