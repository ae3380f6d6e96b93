"""A schedule as a PyTorch pipelining CSV, with or without its communication.

Without, PyTorch adds the messages itself, from a guess in which every action takes one unit of time. With it, they are
where :mod:`weft.runtime.plan.lowering` puts them: in one order on both ends of every pair of ranks, which PyTorch
relies on (its messages bear no tags), and each receive posted before the action that runs while the data becomes ready.

How PyTorch (2.10 to 2.15) runs such a file::

    stages = [PipelineStage(module[s], s, count, device) for s in sorted(stages_of_this_rank)]
    runtime = _PipelineScheduleRuntime(stages, n_microbatches=N, loss_fn=loss)
    runtime._load_csv(path, format="compute_comms")             # or "compute_only"
    runtime.step(x, target=y, losses=losses)

Before 2.10 there is no ``REDUCE_GRAD``: 2.6 never divides gradients by N and takes the rank of every stage from the
constructor (``stage_index_to_group_rank``), 2.8 divides behind full backwards but not behind weight gradients. With
``scale_grads=False`` (2.6: nothing) and a loss that is divided by N, all versions agree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from weft.runtime.export.ranks import as_ranks
from weft.runtime.export.refusal import ExportError, pipeline_for
from weft.runtime.export.torch_actions import TorchAction, TorchVersion
from weft.runtime.plan.lowering import lower
from weft.runtime.plan.program import Instruction, Recv, Send, StageWork
from weft.solver.io.writing import write_atomically
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

_TOOL = "PyTorch's pipelining"


def save_torch_csv(schedule: Schedule, path: str | os.PathLike[str], *, communication: bool = False,
                   torch: str = "2.13") -> None:
    """Write :func:`torch_csv` to ``path``, whole or not at all. Raises ``OSError`` too."""
    write_atomically(path, torch_csv(schedule, communication=communication, torch=torch))


def torch_csv(schedule: Schedule, *, communication: bool = False, torch: str = "2.13") -> str:
    """The CSV of ``schedule`` for PyTorch version ``torch``: row r is device r, or group r of GPUs that compute
    together, in its order.

    Raises :class:`~weft.runtime.export.refusal.ExportError` for schedules that PyTorch cannot express: a problem that
    is not a chain of stages each on one device, a forward without a backward, a last stage whose forwards are out of
    order (PyTorch would pair outputs with other micro-batches' targets); ``ValueError`` for a version before 2.6.
    """
    rows = torch_rows(schedule, communication=communication, torch=torch)
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def torch_rows(schedule: Schedule, *, communication: bool = False, torch: str = "2.13") -> list[list[TorchAction]]:
    """The actions of :func:`torch_csv`, per rank."""
    version = TorchVersion.of(torch)
    schedule, _ = as_ranks(schedule, _TOOL)
    pipeline = pipeline_for(schedule, _TOOL)
    if not pipeline.has_backward:
        raise ExportError(f"{_TOOL} cannot express {schedule.problem.name!r}: it has no backward, and PyTorch refuses "
                          "a schedule without one")
    require_outputs_in_order(schedule, pipeline)
    rows = [_actions(row, rank, pipeline) for rank, row in enumerate(lower(schedule).ranks)]
    if not communication:
        return [[action for action in row if action.kind in "FBIW"] for row in rows]
    return [_with_waits(row) if version.waits else row for row in
            (_with_reductions(row, schedule.micro_batches) if version.reduces_gradients else row for row in rows)]


def require_outputs_in_order(schedule: Schedule, pipeline: Pipeline) -> None:
    """Raise :class:`~weft.runtime.export.refusal.ExportError` for a last stage whose forwards are out of order."""
    last = pipeline.stages[-1].forward
    order = [operation.micro_batch for operation in schedule.operations if operation.block == last]
    if order != sorted(order):
        raise ExportError(f"{_TOOL} cannot express {schedule.problem.name!r}: its last stage runs micro-batches in the "
                          f"order {', '.join(map(str, order[:8]))}{', ...' * (len(order) > 8)}, and PyTorch pairs its "
                          "outputs with the targets of 0, 1, 2, ...")


def _actions(row: Iterable[Instruction], rank: int, pipeline: Pipeline) -> list[TorchAction]:
    """A row of a program in PyTorch's vocabulary. Messages for implied waits only are left out: it has none."""
    stages, actions = pipeline.stages, []
    for instruction in row:
        if isinstance(instruction, StageWork):
            actions.append(_compute(instruction, pipeline))
        elif isinstance(instruction, (Send, Recv)):
            sends, what = isinstance(instruction, Send), instruction.what
            assert isinstance(what, StageWork)
            user = what.stage + 1 if what.letter == "F" else what.stage - 1
            receiver = instruction.peer if sends else rank
            if 0 <= user < len(stages) and stages[user].device == receiver:
                direction = "F" if what.letter == "F" else "B"
                actions.append(TorchAction(what.stage, f"SEND_{direction}", what.micro_batch) if sends else
                               TorchAction(user, f"RECV_{direction}", what.micro_batch))
    return actions


def _compute(work: StageWork, pipeline: Pipeline) -> TorchAction:
    """A stage 0 without an input gradient has only a weight gradient, its whole backward: PyTorch's B."""
    is_whole = work.letter == "W" and not pipeline.stages[work.stage].gradient
    return TorchAction(work.stage, "B" if is_whole else work.letter, work.micro_batch)


def _with_reductions(row: list[TorchAction], micro_batches: int) -> list[TorchAction]:
    """``REDUCE_GRAD`` behind the last of each stage's weight gradients, ``micro_batches`` of them."""
    result, seen = [], dict.fromkeys((action.stage for action in row), 0)
    for action in row:
        result.append(action)
        if action.kind in ("B", "W"):
            seen[action.stage] += 1
            if seen[action.stage] == micro_batches:
                result.append(TorchAction(action.stage, "REDUCE_GRAD"))
    return result


def _with_waits(row: list[TorchAction]) -> list[TorchAction]:
    """A wait for every send and reduction. A send to the next stage has arrived when that stage's gradient is there, so
    it is waited for behind this stage's own backward; the rest is waited for at the end."""
    result: list[TorchAction] = []
    pending: dict[TorchAction, TorchAction] = {}
    for action in row:
        result.append(action)
        if action.kind in ("SEND_F", "SEND_B"):
            pending[action] = action._replace(kind=f"WAIT_{action.kind}")
        elif action.kind in ("B", "I"):
            wait = pending.pop(action._replace(kind="SEND_F"), None)
            result += [] if wait is None else [wait]
        elif action.kind == "REDUCE_GRAD":
            result.append(action._replace(kind="WAIT_REDUCE_GRAD"))
    return [*result, *pending.values()]
