"""The step that ranks measured by themselves would make together, compared with the plan.

Each block takes what it took when its rank ran by itself (on several ranks: what the slowest took), with its share of
the executor's own time on its ranks; transfers take what the plan says; every rank keeps its order. The earliest times
under these (:func:`weft.solver.timing.time_orders`) are the predicted step. Ranks that were not measured count as
planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.runtime.plan.plan import Plan
from weft.solver.problem import Problem
from weft.solver.schedule import Operation, Schedule
from weft.solver.timing import time_orders

if TYPE_CHECKING:
    from weft.runtime.replay.single_rank import RankCost

__all__ = ["Prediction", "RankRow", "predict"]


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank, measured by itself and planned: times in seconds, memory in bytes, ``None`` where the plan does not
    say.

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
    """Ranks by themselves, and together: ``step`` is the predicted time of all blocks in seconds, ``planned`` the
    plan's (both ``None`` if its time unit is no unit of time)."""

    device: str
    rows: tuple[RankRow, ...]
    step: float | None
    planned: float | None
    unmeasured: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """The numbers as plain data."""
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
    """What ``costs``, of some or all ranks of ``plan``, say about its step. ``seconds_per_unit``: of its time unit."""
    problem = plan.problem
    operations = [Operation(problem_block, work.micro_batch, *times) for work, times in plan.times.items()
                  if (problem_block := plan.vocabulary.block(work)) is not None]
    schedule = Schedule(problem, plan.micro_batches, tuple(operations), 0.0)
    rows = tuple(_row(plan, schedule, cost, seconds_per_unit) for cost in costs)
    unmeasured = tuple(sorted(set(range(len(problem.devices))) - {cost.rank for cost in costs}))
    step = planned = None
    if seconds_per_unit is not None:
        measured = _measured(problem, costs, seconds_per_unit)
        step = max(o.end for o in time_orders(measured, plan.micro_batches, schedule.orders)) * seconds_per_unit
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


def _row(plan: Plan, schedule: Schedule, cost: RankCost, seconds_per_unit: float | None) -> RankRow:
    planned = None
    if seconds_per_unit is not None:
        planned = seconds_per_unit * sum(o.end - o.start for o in schedule.device_orders[cost.rank])
    return RankRow(cost.rank, plan.micro_batches * sum(cost.durations.values()), planned, cost.own, cost.update,
                   cost.held, cost.peak, _planned_peak(plan, schedule, cost.rank), cost.peak_update)


def _planned_peak(plan: Plan, schedule: Schedule, rank: int) -> int | None:
    """The peak of the row as planned: what blocks hold and what is always held."""
    static: Sequence[int] | None = plan.solver.get("static_memory")
    if plan.problem.memory_unit != "B" or static is None:
        return None
    return int(static[rank] + schedule.peak_memory[rank])


def _or_dash(value: float | None, scale: float, digits: int = 2) -> str:
    return "-" if value is None else f"{value * scale:.{digits}f}"


def _ratio(value: float, planned: float | None) -> str:
    return "-" if not planned else f"{value / planned:.3f}"
