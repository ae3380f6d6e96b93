"""1F1B: after a short warm-up each device alternates one forward and one backward.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2, in the form
with a flush that Fan et al., "DAPPLE", PPoPP 2021, and Megatron-LM run. On uniform stages each device is idle for
(p - 1)(F + B), as in GPipe, but device r holds the activations of only p - r micro-batches.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import NotApplicable, Row, require_backward, require_pipeline
from weft.solver.problem import Problem

__all__ = ["orders"]


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline with one stage on each device; a split backward runs back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_pipeline(problem)
    require_backward(pipeline)
    crowded = next((device for device, chunk in enumerate(pipeline.chunks) if len(chunk) > 1), None)
    if crowded is not None:
        raise NotApplicable(f"it needs one stage on each device, but device {problem.devices[crowded].name!r} has "
                            f"{len(pipeline.chunks[crowded])}")
    rows: list[Row] = [[] for _ in problem.devices]
    for s, stage in enumerate(pipeline.stages):
        row = rows[stage.device]
        ahead = min(len(pipeline.stages) - 1 - s, micro_batches)  # forwards before the first backward can be there
        forward, backwards = stage.forward, stage.blocks[1:]
        row += [(forward, m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                row.append((forward, m + ahead))
            for block in backwards:
                row.append((block, m))
    return rows
