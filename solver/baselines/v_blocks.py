"""V-Min and V-Half: a V with about a third, or half, of 1F1B's activations.

Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 4: the building blocks of the V-shape
schedules. Each gives the slots of equal length in which one micro-batch runs its forwards and input gradients on a V of
p devices; it is repeated every six slots. :mod:`weft.solver.baselines.lib.building_block` squeezes, reorders and fills
in the weight gradients within the memory of the repeated block.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.building_block import BuildingBlock, StepChain
from weft.solver.baselines.lib.stable_pattern import INTERVAL, held, with_weights
from weft.solver.problem import Problem


def min_orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of V-Min. A pipeline with split backwards in a V: stage s of 2p on device s or 2p - 1 - s.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    p = len(problem.devices)
    pause = 2 if p % 3 == 0 else 0  # keeps the slots of the two directions apart
    return _orders(problem, micro_batches, [
        *range(p), *range(p, 2 * p), *range(2 * p + pause, 3 * p + pause), *range(3 * p + pause, 4 * p + pause)])


def half_orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of V-Half. A pipeline with split backwards in a V: stage s of 2p on device s or 2p - 1 - s.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    p = len(problem.devices)
    pause = 3 if p % 2 == 0 else 0
    back = 3 * p + pause - 1
    return _orders(problem, micro_batches, [
        *range(0, 2 * p, 2), *range(2 * p - 1, 3 * p - 1),
        *range(back, back + 2 * p, 2), *range(back + 2 * p, back + 3 * p)])


def _orders(problem: Problem, micro_batches: int, slots: list[int]) -> list[Row]:
    pipeline = require_training(problem, "v", split=True)
    chain = StepChain.uniform(pipeline)
    peak = max(held(with_weights([slot for slot, device in zip(slots, chain.device, strict=True) if device == d]))
               for d in range(len(problem.devices)))
    made = chain.run(BuildingBlock(tuple(map(float, slots)), INTERVAL), micro_batches, [peak] * len(problem.devices))
    assert made is not None, "a building block fits into the memory that it takes"
    return made.rows

