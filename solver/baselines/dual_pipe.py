"""DualPipe and DualPipeV: both ends of a pipeline on one device, forwards of one paired with backwards of the other.

DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.2.1, and the DualPipe repository (DualPipe: two replicas of
the model in opposite directions; DualPipeV: the "cut-in-half" form on a V, proposed by Sea AI Lab). The eight phases
are theirs. A forward and a backward that they run as one overlapped pair run one after the other here, the forward
first: a block runs alone on its device unless a problem offers the pair as a separate block.

On h uniform devices of DualPipeV, or p = 2h of DualPipe, each device is idle for (h - 1)(F + 2B - 3W) in the step:
DeepSeek's (p/2 - 1)(F&B + B - 3W), where F&B is the time of a pair, here F + B. A device stores the activations of up
to 2h + 1 stages. DeepSeek requires at least 2h micro-batches in either direction.
"""

from __future__ import annotations

from weft.solver.baselines.lib.base import Row, require_training
from weft.solver.baselines.lib.bidirectional import both_ways
from weft.solver.pipeline import Stage
from weft.solver.problem import Problem


def orders(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of DualPipe. Two training pipelines with split backwards, one down the devices and one up.

    A micro-batch of the problem is a pair of DeepSeek's, one either way.
    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    down, up = both_ways(problem, split=True)
    p = len(problem.devices)
    rows = []
    for rank in range(p):
        own, other = (down[rank], up[p - 1 - rank]) if rank < p // 2 else (up[p - 1 - rank], down[rank])
        rows.append(_row(min(rank, p - 1 - rank), p // 2, micro_batches, own, other))
    return rows


def orders_v(problem: Problem, micro_batches: int) -> list[Row]:
    """Per-device orders of DualPipeV. A pipeline with split backwards in a V: stage s of 2p on device s or 2p - 1 - s.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` for anything else.
    """
    pipeline = require_training(problem, "v", split=True)
    p = len(problem.devices)
    return [_row(rank, p, micro_batches, pipeline.stages[rank], pipeline.stages[2 * p - 1 - rank]) for rank in range(p)]


def _row(rank: int, ranks: int, micro_batches: int, first: Stage, second: Stage) -> Row:
    """The order on the device that is number ``rank`` of ``ranks`` on the way from the end to the fold.

    ``first`` is its stage before the fold, ``second`` the one after it.
    """
    planned = max(micro_batches, 2 * ranks)  # the number in the phases; the order without the excess is still an order
    row: Row = []
    following = {(stage, part): 0 for stage in (first, second) for part in ("forward", "gradient")}
    waiting: list[tuple[int, int]] = []  # weight gradients put off

    def forward(stage: Stage) -> None:
        row.append((stage.forward, following[stage, "forward"]))
        following[stage, "forward"] += 1

    def backward(stage: Stage, *, put_off: bool = False) -> None:
        m = following[stage, "gradient"]
        following[stage, "gradient"] += 1
        row.extend((block, m) for block in stage.gradient)
        (waiting if put_off else row).extend((block, m) for block in stage.weights)

    def weights() -> None:
        if waiting:
            row.append(waiting.pop(0))

    before_fold = ranks - 1 - rank
    for _ in range(2 * before_fold):  # 1: forwards on their way to the fold
        forward(first)
    for _ in range(rank + 1):  # 2: forwards both ways
        forward(first)
        forward(second)
    for _ in range(before_fold):  # 3: the first backwards, weight gradients if a forward is still to come
        backward(second, put_off=True)
        weights()
        forward(second)
    for _ in range(planned - 2 * ranks + rank + 1):  # 4: the steady state, two pairs
        forward(first)
        backward(second)
        forward(second)
        backward(first)
    for _ in range(before_fold):  # 5: the last forwards after the fold
        backward(second)
        forward(second)
        backward(first)
    for step in range(rank + 1):  # 6: backwards both ways, from the middle on without their weight gradients
        past = 2 * step - (rank + 1)
        backward(second, put_off=past > 0 or (past >= -1 and rank % 2 == 1))
        backward(first, put_off=past >= -1)
    for _ in range(before_fold):  # 7: weight gradients while the last input gradients arrive
        weights()
        backward(first, put_off=True)
    row.extend(waiting)  # 8: the rest
    return [(block, m) for block, m in row if m < micro_batches]
