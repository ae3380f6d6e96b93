"""1F1B: after a short warm-up each device alternates one forward and one backward.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.2, in the form
with a flush that Fan et al., "DAPPLE", PPoPP 2021, and Megatron-LM run. On uniform stages each device is idle for
(p - 1)(F + B), as in GPipe, but device r stores the activations of only p - r micro-batches.
"""

from __future__ import annotations

from itertools import accumulate
from math import ceil

from weft.solver.baselines.lib.alternating import TurnRule
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import NotApplicable, Row, require_training
from weft.solver.pipeline import Stage
from weft.solver.problem import Problem
from weft.solver.schedule import RELATIVE_TOLERANCE


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders. A training pipeline with one stage on each device; a split backward runs back to back.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    stages = _stages(problem)
    rows: list[Row] = [[] for _ in problem.devices]
    for s, stage in enumerate(stages):
        rows[stage.device] = _row(stage, len(stages) - 1 - s, micro_batches)
    return rows


def orders_within_memory(problem: Problem, micro_batches: int) -> list[Row]:
    """The same, with fewer forwards ahead of the first backward if a device has no room for as many.

    A stage must then not be far ahead of what those before it can send: its backwards would wait for forwards that wait
    for backwards of the same stage. If micro-batches come one a period T, a stage holds as many as periods pass from
    its forward to its backward. So T is the least for which these fit on every device, and a stage's lead is one less.
    """
    stages, amounts = _stages(problem), Amounts.of(problem)
    room: list[int] = []
    ahead, limited = micro_batches, False
    for s, stage in enumerate(stages):
        ahead = min(ahead, len(stages) - 1 - s)
        while ahead and not amounts.fits(stage.device, _row(stage, ahead, ahead + 2)):
            ahead, limited = ahead - 1, True
        room.append(ahead)
    if limited:
        work = [sum(float(problem.blocks[i].duration) for i in stage.blocks) for stage in stages]
        passes = list(accumulate(reversed(work)))[::-1]  # from a stage's forward to the end of its backward, at least
        period = max([*work, *(time / (ahead + 1) for time, ahead in zip(passes, room, strict=True))])
        room = [max(0, min(ahead, ceil(time / (period or 1) * (1 - RELATIVE_TOLERANCE)) - 1))
                for time, ahead in zip(passes, room, strict=True)]
    rows: list[Row] = [[] for _ in problem.devices]
    for stage, ahead in zip(stages, room, strict=True):
        rows[stage.device] = _row(stage, ahead, micro_batches)
    return rows


def _stages(problem: Problem) -> tuple[Stage, ...]:
    pipeline = require_training(problem)
    crowded = next((device for device, chunk in enumerate(pipeline.chunks) if len(chunk) > 1), None)
    if crowded is not None:
        raise NotApplicable(f"it needs one stage on each device, but device {problem.devices[crowded].name!r} has "
                            f"{len(pipeline.chunks[crowded])}")
    return pipeline.stages


def _row(stage: Stage, ahead: int, micro_batches: int) -> Row:
    """``ahead``: the forwards that precede the first backward, and each later one."""
    return TurnRule((micro_batches,), slope=0, extra=ahead).row(0, 1, [(stage,)], micro_batches)
