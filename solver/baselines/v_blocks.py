"""V-Min and V-Half: a V with about a third, or half, of 1F1B's activations.

Qi et al., "Pipeline Parallelism with Controllable Memory", NeurIPS 2024, section 4: the building blocks of the V-shape
schedules. Each says in which of the slots of equal length one micro-batch runs its forwards and input gradients on a V
of p devices; it is repeated every six slots. :mod:`weft.solver.baselines.lib.building_block` squeezes, reorders and
fills in the weight gradients within the memory that the repeated block takes.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import NotApplicable, Row, require_backward, require_pipeline
from weft.solver.baselines.lib.building_block import BuildingBlock, StepChain
from weft.solver.problem import Problem

__all__ = ["half_orders", "min_orders"]

#: Slots from one micro-batch to the next: a forward, an input and a weight gradient of each of a device's two stages.
_INTERVAL = 6


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
    pipeline = require_pipeline(problem)
    require_backward(pipeline, split=True)
    if pipeline.shape != "v":
        raise NotApplicable("it needs two stages on each device in a V, the first device with the first and last stage")
    chain = StepChain.uniform(pipeline)
    peak = max(_peak([slot for slot, device in zip(slots, chain.device, strict=True) if device == d])
               for d in range(len(problem.devices)))
    made = chain.run(BuildingBlock(tuple(map(float, slots)), _INTERVAL), micro_batches, [peak] * len(problem.devices))
    assert made is not None, "a building block fits into the memory that it takes"
    return made.rows


def _peak(slots: list[int]) -> int:
    """The stages' activations on a device that repeats ``slots``, forwards first; W is in the first free ones."""
    half = len(slots) // 2
    repeats = max(slots) // _INTERVAL + 2
    forwards = {slot + m * _INTERVAL for m in range(repeats) for slot in slots[:half]}
    gradients = {slot + m * _INTERVAL for m in range(repeats) for slot in slots[half:]}
    held = peak = waiting = 0
    for slot in range(repeats * _INTERVAL):
        if slot in forwards:
            held += 1
            peak = max(peak, held)
        elif slot in gradients:
            waiting += 1
        elif waiting:
            waiting -= 1
            held -= 1
    return peak
