"""Checks whether PyTorch would run a schedule with communication as intended, which PyTorch itself does not check.

PyTorch's messages have no tags: a send matches the peer's next receive. On gloo, two swapped receives are not detected
and train on another micro-batch's data; a gradient that is never reduced is too large by the number of micro-batches.
Here the rows are checked against the strict rules of :mod:`weft.runtime.plan.check`. If they violate only the order
between the two directions of a pair, buffered channels (gloo) still run them; this is a note, not an error.
"""

from __future__ import annotations

import re
from contextlib import suppress

from weft.runtime.export.torch_csv import COMPUTE, TorchAction
from weft.runtime.export.torch_import import ScheduleTable, unit_problem
from weft.runtime.plan.check import check_program
from weft.runtime.plan.program import Instruction, Program, ProgramError, Recv, Send, StageWork


def check_communication(table: ScheduleTable) -> list[str]:
    """Notes on the messages of ``table``: one sentence each.

    Raises :class:`~weft.solver.io.entries.FormatError`, with row and cell, if they do not fit together: an action
    before its data, a send without its receive, two ranks that see their messages in different orders, ranks that wait
    for each other.
    """
    if not table.has_communication:
        return []
    rows: list[list[Instruction]] = []
    cells: list[list[int]] = []
    for r, row in enumerate(table.rows):
        rows.append([])
        cells.append([])
        for action, cell in row:
            made = _instructions(table, r, action, cell)
            rows[r] += made
            cells[r] += [cell] * len(made)
    program, problem = Program(tuple(map(tuple, rows))), unit_problem(table)
    try:
        check_program(program, problem, table.micro_batches)
    except ProgramError as error:
        sentence, _, picture = str(error).partition("\n")
        with suppress(ProgramError):
            check_program(program, problem, table.micro_batches, buffered=True)
            return [f"PyTorch runs it only where messages are buffered: {sentence}", *_reductions(table)]
        place = re.search(r"rank (\d+), step +(\d+):.*<-- here", picture)
        assert place is not None, picture
        rank, step = int(place[1]), int(place[2])
        table.refuse(rank, cells[rank][min(step, len(cells[rank]) - 1)], sentence)
    return _reductions(table)


def _instructions(table: ScheduleTable, rank: int, action: TorchAction, cell: int) -> list[Instruction]:
    stage, kind, m = action
    if m is None or kind.startswith("WAIT_"):
        return []
    if kind in COMPUTE:
        letters = "IW" if kind == "B" and "I" in table.letters(stage) else kind
        return [StageWork(stage, letter, m) for letter in letters]
    sends, forwards = kind.startswith("SEND"), kind.endswith("F")
    other = stage + (1 if forwards == sends else -1)
    if not 0 <= other < len(table.ranks):
        table.refuse(rank, cell, f"{action} has no other end, the stages are 0 to {len(table.ranks) - 1}")
    if table.ranks[other] == rank:
        table.refuse(rank, cell, f"{action} is between two stages of one row, where nothing is sent")
    producer = stage if sends else other
    letter = "F" if forwards else "I" if "I" in table.letters(producer) else "B"
    what = StageWork(producer, letter, m)
    return [Send(what, table.ranks[other]) if sends else Recv(what, table.ranks[other])]


def _reductions(table: ScheduleTable) -> list[str]:
    """Check that ``REDUCE_GRAD`` comes after the stage's last gradient; otherwise gradients are missing."""
    notes, reduced = [], set()
    for r, row in enumerate(table.rows):
        for action, cell in row:
            if action.kind == "REDUCE_GRAD":
                reduced.add(action.stage)
            elif action.kind in ("B", "W") and action.stage in reduced:
                table.refuse(r, cell, f"{action} comes after {action.stage}REDUCE_GRAD, which would leave it out")
    missing = [s for s in range(len(table.ranks)) if s not in reduced and len(table.letters(s)) > 1]
    if missing:
        notes.append(f"no REDUCE_GRAD of stage {', '.join(map(str, missing))}: PyTorch 2.10 and newer leave "
                     "gradients too large by the number of micro-batches")
    return notes
