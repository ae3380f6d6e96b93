"""The JSON files of schedules, ``weft.schedule/1``.

In a file with jobs, or with micro-batches that differ, operations have the names of the problem's blocks and the
numbers of their jobs' micro-batches; its :class:`~weft.solver.schedule.Schedule` is one of rounds
(:mod:`weft.solver.problem.rounds`), as are its period and repetend in the file. The number of rounds is in the file if
more and shorter rounds are possible.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from weft.solver.io.entries import Entry, FormatError, named, number, read_json, require_format, show
from weft.solver.io.problem_files import naming, problem_from_json, problem_to_json
from weft.solver.io.provenance import check_provenance
from weft.solver.io.writing import write_atomically
from weft.solver.problem import Number, Problem
from weft.solver.problem.rounds import Rounds, Run
from weft.solver.schedule import Operation, Repetend, Schedule
from weft.solver.spelling import near
from weft.solver.values import require_name

SCHEDULE_FORMAT = "weft.schedule/1"
#: Up to this number, micro-batches may exceed the operations.
_LOST = 1000


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a ``weft.schedule/1`` file. Raises :class:`FormatError`. Feasibility is not checked here."""
    return schedule_from_json(read_json(path), os.fspath(path))


def save_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Write a ``weft.schedule/1`` file, whole or not at all. Raises ``OSError``."""
    write_atomically(path, _schedule_text(schedule) + "\n")


def _schedule_text(schedule: Schedule) -> str:
    """The text of ``json.dumps`` for :func:`schedule_to_json`, without an object for each operation."""
    operations = schedule.operations
    kinds = {kind for column in zip(*operations, strict=True) for kind in set(map(type, column))}
    if not operations or not kinds <= {int, float} or not all(
            math.isfinite(start) and math.isfinite(end) for _, _, start, end in operations):
        return json.dumps(schedule_to_json(schedule), allow_nan=False)
    if schedule.rounds is not None:
        return json.dumps(schedule_to_json(schedule), allow_nan=False)
    value = schedule_to_json(schedule, operations=False)
    fields = [f"{json.dumps(key)}: {json.dumps(field, allow_nan=False)}" for key, field in value.items()]
    heads = [f'{{"block": {json.dumps(block.name)}, "micro_batch": ' for block in schedule.problem.blocks]
    listed = ", ".join([f'{heads[block]}{m}, "start": {start!r}, "end": {end!r}}}'
                        for block, m, start, end in operations])
    fields[list(value).index("operations")] = f'"operations": [{listed}]'
    return f"{{{', '.join(fields)}}}"


def schedule_to_json(schedule: Schedule, *, operations: bool = True) -> dict[str, Any]:
    """The ``weft.schedule/1`` object of ``schedule``; its list of operations is empty unless ``operations`` is set.
    """
    repetend, rounds = schedule.repetend, schedule.rounds
    return {
        "format": SCHEDULE_FORMAT,
        "problem": problem_to_json(schedule.problem if rounds is None else rounds.origin),
        **({"choices": dict(schedule.choices)} if schedule.choices else {}),
        "micro_batches": schedule.micro_batches if rounds is None else rounds.run.to_json(),
        **({} if rounds is None or rounds.run.rounds == _most_rounds(rounds) else {"rounds": rounds.run.rounds}),
        "operations": list(_operations_to_json(schedule)) if operations else [],
        "makespan": schedule.makespan,
        "makespan_bound": schedule.makespan_bound,
        "period": schedule.period,
        "period_bound": schedule.period_bound,
        "repetend": None if repetend is None else {"first": repetend.first, "count": repetend.count,
                                                   "micro_batches": repetend.micro_batches},
        "peak_memory": list(schedule.peak_memory),
        "status": schedule.status,
        "solver": dict(schedule.solver),
    }


def _most_rounds(rounds: Rounds) -> int:
    """The number of rounds that a reader assumes if the file states none."""
    return Run.of(rounds.origin, rounds.run.to_json()).rounds


def _operations_to_json(schedule: Schedule) -> Iterator[dict[str, Any]]:
    rounds = schedule.rounds
    names = [block.name for block in (schedule.problem if rounds is None else rounds.origin).blocks]
    for block, m, start, end in schedule.operations:
        i, number = (block, m) if rounds is None else rounds.apart(block, m)
        yield {"block": names[i], "micro_batch": number, "start": start, "end": end}


def schedule_from_json(value: Any, where: str = "schedule") -> Schedule:
    """The schedule of a ``weft.schedule/1`` object; ``where`` (a file name) leads every error message.

    The truth of its statements is not checked here: :mod:`weft.solver.judge` judges the operations,
    :mod:`weft.solver.judge.claims` the fields that state something about them.
    """
    entry = Entry(value, where)
    require_format(entry, SCHEDULE_FORMAT)
    entry.allow("format", "problem", "choices", "micro_batches", "rounds", "operations", "makespan", "makespan_bound",
                "period", "period_bound", "repetend", "peak_memory", "status", "solver")
    # With rounds, equal micro-batches are distinguished too.
    problem = problem_from_json(entry.get("problem"), f"{where}: problem", jobs=entry.has("rounds"))
    solver = check_provenance(entry.get("solver"), len(problem.devices), f"{where}: solver")
    _check_derived_fields(entry, len(problem.devices))
    listed = list(entry.list("operations"))
    rounds = None if problem.is_plain and not entry.has("rounds") else rounds_from_json(entry, problem, len(listed))
    with naming(f"{where}: problem"):
        plain = problem if rounds is None else rounds.problem
    return Schedule(
        problem=plain,
        micro_batches=_micro_batches(entry, len(listed)) if rounds is None else rounds.run.rounds,
        operations=tuple(_operation(item, plain, rounds) for item in listed),
        makespan_bound=entry.number("makespan_bound"),
        period=_positive(entry, "period"),
        period_bound=None if entry.get("period_bound") is None else entry.number("period_bound"),
        repetend=None if entry.get("repetend") is None else _repetend(entry.child("repetend")),
        solver=solver,
        choices=_choices(entry),
        rounds=rounds,
    )


def _choices(entry: Entry) -> dict[str, str]:
    if not entry.has("choices"):
        return {}
    taken = entry.child("choices")
    with naming(taken.where):
        for choice in taken.value:
            require_name(taken.text(choice), f"the option of {choice!r:.60},")
    return dict(taken.value)


def rounds_from_json(entry: Entry, problem: Problem, operations: int) -> Rounds:
    """The rounds of ``problem`` by ``micro_batches`` in ``entry``, in a file with ``operations`` operations. Raises
    :class:`FormatError`."""
    for choice, options in problem.choices.items():
        raise FormatError(f"{entry.where}: problem: the choice {choice!r} is open ({', '.join(map(repr, options))}), "
                          "and a schedule is of what one option of each makes: leave out choices and when, and what "
                          "does not exist under the options taken")
    counted = entry.get("micro_batches")
    if isinstance(counted, dict):
        counted = {job: _counted(value, f"{entry.where}: micro_batches: {job}") for job, value in counted.items()}
        most = max((value for value in counted.values() if isinstance(value, int)), default=0)
    else:
        counted = _counted(counted, f"{entry.where}: micro_batches")
        most = counted if isinstance(counted, int) else 0
    if most > max(operations, _LOST):
        raise FormatError(f"{entry.where}: micro_batches is {most}, but there are {operations} operations; every "
                          "micro-batch has one of each block")
    with naming(entry.where):
        run = Run.of(problem, counted)
        if not entry.has("rounds"):
            return Rounds(problem, run)
        given = entry.count("rounds", minimum=1)
        if run.rounds % given:
            raise FormatError(f"{entry.where}: rounds is {given}, but what runs makes {run.rounds} equal rounds at "
                              f"most: give a divisor of that, or leave it out")
        return Rounds(problem, replace(run, rounds=given))


def _counted(value: Any, where: str) -> int | list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return value
    raise FormatError(f"{where} is {show(value)}, it must be a whole number of at least 1, or a list with the class of "
                      "each micro-batch")


def _micro_batches(entry: Entry, operations: int) -> int:
    """A small number of missing operations is reported one by one; no tables are allocated for a billion."""
    count = entry.count("micro_batches", minimum=1)
    if count > max(operations, _LOST):
        raise FormatError(f"{entry.where}: micro_batches is {count}, but there are {operations} operations; every "
                          "micro-batch has one of each block")
    return count


def _positive(entry: Entry, field: str) -> Number | None:
    value = None if entry.get(field) is None else entry.number(field)
    if value is not None and value <= 0:
        raise FormatError(f"{entry.where}: {field} is {show(value)}, it must be greater than 0")
    return value


def _operation(entry: Entry, problem: Problem, rounds: Rounds | None) -> Operation:
    entry.allow("block", "micro_batch", "start", "end")
    name, m = entry.text("block"), entry.count("micro_batch")
    known = problem.index if rounds is None else rounds.origin.index
    if name not in known:
        raise FormatError(f"{entry.where}: block: there is no block named {named(name)}{near(name, known)}")
    block, number_ = (known[name], m) if rounds is None else rounds.joined(known[name], m)
    return Operation(block, number_, entry.number("start"), entry.number("end"))


def _repetend(entry: Entry) -> Repetend:
    entry.allow("first", "count", "micro_batches")
    return Repetend(entry.count("first"), entry.count("count", minimum=1), entry.count("micro_batches", minimum=1))


def _check_derived_fields(entry: Entry, devices: int) -> None:
    entry.number("makespan")
    entry.text("status")
    peaks = entry.get("peak_memory")
    if not isinstance(peaks, list) or len(peaks) != devices:
        raise FormatError(f"{entry.where}: peak_memory must list one number for each of the {devices} devices")
    for device, peak in enumerate(peaks):
        number(peak, f"{entry.where}: peak_memory[{device}]")
