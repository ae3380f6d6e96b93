"""ZB-H2: more forwards before the first backward than 1F1B, so that no device is ever idle once it has started.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2 (handcrafted schedule ZB-H2). Rank r of p runs
2(p - r) - 1 forwards before its first input gradient and keeps its weight gradients 2r micro-batches behind, so that
every rank holds the activations of up to 2p - 1 micro-batches. On uniform stages each device is idle for
(p - 1)(F + I - 2W) between its first start and its last end, where I and W are the times of the input and the weight
gradient and F + I >= 2W: not at all with F = I = W. Over the whole step (p - 1)F is added, since rank r starts rF late.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.zero_bubble import delayed_weights
from weft.solver.problem import Problem

__all__ = ["orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards and one stage on each device, in device order.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return delayed_weights(problem, micro_batches, factor=2)
