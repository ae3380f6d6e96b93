"""Reads a PyTorch pipelining CSV as a schedule, which can be judged, timed, drawn and replayed.

Both kinds of CSV are read; :func:`weft.runtime.export.torch_csv.parse_cell` defines the cells. Stages, ranks and
micro-batches follow from the file. Durations come from a problem; without one, every forward and every half of a
backward takes one unit. Times are the earliest under the file's order (:mod:`weft.solver.timing`).
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, NoReturn

from weft.runtime.export.torch_csv import COMPUTE, TorchAction, parse_cell
from weft.solver.io.entries import FormatError, read_input
from weft.solver.pipeline import NotAPipeline, Pipeline, Stage
from weft.solver.problem import Block, BlockKind, Dependency, Device, Problem
from weft.solver.schedule import Schedule
from weft.solver.timing import time_orders

_KINDS = {"F": BlockKind.FORWARD, "B": BlockKind.BACKWARD, "I": BlockKind.INPUT_GRAD, "W": BlockKind.WEIGHT_GRAD}
_NEEDS = {"B": "F", "I": "F", "W": "I"}


class PlacedAction(NamedTuple):
    """An action and the index of its cell in the row, from 0."""

    action: TorchAction
    cell: int


@dataclass(frozen=True)
class ScheduleTable:
    """The rows of a valid schedule file: every stage of every micro-batch once, on one rank, in a runnable order.
    ``where`` is the file's name; ``ranks`` the rank of each stage."""

    where: str
    rows: tuple[tuple[PlacedAction, ...], ...]
    ranks: tuple[int, ...]
    micro_batches: int

    @property
    def has_communication(self) -> bool:
        """Whether it is of the flavour with messages (``compute_comms``)."""
        return any(placed.action.kind.startswith(("SEND", "RECV")) for row in self.rows for placed in row)

    def letters(self, stage: int) -> str:
        """The passes of ``stage``, of F, B, I and W. If some of its micro-batches have a full backward and some a split
        one, the full one is an I directly followed by its W."""
        return self.letters_of_stages[stage]

    @cached_property
    def letters_of_stages(self) -> tuple[str, ...]:
        """:meth:`letters` of every stage."""
        found: list[set[str]] = [set() for _ in self.ranks]
        for row in self.rows:
            for action, _ in row:
                found[action.stage].add(action.kind)
        return tuple("".join(letter for letter in ("FIW" if "I" in kinds else "FBW") if letter in kinds)
                     for kinds in found)

    def refuse(self, row: int, cell: int, sentence: str) -> NoReturn:
        """Raise :class:`~weft.solver.io.entries.FormatError` at a cell; ``row`` and ``cell`` count from 0, the message
        counts cells from 1."""
        raise FormatError(f"{self.where}: row {row + 1}, cell {cell + 1}: {sentence}")


def read_table(path: str | os.PathLike[str]) -> ScheduleTable:
    """Read a schedule CSV. Raises :class:`~weft.solver.io.entries.FormatError`, naming row and cell."""
    return parse_table(read_input(path), os.fspath(path))


def parse_table(text: str, where: str = "schedule") -> ScheduleTable:
    """The table of a CSV's text. Raises :class:`~weft.solver.io.entries.FormatError`, led by ``where``."""
    try:
        cells = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise FormatError(f"{where}: is not CSV ({error})") from None
    if not any(any(cell.strip() for cell in row) for row in cells):
        raise FormatError(f"{where}: is empty, it must have one row of actions a rank")
    rows = []
    for r, row in enumerate(cells):
        placed = []
        for c, cell in enumerate(row):
            try:
                placed += [PlacedAction(action, c) for action in parse_cell(cell)]
            except ValueError as error:
                raise FormatError(f"{where}: row {r + 1}, cell {c + 1}: {error}") from None
        if not placed:
            raise FormatError(f"{where}: row {r + 1} has no action, and every row is a rank; give it a stage or delete "
                              "the line")
        rows.append(tuple(placed))
    draft = ScheduleTable(where, tuple(rows), (), 0)
    if draft.has_communication:
        _refuse_bubbles(draft, cells)
    table = ScheduleTable(where, draft.rows, _ranks(draft), _micro_batches(draft))
    _require_whole(table)
    _require_runnable(table)
    return table


def _refuse_bubbles(table: ScheduleTable, cells: Sequence[Sequence[str]]) -> None:
    for r, row in enumerate(cells):
        for c, cell in enumerate(row):
            if not cell.strip():
                table.refuse(r, c, "is empty, and PyTorch refuses that in a schedule with communication")


def _ranks(table: ScheduleTable) -> tuple[int, ...]:
    found: dict[int, int] = {}
    for r, row in enumerate(table.rows):
        for action, cell in row:
            if found.setdefault(action.stage, r) != r:
                table.refuse(r, cell, f"{action} is of stage {action.stage}, which row {found[action.stage] + 1} runs; "
                                      "a stage belongs to one rank")
    missing = next(s for s in range(len(found) + 1) if s not in found)
    if missing < len(found):
        raise FormatError(f"{table.where}: there is a stage {max(found)}, but no stage {missing}")
    return tuple(found[s] for s in range(len(found)))


def _micro_batches(table: ScheduleTable) -> int:
    found = {action.micro_batch for row in table.rows for action, _ in row if action.kind == "F"}
    numbers = {m for m in found if m is not None}
    missing = next(m for m in range(len(numbers) + 1) if m not in numbers)
    if missing < len(numbers) or not numbers:
        raise FormatError(f"{table.where}: there is no forward of micro-batch {missing}")
    return len(numbers)


def _require_whole(table: ScheduleTable) -> None:
    """Every stage runs every micro-batch forwards once and, if any runs backwards, backwards once, in that order."""
    seen: dict[TorchAction, int] = {}
    for r, row in enumerate(table.rows):
        for action, cell in row:
            if action in seen and action.kind not in ("UNSHARD", "RESHARD"):
                table.refuse(r, cell, f"{action} stands here a second time")
            seen[action] = cell
            if action.micro_batch is not None and action.micro_batch >= table.micro_batches:
                table.refuse(r, cell, f"{action} is of micro-batch {action.micro_batch}, but there are forwards of 0 "
                                      f"to {table.micro_batches - 1} only")
            needed = action._replace(kind=_NEEDS.get(action.kind, action.kind))
            if needed not in seen:
                table.refuse(r, cell, f"{action} comes before {needed}")
            other = {"I": "B", "B": "I"}.get(action.kind)
            if other is not None and action._replace(kind=other) in seen:
                table.refuse(r, cell, f"{action} is a second backward of its stage and micro-batch")
    trains = any(action.kind in ("B", "W") for action in seen)
    for s, rank in enumerate(table.ranks):
        for m in range(table.micro_batches):
            whole, split = TorchAction(s, "B", m) in seen, TorchAction(s, "W", m) in seen
            if TorchAction(s, "F", m) not in seen or (trains and not whole and not split):
                what = TorchAction(s, "F", m) if TorchAction(s, "F", m) not in seen else TorchAction(
                    s, "W" if TorchAction(s, "I", m) in seen else "B", m)
                raise FormatError(f"{table.where}: row {rank + 1}: {what} is missing")


def _require_runnable(table: ScheduleTable) -> None:
    """Run the rows as far as possible, and refuse an action that waits for a later one."""
    rows = [[placed for placed in row if placed.action.kind in COMPUTE] for row in table.rows]
    last, done, step = len(table.ranks) - 1, set[TorchAction](), [0] * len(rows)

    def waits_for(action: TorchAction) -> TorchAction | None:
        s, m = action.stage, action.micro_batch
        ready = ([TorchAction(s - 1, "F", m)] if action.kind == "F" and s > 0 else
                 [TorchAction(s + 1, kind, m) for kind in ("B", "I")] if action.kind in ("B", "I") and s < last else [])
        return None if not ready or any(one in done for one in ready) else ready[0]

    moved = True
    while moved:
        moved = False
        for r, row in enumerate(rows):
            while step[r] < len(row) and waits_for(row[step[r]].action) is None:
                done.add(row[step[r]].action)
                step[r] += 1
                moved = True
    for r, row in enumerate(rows):
        if step[r] < len(row):
            action, cell = row[step[r]]
            needed = waits_for(action)
            assert needed is not None
            table.refuse(r, cell, f"{action} can never run: it waits for {needed} or the like of row "
                                  f"{table.ranks[needed.stage] + 1}, which stands behind something that waits for this")


# -- as a schedule -------------------------------------------------------------------------------------------------


def unit_problem(table: ScheduleTable) -> Problem:
    """A problem for ``table`` with a unit of time for each forward, two for a full backward, one for each half of a
    split one; a forward keeps a unit of memory until its backward (its weight gradient) ends; transfers are free."""
    def device(stage: int) -> tuple[int]:
        return (table.ranks[stage],)

    count = len(table.ranks)
    blocks = [Block(f"F{s}", BlockKind.FORWARD, device(s), 1, (int(len(table.letters(s)) > 1),), (),
                    (Dependency(f"F{s - 1}"),) if s else ()) for s in range(count)]
    before = f"F{count - 1}"
    for s in reversed(range(count)):
        for letter in table.letters(s)[1:]:
            waited = f"I{s}" if letter == "W" else before
            blocks.append(Block(f"{letter}{s}", _KINDS[letter], device(s), 2 if letter == "B" else 1,
                                (0 if letter == "I" else -1,), (), (Dependency(waited),)))
        before = f"{'I' if 'I' in table.letters(s) else 'B'}{s}"
    return Problem(Path(table.where).stem or "schedule", tuple(Device(f"gpu{r}") for r in range(len(table.rows))),
                   tuple(blocks), time_unit="step", memory_unit="activations")


def schedule_of_table(table: ScheduleTable, problem: Problem | None = None) -> Schedule:
    """The schedule of ``table`` on ``problem`` (by default :func:`unit_problem`), as early as its order allows.

    Where they differ in vocabulary only they are matched as PyTorch would run them: a full backward is an I and its W,
    a stage 0 without an input gradient has its B in W. ``makespan_bound`` is 0: nothing is proven. Raises
    :class:`~weft.solver.io.entries.FormatError` if ``problem`` is not a pipeline or a different one.
    """
    problem = unit_problem(table) if problem is None else problem
    pipeline = _pipeline(table, problem)
    orders: list[list[tuple[int, int]]] = []
    for r, row in enumerate(table.rows):
        orders.append([])
        for action, cell in row:
            if action.kind in COMPUTE:
                stage = pipeline.stages[action.stage]
                blocks = _blocks(stage, action)
                if blocks is None:
                    has = ", ".join(problem.blocks[block].name for block in stage.blocks)
                    table.refuse(r, cell, f"{action} has no block in the problem {problem.name!r}, whose stage "
                                          f"{action.stage} is made of {has}")
                orders[r] += [(block, action.micro_batch or 0) for block in blocks]
    operations = time_orders(problem, table.micro_batches, orders)
    return Schedule(problem, table.micro_batches, operations, 0.0, solver={"name": "imported", "source": table.where})


def _pipeline(table: ScheduleTable, problem: Problem) -> Pipeline:
    try:
        pipeline = Pipeline.of(problem)
    except NotAPipeline as reason:
        raise FormatError(f"{table.where}: the problem {problem.name!r} is no pipeline: {reason}") from None
    if len(problem.devices) != len(table.rows):
        raise FormatError(f"{table.where}: has {len(table.rows)} rows, but the problem {problem.name!r} has "
                          f"{len(problem.devices)} devices")
    found: Mapping[int, int] = dict(enumerate(stage.device for stage in pipeline.stages))
    if len(found) != len(table.ranks):
        raise FormatError(f"{table.where}: has {len(table.ranks)} stages, but the problem {problem.name!r} has "
                          f"{len(found)}")
    for s, rank in enumerate(table.ranks):
        if found[s] != rank:
            raise FormatError(f"{table.where}: stage {s} is in row {rank + 1}, but the problem {problem.name!r} has it "
                              f"on device {problem.devices[found[s]].name!r}, which is row {found[s] + 1}")
    if pipeline.has_backward != (len(table.letters(len(table.ranks) - 1)) > 1):
        raise FormatError(f"{table.where}: has {'no ' * pipeline.has_backward}backwards, but the problem "
                          f"{problem.name!r} has {'no ' * (not pipeline.has_backward)}backward blocks")
    return pipeline


def _blocks(stage: Stage, action: TorchAction) -> tuple[int, ...] | None:
    """The blocks that ``action`` runs, one after the other; ``None`` if the stage has none for it."""
    first = action.stage == 0
    if action.kind == "F":
        return (stage.forward,)
    if action.kind == "B":
        return stage.blocks[1:]
    if stage.backward is not None:  # PyTorch's I of stage 0 does nothing, its W is a full backward
        return ((stage.backward,) if action.kind == "W" else ()) if first else None
    if action.kind == "I":
        return stage.gradient or (() if first else None)
    return stage.weights or None
