"""A schedule as a PyTorch pipelining CSV, with or without its communication.

Without communication, PyTorch adds the messages itself, assuming that every action takes one unit of time. With it,
their places are those of :mod:`weft.runtime.plan.lowering`: the same order on both ranks of every pair, on which
PyTorch relies (its messages have no tags), and each receive before the action that runs while the data becomes ready.

How PyTorch (2.10 to 2.15) runs such a file::

    stages = [PipelineStage(module[s], s, count, device) for s in sorted(stages_of_this_rank)]
    runtime = _PipelineScheduleRuntime(stages, n_microbatches=N, loss_fn=loss)
    runtime._load_csv(path, format="compute_comms")             # or "compute_only"
    runtime.step(x, target=y, losses=losses)

Before 2.10 there is no ``REDUCE_GRAD``: 2.6 never divides gradients by N and takes the rank of every stage from the
constructor (``stage_index_to_group_rank``), 2.8 divides behind full backwards but not behind weight gradients. With
``scale_grads=False`` (2.6: nothing) and a loss that is divided by N, all versions agree.

The CSV has one row per rank and one action per cell.

==============================  ========================================================================================
cell                            meaning
==============================  ========================================================================================
``2F0``                         forward of stage 2 on micro-batch 0
``2B0``                         full backward
``2I0``, ``2W0``                input gradient, weight gradient. On stage 0 PyTorch's I does nothing, W a full backward
``2SEND_F0``, ``3RECV_F0``      stage 2's activation leaves for stage 3 and is received there: each names its own stage
``3SEND_B0``, ``2RECV_B0``      stage 3's input gradient leaves for stage 2 and is received there
``2REDUCE_GRAD``                ends stage 2's gradients; with ``scale_grads`` divides them by the micro-batches
``2WAIT_SEND_F0`` and so on     from 2.15 on: what was begun is waited for
``2UNSHARD``, ``2RESHARD``      FSDP's all-gather and its undoing
``(0F5;7B3)OVERLAP_F_B``        two actions that run as one; unless told otherwise PyTorch runs them one after the other
(empty)                         a bubble, in a schedule without communication only
==============================  ========================================================================================

Read from PyTorch's sources of 2.6, 2.8, 2.9.1, 2.10, 2.13 and 2.15; :class:`TorchVersion` has the differences between
versions. PyTorch reads a cell as far as it understands it (``0F2typo`` is ``0F2``); here all of it must be an action.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from weft.runtime.export.forms import ExportError, as_ranks, pipeline_for
from weft.runtime.plan.lowering import lower
from weft.runtime.plan.program import Instruction, Recv, Send, StageWork
from weft.solver.io.writing import write_atomically
from weft.solver.pipeline import Pipeline
from weft.solver.schedule import Schedule

#: Actions that compute.
COMPUTE = ("F", "B", "I", "W")
_WITH_MICRO_BATCH = (*COMPUTE, "SEND_F", "RECV_F", "SEND_B", "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B")
_WITHOUT = ("REDUCE_GRAD", "WAIT_REDUCE_GRAD", "UNSHARD", "RESHARD")
_ACTION = re.compile(rf"([0-9]+)(?:({'|'.join(_WITH_MICRO_BATCH)})([0-9]+)|({'|'.join(_WITHOUT)}))", re.ASCII)
_OVERLAP = re.compile(r"\((.*)\)OVERLAP_F_B", re.ASCII)


class TorchAction(NamedTuple):
    """One action; ``micro_batch`` is ``None`` for those of a stage as a whole."""

    stage: int
    kind: str
    micro_batch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.micro_batch is None else self.micro_batch}"


class TorchVersion(NamedTuple):
    """A PyTorch version, as far as the text of a schedule depends on it."""

    major: int
    minor: int

    @classmethod
    def of(cls, text: str) -> TorchVersion:
        """The version ``text`` (``2.13``, ``2.13.0+cpu``). Raises ``ValueError`` for anything before 2.6, whose
        schedules are not known here, and for anything but a version."""
        match = re.match(r"(\d{1,4})\.(\d{1,4})(?![0-9])", text, re.ASCII)
        version = cls(int(match[1]), int(match[2])) if match else None
        if version is None or version < (2, 6):
            raise ValueError(f"the PyTorch version is {text!r}, it must be 2.6 or newer, as 2.13")
        return version

    @property
    def reduces_gradients(self) -> bool:
        """Whether it ends a stage's gradients at ``REDUCE_GRAD`` (from 2.10 on) and nowhere else."""
        return self >= (2, 10)

    @property
    def waits(self) -> bool:
        """Whether every send and reduction must be waited for (from 2.15 on)."""
        return self >= (2, 15)


def parse_cell(text: str) -> tuple[TorchAction, ...]:
    """The actions of one cell, in the order in which they run; none for a bubble.

    Raises ``ValueError`` for anything else, with a sentence that starts with the text.
    """
    text = text.strip()
    if not text:
        return ()
    overlap = _OVERLAP.fullmatch(text)
    actions = tuple(_action(part.strip()) for part in (overlap[1].split(";") if overlap else [text]))
    if any(action is None for action in actions):
        raise ValueError(f"{text!r:.60} is no action of a PyTorch schedule, it must look like 2F0, 2B0, 2I0, 2W0, "
                         "2SEND_F0, 2REDUCE_GRAD or (0F5;7B3)OVERLAP_F_B")
    return tuple(action for action in actions if action is not None)


def _action(text: str) -> TorchAction | None:
    match = _ACTION.fullmatch(text)
    if match is None or max(map(len, re.findall("[0-9]+", text))) > 9:
        return None
    return TorchAction(int(match[1]), match[2], int(match[3])) if match[2] else TorchAction(int(match[1]), match[4])


_TOOL = "PyTorch's pipelining"


def save_torch_csv(schedule: Schedule, path: str | os.PathLike[str], *, communication: bool = False,
                   torch: str = "2.13") -> None:
    """Write :func:`torch_csv` to ``path`` atomically. Raises its errors and ``OSError``."""
    write_atomically(path, torch_csv(schedule, communication=communication, torch=torch))


def torch_csv(schedule: Schedule, *, communication: bool = False, torch: str = "2.13") -> str:
    """The CSV of ``schedule`` for PyTorch version ``torch``: row r is device r, or group r of GPUs that compute
    together, in its order.

    Raises :class:`~weft.runtime.export.forms.ExportError` for schedules that PyTorch cannot express: a problem that
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
    """Raise :class:`~weft.runtime.export.forms.ExportError` for a last stage whose forwards are out of order."""
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
    """``row`` with ``REDUCE_GRAD`` after the last of each stage's ``micro_batches`` weight gradients."""
    result, seen = [], dict.fromkeys((action.stage for action in row), 0)
    for action in row:
        result.append(action)
        if action.kind in ("B", "W"):
            seen[action.stage] += 1
            if seen[action.stage] == micro_batches:
                result.append(TorchAction(action.stage, "REDUCE_GRAD"))
    return result


def _with_waits(row: list[TorchAction]) -> list[TorchAction]:
    """``row`` with a wait for every send and reduction. A send to the next stage is complete when that stage's gradient
    has arrived, so its wait follows this stage's backward; other waits are at the end."""
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
