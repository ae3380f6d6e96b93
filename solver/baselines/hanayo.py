"""Hanayo: stages in waves down the devices and back, so that both ramps are those of a short stage.

Liu et al., "Hanayo: Harnessing Wave-like Pipeline Parallelism for Enhanced Large Model Training Efficiency", SC 2023,
section 3. With w waves each device has 2w stages and m = p micro-batches pass as one wave front; the bubble is at most
the share (2p - 2) / (3pw + p - 1) of the step with B = 2F, and no device holds more than all p
micro-batches, as in 1F1B's first. The order is that of the wave front in slots of F = 1 and B = 2, the older
micro-batch first; with more micro-batches than devices the next enter as the first leave.
"""

from __future__ import annotations

from itertools import accumulate

from weft.solver.baselines.lib.base import NotApplicable, Row, require_backward, require_pipeline
from weft.solver.baselines.lib.building_block import BuildingBlock, StepChain
from weft.solver.problem import Problem

__all__ = ["orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline whose stages run down the devices and back, once or more often.

    A split backward runs its parts back to back.
    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_pipeline(problem)
    require_backward(pipeline)
    p, count = len(problem.devices), len(pipeline.stages)
    waves, rest = divmod(count, 2 * p)
    if rest or [stage.device for stage in pipeline.stages] != [*range(p), *reversed(range(p))] * waves:
        raise NotApplicable("it needs the stages in waves, down the devices and back, with the first device first")
    chain = StepChain.uniform(pipeline, whole=True)
    offsets = (0.0, *accumulate(chain.duration[:-1]))
    made = chain.run(BuildingBlock(offsets, 4.0 * waves), micro_batches, [2 * waves * p] * p)
    assert made is not None, "as many micro-batches as devices always fit"
    weights = {stage.gradient[0]: stage.weights for stage in pipeline.stages if stage.gradient}
    return [[(part, m) for block, m in row for part in (block, *weights.get(block, ()))] for row in made.rows]
