"""Runs ``weft replay plan.json`` on each rank that ``torchrun`` starts, and predicts a step from ranks measured alone.

In the prediction each block has its measured time (on several ranks: the slowest), plus its share of the executor's
overhead on its ranks; transfers have their planned time; every rank keeps its order. The earliest times
(:func:`weft.solver.timing.time_orders`) are the predicted step. Ranks that were not measured have planned times.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.runtime.plan.plan import Plan, load_plan
from weft.runtime.plan.timeline import save_timeline
from weft.runtime.replay.options import (
    ReplayError,
    ReplayOptions,
    checked_plan,
    on_rank_0,
    seconds_in_unit,
    training_of,
)
from weft.runtime.replay.run import Replay
from weft.runtime.transports.registry import device_for
from weft.solver.problem import Problem
from weft.solver.timing import time_orders

if TYPE_CHECKING:
    from weft.runtime.ranks.session import Session
    from weft.runtime.replay.single_rank import RankCost


def replay(plan_path: str | os.PathLike[str], options: ReplayOptions) -> Replay | None:
    """Run the plan in ``plan_path`` as one of the ranks that ``torchrun`` started; the result is on rank 0.

    Raises :class:`~weft.runtime.replay.options.ReplayError` or :class:`~weft.solver.io.entries.FormatError` on rank 0
    for invalid input; the other ranks then exit with code 2 and print nothing.
    """
    plan = on_rank_0(lambda: checked_plan(plan_path, options))
    from weft.runtime.ranks.session import RESERVE, SessionError, join

    with join(options.timeout, None if options.emulate else device_for(options.transport),
              transport=options.transport, reserve=RESERVE if options.reserve is None else options.reserve,
              replicas=options.replicas) as session:
        _require_alike(session, options)
        session.add_groups(plan.groups)
        result = _run(plan, session, options)
        if result is not None and options.timeline_path is not None:
            try:
                save_timeline(result.timeline, options.timeline_path)
            except OSError as error:
                raise SessionError(f"{os.fspath(options.timeline_path)}: cannot be written: {error.strerror}") from None
    return result


def _require_alike(session: Session, options: ReplayOptions) -> None:
    """Raise :class:`~weft.runtime.ranks.session.SessionError` if ranks' options differ. Their plans are compared when
    they agree on messages."""
    asked = ("transport", "emulate", "paced", "replicas", "time_scale", "checkpoint_every", "resume")
    session.agree_on({f"--{name.replace('_', '-')}": getattr(options, name) for name in asked},
                     "the options of the replay")


def _run(plan: Plan, session: Session, options: ReplayOptions) -> Replay | None:
    """Run ``plan`` with emulated blocks or with the stages of ``options``."""
    from weft.runtime.replay.run import run_emulated, run_training

    if options.stages is None:
        return run_emulated(plan, session, options.time_scale * (seconds_in_unit(plan) or 1.0), options.paced)
    session.watch.doing(f"loading {options.stages}")
    from weft.runtime.checkpoint.checkpoint import Checkpoints
    from weft.runtime.train.agreement import Allowed

    saving = None if options.checkpoint is None else Checkpoints(Path(options.checkpoint), options.checkpoint_every,
                                                                 options.resume, options.unchecked)
    return run_training(plan, session, training_of(options.stages, plan, session), saving, options.paced,
                        Allowed(options.allow_unsplit, options.allow_other_model))


def replay_single_rank(plan_path: str | os.PathLike[str], ranks: Sequence[int] | None = None, *, stages: str,
                       device: str | None = None, repeats: int = 3, allow_unsplit: bool = False,
                       allow_other_model: bool = False) -> Prediction:
    """Run ``ranks`` of the plan in ``plan_path`` (default: all), one after another, each alone in this process.

    ``stages`` is as in :class:`~weft.runtime.replay.options.ReplayOptions`; ``device`` is ``"cpu"`` or ``"cuda"``, by
    default the GPU if there is one. Medians are over ``repeats`` steps. See :mod:`weft.runtime.replay.single_rank` for
    the run, :func:`predict` for the prediction. Raises
    :class:`~weft.runtime.replay.options.ReplayError`, :class:`~weft.runtime.ranks.session.SessionError` or
    :class:`~weft.solver.io.entries.FormatError`.
    """
    import gc

    import torch

    from weft.runtime.replay.single_rank import measure_rank, single_rank
    from weft.runtime.train.agreement import Allowed

    plan = load_plan(plan_path)
    if plan.why_not_trained is not None:
        raise ReplayError(f"{os.fspath(plan_path)}: {plan.why_not_trained}")
    if device not in (None, "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise ReplayError(f"--device is {device!r}, it must be cpu, or cuda where torch has one")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    costs = []
    for rank in range(len(plan.program.ranks)) if ranks is None else ranks:
        with single_rank(plan, rank, where) as session:
            costs.append(measure_rank(plan, session, training_of(stages, plan, session), repeats,
                                      Allowed(allow_unsplit, allow_other_model)))
        gc.collect()  # frees this rank's memory before the next rank is built
        if where.type == "cuda":
            torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else "a CPU, one thread"
    return predict(plan, costs, name, seconds_in_unit(plan))


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank, measured alone and planned: times in seconds, memory in bytes, ``None`` where the plan does not say.

    ``busy``: the sum over its blocks. ``own``: the executor's own time in its row. ``update``: from its last block to
    the end of the optimizer's step. ``held``, ``peak`` (of the row) and ``peak_update``: see
    :class:`~weft.runtime.replay.single_rank.RankCost`.
    """

    rank: int
    busy: float
    planned_busy: float | None
    own: float
    update: float
    held: int
    peak: int
    planned_peak: int | None
    peak_update: int


@dataclass(frozen=True)
class Prediction:
    """Ranks alone, and together: ``step`` is the predicted time of all blocks in seconds, ``planned`` the plan's (both
    ``None`` if its time unit is not a unit of time)."""

    device: str
    rows: tuple[RankRow, ...]
    step: float | None
    planned: float | None
    unmeasured: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"alone on {self.device}",
                 "rank  busy ms  planned   ratio  own ms  update ms   held MiB   peak MiB    planned   ratio  update"]
        for row in self.rows:
            lines.append(
                f"{row.rank:4d}  {row.busy * 1e3:7.2f}  {_or_dash(row.planned_busy, 1e3):>7}  "
                f"{_ratio(row.busy, row.planned_busy):>6}  {row.own * 1e3:6.2f}  {row.update * 1e3:9.2f}  "
                f"{row.held / 2**20:9.1f}  {row.peak / 2**20:9.1f}  {_or_dash(row.planned_peak, 2**-20, 1):>9}  "
                f"{_ratio(row.peak, row.planned_peak):>6}  {row.peak_update / 2**20:6.1f}")
        if self.step is not None and self.planned is not None:
            others = "" if not self.unmeasured else f" (rank {', '.join(map(str, self.unmeasured))} as planned)"
            lines.append(f"predicted step  {self.step:.6g} s{others}, planned {self.planned:.6g} s, "
                         f"ratio {self.step / self.planned:.4f}")
        return "\n".join(lines)


def predict(plan: Plan, costs: Sequence[RankCost], device: str, seconds_per_unit: float | None) -> Prediction:
    """The prediction for a step of ``plan`` from ``costs`` of some or all of its ranks. ``seconds_per_unit``: of its
    time unit."""
    problem = plan.problem
    rows = tuple(_row(plan, cost, seconds_per_unit) for cost in costs)
    unmeasured = tuple(sorted(set(range(len(problem.devices))) - {cost.rank for cost in costs}))
    step = planned = None
    if seconds_per_unit is not None:
        measured = _measured(problem, costs, seconds_per_unit)
        step = max(o.end for o in time_orders(measured, plan.micro_batches, plan.schedule.orders)) * seconds_per_unit
        planned = plan.makespan * seconds_per_unit
    return Prediction(device, rows, step, planned, unmeasured)


def _measured(problem: Problem, costs: Sequence[RankCost], seconds_per_unit: float) -> Problem:
    found: dict[str, float] = {}
    for cost in costs:
        share = max(0.0, cost.own) / cost.works
        for block, seconds in cost.durations.items():
            found[block] = max(found.get(block, 0.0), (seconds + share) / seconds_per_unit)
    return replace(problem, blocks=tuple(replace(block, duration=found.get(block.name, block.duration))
                                         for block in problem.blocks))


def _row(plan: Plan, cost: RankCost, seconds_per_unit: float | None) -> RankRow:
    planned = None
    if seconds_per_unit is not None:
        planned = seconds_per_unit * sum(o.end - o.start for o in plan.schedule.device_orders[cost.rank])
    return RankRow(cost.rank, plan.micro_batches * sum(cost.durations.values()), planned, cost.own, cost.update,
                   cost.held, cost.peak, _planned_peak(plan, cost.rank), cost.peak_update)


def _planned_peak(plan: Plan, rank: int) -> int | None:
    """The planned peak of the row: blocks' memory and static memory."""
    static: Sequence[int] | None = plan.solver.get("static_memory")
    if plan.problem.memory_unit != "B" or static is None:
        return None
    return int(static[rank] + plan.schedule.peak_memory[rank])


def _or_dash(value: float | None, scale: float, digits: int = 2) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def _ratio(value: float, planned: float | None) -> str:
    return "-" if not planned else f"{value / planned:.3f}"
