"""GPipe: all forwards, then all backwards.

Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", NeurIPS 2019, section 2.
On uniform stages each device is idle for (p - 1)(F + B) and stores the activations of all m micro-batches.
With several stages a device it is the looped breadth-first schedule (Lamy-Poirier, "Breadth-First Pipeline
Parallelism", MLSys 2023): stage by stage, all micro-batches each.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row, require_pipeline
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. Any pipeline, training or inference; a split backward runs its parts back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if ``problem`` is not a pipeline.
    """
    stages = require_pipeline(problem).stages
    rows: list[Row] = [[] for _ in problem.devices]
    for stage in stages:
        rows[stage.device] += [(stage.forward, m) for m in range(micro_batches)]
    for stage in reversed(stages):
        rows[stage.device] += [(block, m) for m in range(micro_batches) for block in stage.blocks[1:]]
    return rows
