"""ZB-V: two stages a device in a V, and weight gradients that fill idle time.

Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, section 6. With equal times for forward, input gradient and
weight gradient no device is idle between its first start and its last end, at the memory of 1F1B's first rank (the
activations of p micro-batches) on every device. The V puts the first and the last stage on one device: a micro-batch's
backward starts where its forward did.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.control.clock import checked
from weft.solver.pipeline import Stage
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A pipeline with split backwards in a V: stage s of 2p on device s or 2p - 1 - s.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_training(problem, "v", split=True)
    p = len(problem.devices)
    planned = max(micro_batches, 2 * p - 1)  # the number in the ramp; the order without the excess is still an order
    rows = [_row(rank, p, planned, pipeline.stages[rank], pipeline.stages[2 * p - 1 - rank])
            for rank in checked(range(p))]
    return [[(block, m) for block, m in row if m < micro_batches] for row in rows]


def _row(rank: int, p: int, micro_batches: int, down: Stage, up: Stage) -> Row:
    """The order on one device, which runs stage ``down`` on the way down the V and ``up`` on the way back."""
    row: Row = []
    done: dict[tuple[Stage, str], int] = {}

    def run(stage: Stage, *parts: str) -> None:
        for part in parts:
            m = done.get((stage, part), 0)
            done[stage, part] = m + 1
            blocks = {"forward": (stage.forward,), "gradient": stage.gradient, "weights": stage.weights}[part]
            row.extend((block, m) for block in blocks)

    # Warm-up: forwards down until the first comes back up, then both ways, then the first backwards.
    for _ in range(2 * (p - rank) - 1):
        run(down, "forward")
    for _ in range(rank):
        run(up, "forward")
        run(down, "forward")
    for _ in range(p - rank):
        run(up, "forward", "gradient", "weights")
    # Steady state: forward and both gradients on the way down, then the same on the way up, each device without pause.
    while done.get((up, "forward"), 0) < micro_batches:
        if done[down, "forward"] < micro_batches:
            run(down, "forward")
        run(down, "gradient", "weights")
        run(up, "forward", "gradient", "weights")
    # Cool-down: input gradients first, others wait for them; weight gradients where there is nothing else.
    for _ in range(rank):
        run(down, "gradient")
        run(up, "gradient")
    for _ in range(p - rank):
        run(down, "gradient", "weights")
    for stage in (up, down):
        while done.get((stage, "weights"), 0) < micro_batches:
            run(stage, "weights")
    return row
