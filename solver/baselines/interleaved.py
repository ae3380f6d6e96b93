"""Interleaved 1F1B: several stages a device, in a loop over the devices, for a shorter ramp.

Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021, section
2.2. On uniform stages, v a device, each device is idle for (p - 1)(F + B) / v, where F and B are a whole device's; the
first device holds activations of p + (p - 1) / v micro-batches.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import NotApplicable, Row, require_backward, require_pipeline
from weft.solver.problem import Problem

__all__ = ["orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline with stage s on device s modulo p, and micro-batches in multiples of p.

    A split backward runs its parts back to back.
    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_pipeline(problem)
    require_backward(pipeline)
    p = len(problem.devices)
    if pipeline.shape != "loop":
        raise NotApplicable("it needs two stages or more on each device, stage s on device s modulo the number of "
                            "devices")
    if micro_batches % p:
        raise NotApplicable(f"it needs a multiple of {p} micro-batches (as many as devices), not {micro_batches}")
    rows: list[Row] = []
    for rank, chunks in enumerate(pipeline.chunks):
        v = len(chunks)
        # p micro-batches go through one stage, the same p through the device's next stage, then come the next p.
        turns = [(chunk, group * p + i) for group in range(micro_batches // p) for chunk in range(v) for i in range(p)]
        ahead = min(2 * (p - 1 - rank) + (v - 1) * p, len(turns))
        row: Row = []
        for turn in range(len(turns) + ahead):
            if turn < len(turns):
                chunk, m = turns[turn]
                row.append((pipeline.stages[chunks[chunk]].forward, m))
            if turn >= ahead:
                chunk, m = turns[turn - ahead]
                row += [(block, m) for block in pipeline.stages[chunks[v - 1 - chunk]].blocks[1:]]
        rows.append(row)
    return rows
