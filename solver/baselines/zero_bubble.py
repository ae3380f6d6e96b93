"""ZB-H1 and ZB-H2: 1F1B in which weight gradients wait, to start the backwards earlier and to fill the end.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2 (handcrafted schedules). In ZB-H1 rank r of p has
its weight gradients r micro-batches behind its input gradients, so that all ranks store the activations of p
micro-batches, as many as the first rank of 1F1B. On uniform stages each device is idle for (p - 1)(F + I - W), where I
and W are the times of the input and the weight gradient.

ZB-H2 runs more forwards before the first backward, so that no device is ever idle once it has started: rank r runs
2(p - r) - 1 of them and keeps its weight gradients 2r micro-batches behind, so that every rank stores the activations
of
up to 2p - 1 micro-batches. On uniform stages each device is idle for (p - 1)(F + I - 2W) between its first start and
its last end, where F + I >= 2W: not at all with F = I = W. Over the whole step (p - 1)F is added, since rank r starts
rF late.
"""

from __future__ import annotations

from weft.solver.baselines.lib.alternating import TurnRule
from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of ZB-H1. A pipeline with split backwards and one stage on each device, in device order.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return _delayed(problem, micro_batches, 1)


def h2_orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of ZB-H2. Problems and errors like those of :func:`orders`."""
    return _delayed(problem, micro_batches, 2)


def _delayed(problem: Problem, micro_batches: int, factor: int) -> list[Row]:
    """1F1B with weight gradients deferred by the rank, as if ``factor`` devices were between each and the next."""
    stages = require_training(problem, "chain", split=True).stages
    turns, ranks = TurnRule((micro_batches,), slope=1, put_off=micro_batches), factor * (len(stages) - 1) + 1
    return [turns.row(factor * rank, ranks, [(stage,)], micro_batches) for rank, stage in enumerate(stages)]
