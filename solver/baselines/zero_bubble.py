"""ZB-H1: 1F1B in which weight gradients wait, to start the backwards earlier and to fill the end.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 2.2 (handcrafted schedule ZB-H1). Rank r of p keeps
its weight gradients r micro-batches behind its input gradients, so that all ranks hold the activations of p
micro-batches, as many as the first rank of 1F1B. On uniform stages each device is idle for (p - 1)(F + I - W), where I
and W are the times of the input and the weight gradient.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import NotApplicable, Row, require_backward, require_pipeline
from weft.solver.problem import Problem

__all__ = ["delayed_weights", "orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards and one stage on each device, in device order.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    return delayed_weights(problem, micro_batches, factor=1)


def delayed_weights(problem: Problem, micro_batches: int, factor: int) -> list[Row]:
    """1F1B with ``factor`` times its forwards ahead, and weight gradients ``factor`` times the rank behind."""
    pipeline = require_pipeline(problem)
    require_backward(pipeline, split=True)
    if pipeline.shape != "chain":
        raise NotApplicable("it needs one stage on each device, in device order")
    rows: list[Row] = []
    for rank, stage in enumerate(pipeline.stages):
        ahead = min(factor * (len(pipeline.stages) - 1 - rank), micro_batches)
        behind = factor * rank
        row: Row = [(stage.forward, m) for m in range(ahead)]
        for m in range(micro_batches + behind):
            if m + ahead < micro_batches:
                row.append((stage.forward, m + ahead))
            if m < micro_batches:
                row += [(block, m) for block in stage.gradient]
            if m >= behind:
                row += [(block, m - behind) for block in stage.weights]
        rows.append(row)
    return rows
