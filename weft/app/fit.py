"""Conversion of measured timelines into corrected costs: reading the inputs and showing the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from weft.app.lib.results import Tabular
from weft.runtime.measure.fitting import Fit, fit
from weft.runtime.plan.plan import PLAN_FORMATS, Plan, load_plan, plan_of
from weft.runtime.plan.timeline import Timeline, load_timeline
from weft.solver.io.entries import FormatError, read_json
from weft.solver.io.schedule_files import load_schedule
from weft.solver.schedule import Schedule
from weft.text.tables import table_of
from weft.text.units import time_text

if TYPE_CHECKING:
    from rich.table import Table

    from weft.app.lib.sources import PathLike


class Fitted(Tabular):
    """A fit with its table. ``problem`` is the problem with measured costs."""

    def __init__(self, found: Fit) -> None:
        self.fit, self.problem = found, found.problem

    def save(self, path: PathLike) -> None:
        """Write the problem (``weft.problem/1``). Raises ``OSError``."""
        from weft.solver.io.problem_files import save_problem

        save_problem(self.problem, path)

    @property
    def warnings(self) -> list[str]:
        """One sentence each for blocks and transfers with a large spread, and for unmeasured blocks."""
        found = [f"block {row.block!r} spreads by {row.spread:.0%} over {row.count} measurements, its figure is "
                 "not steady" for row in self.fit.blocks if row.is_unsteady]
        found += [f"the transfer from {row.source!r} to {row.block!r} spreads by {row.spread:.0%} over {row.count} "
                  "measurements: ranks waited for more than data" for row in self.fit.transfers
                  if row.is_unsteady and row.fitted > 0]
        return found + [f"block {row.block!r} was not measured and keeps its planned duration"
                        for row in self.fit.blocks if not row.count]

    def to_json(self) -> dict[str, Any]:
        """The numbers, in the problem's time unit."""
        return {"name": self.problem.name, "time_unit": self.problem.time_unit,
                "blocks": [{**asdict(row), "unsteady": row.is_unsteady} for row in self.fit.blocks],
                "transfers": [{**asdict(row), "unsteady": row.is_unsteady} for row in self.fit.transfers],
                "warnings": self.warnings}

    def table(self) -> Table:
        """Blocks, then transfers."""
        unit = time_text(1.0, self.problem.time_unit)[1]
        table = table_of(f"{self.problem.name}: planned and measured, {unit}", (
            "block", "planned", "measured", "ratio", "spread", "count"), ("block",))
        for row in self.fit.blocks:
            ratio = "-" if row.measured is None else f"{row.measured / row.planned:.3f}"
            table.add_row(row.block, self._time(row.planned), self._time(row.measured), ratio,
                          f"{row.spread:.1%}" + " !" * row.is_unsteady, str(row.count))
        table.add_section()
        for transfer in self.fit.transfers:
            table.add_row(f"{transfer.source} > {transfer.block}", self._time(transfer.planned),
                          ("" if transfer.count else "<= ") + self._time(transfer.fitted), "",
                          f"{transfer.spread:.1%}" + " !" * transfer.is_unsteady if transfer.count else "",
                          str(transfer.count) if transfer.count else "hidden")
        return table

    def _time(self, value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value * (1e3 if self.problem.time_unit == 's' else 1):.4g}"

    def __str__(self) -> str:
        return f"{super().__str__()}\n" + "".join(f"{warning}\n" for warning in self.warnings)


def fit_timelines(source: Schedule | PathLike, timelines: Sequence[PathLike | Timeline]) -> Fitted:
    """See :func:`weft.fit`."""
    plan, where = _plan(source)
    if plan.rounds is not None:
        raise ValueError(f"{where}: has jobs, or micro-batches that differ, whose costs cannot be fitted yet; fit "
                         "those of one job with micro-batches that are alike")
    read = []
    for item in timelines:
        timeline = load_timeline(item) if isinstance(item, str | os.PathLike) else item
        if timeline.plan != plan.digest:
            name = os.fspath(item) if isinstance(item, str | os.PathLike) else f"the timeline of {timeline.name!r}"
            raise ValueError(f"{name}: was not measured on {where}, but on another plan"
                             + (f", of {timeline.name!r}" if timeline.name != plan.problem.name else ""))
        read.append(timeline)
    return Fitted(fit(plan.problem, read))


def _plan(source: Schedule | PathLike) -> tuple[Plan, str]:
    """The plan in a plan or schedule file, and its name."""
    if isinstance(source, Schedule):
        return plan_of(source), f"the schedule of {source.problem.name!r}"
    name = os.fspath(source)
    value = read_json(source)
    format = value.get("format") if isinstance(value, dict) else None
    if format not in (*PLAN_FORMATS, "weft.schedule/1"):
        raise FormatError(f"{name}: is neither a plan ({PLAN_FORMATS[-1]}) nor a schedule (weft.schedule/1)")
    return load_plan(source) if format in PLAN_FORMATS else plan_of(load_schedule(source)), name
