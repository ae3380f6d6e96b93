"""Known schedules of runs whose micro-batches differ, or that are of several jobs.

A known schedule is for equal micro-batches. For a run with different ones it is made for *stand-ins*, plain problems of
as many equal micro-batches, and its orders are those of the run: positions do not depend on times. The times are the
run's own. Stand-ins have, block by block, the mean time over the run's micro-batches, and the amounts of the class that
takes most (if that fits, the run fits), or of a class in the middle. Of several the best that fits is kept.

If there are several jobs, each is ordered alone, and the jobs' orders are merged by the share of its own time that each
operation has behind it; no operation comes before those it waits for, as it does not in its own job.

DynaPipe, streams and list scheduling use the micro-batches themselves, and are made for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from weft.solver.baselines import BASELINES, NotApplicable, dynapipe, steady_period
from weft.solver.baselines.lib.amounts import Amounts
from weft.solver.baselines.lib.base import Row
from weft.solver.baselines.rivals.round_list import RoundList
from weft.solver.control.clock import checkpoint
from weft.solver.judge.validate import validate, violations
from weft.solver.problem import Block, Number, Problem
from weft.solver.problem.rounds import Rounds
from weft.solver.schedule import RELATIVE_TOLERANCE, Schedule
from weft.solver.timing import DeadlockError, Orders, time_orders


def known_on_rounds(rounds: Rounds) -> dict[str, Schedule]:
    """The known schedules that can run on ``rounds``, by name, in their order; whether they fit the devices'
    memory is for the judge to say."""
    found = {}
    for name in BASELINES:
        checkpoint()
        try:
            found[name] = baseline_on_rounds(name, rounds)
        except NotApplicable:
            continue
    return found


def best_on_rounds(rounds: Rounds) -> Schedule | None:
    """The shortest known schedule that fits, as the start of a search; ``None`` if none does."""
    fitting = [schedule for schedule in known_on_rounds(rounds).values() if not violations(schedule, limit=1)]
    return min(fitting, key=lambda schedule: schedule.makespan, default=None)


def baseline_on_rounds(name: str, rounds: Rounds) -> Schedule:
    """The schedule of baseline ``name`` (a key of ``BASELINES``) for the run of ``rounds``, checked by the judge except
    for the devices' memory.

    Raises :class:`~weft.solver.baselines.lib.base.NotApplicable` if the baseline cannot run these blocks with so many
    micro-batches, and ``ValueError`` for an unknown name.
    """
    if name not in BASELINES:
        raise ValueError(f"there is no baseline {name!r}, there are {', '.join(BASELINES)}")
    found: list[Schedule] = []
    refused = ""
    for maker in _makers(name, rounds):
        checkpoint()
        try:
            orders = maker()
            if orders is not None:
                found.append(_timed(name, rounds, orders))
        except NotApplicable as error:
            refused = refused or str(error)
        except DeadlockError:
            continue
    if not found:
        raise NotApplicable(refused or "memory leaves it stuck")
    return _best(found)


def _timed(name: str, rounds: Rounds, orders: Orders) -> Schedule:
    problem, count = rounds.problem, rounds.run.rounds
    operations = time_orders(problem, count, orders)
    schedule = Schedule(problem, count, operations, makespan_bound=0.0, solver={"name": name}, rounds=rounds,
                        period=steady_period(problem, count, operations))
    validate(schedule, capacities=False)
    return schedule


def _best(schedules: Iterable[Schedule]) -> Schedule:
    """The first of those that fit and take least time, or take least time if none fits."""
    best: Schedule | None = None
    fits = False
    for schedule in schedules:
        fine = not violations(schedule, limit=1)
        if best is None or (fine and not fits) or (
                fine == fits and schedule.makespan < best.makespan * (1 - RELATIVE_TOLERANCE)):
            best, fits = schedule, fine
    assert best is not None
    return best


def _makers(name: str, rounds: Rounds) -> Iterator[Callable[[], Orders | None]]:
    """The ways to make it; the first is the baseline itself if micro-batches are equal, or it is made for any."""
    if _is_plain(rounds) or name == "stream":
        yield partial(BASELINES[name].orders, rounds.problem, rounds.run.rounds)
        return
    if name == "dynapipe" and len(rounds.run.classes) == 1:
        yield from _dynapipe(rounds)
        return
    if name == "greedy":
        yield partial(_listed, rounds)
    jobs = {job: stand_ins(rounds, job) for job in rounds.run.classes}
    for number in range(max(map(len, jobs.values()))):
        chosen = {job: found[min(number, len(found) - 1)] for job, found in jobs.items()}
        yield partial(_merged, name, rounds, chosen)


def _is_plain(rounds: Rounds) -> bool:
    return len(rounds.run.classes) == 1 and all(len(rounds.run.per_round(job)) == 1 for job in rounds.run.classes)


def _listed(rounds: Rounds) -> list[Row] | None:
    made = RoundList(rounds).best()
    return None if made is None else made[1]


def _dynapipe(rounds: Rounds) -> Iterator[Callable[[], Orders | None]]:
    """Its cycles of these very micro-batches, with each of the limits."""
    amounts = Amounts.of(rounds.problem)
    (job, classes), = rounds.run.classes.items()
    any_one = _of_job(rounds.origin, job, lambda block: block.of_class(classes[0]).duration, classes[0])

    def of_each(device: int, block: int, micro_batch: int) -> tuple[int, int]:
        copy, _ = rounds.joined(block, micro_batch)
        return amounts.take[device][copy], amounts.change[device][copy]

    def made(limit: int) -> Orders | None:
        rows = dynapipe.orders_of_run(any_one, amounts.room, of_each, len(classes), limit)
        return None if rows is None else _joined(rounds, rows)

    for limit in dynapipe.limits_in_flight(len(any_one.devices), len(classes)):
        yield partial(made, limit)


def _joined(rounds: Rounds, rows: Iterable[Row]) -> list[Row]:
    """Orders of the origin's blocks as those of the plain problem in rounds."""
    return [[rounds.joined(block, m) for block, m in row] for row in rows]


def _merged(name: str, rounds: Rounds, chosen: Mapping[str | None, Problem]) -> Orders:
    """The orders of each job's stand-in, merged if there are several."""
    numbers = {job: [i for i, block in enumerate(rounds.origin.blocks) if block.job == job] for job in chosen}
    if len(chosen) == 1:
        (job, problem), = chosen.items()
        return _joined(rounds, [list(row) for row in
                                BASELINES[name].orders(problem, len(rounds.run.classes[job]))])
    keyed: list[list[tuple[float, int, tuple[int, int]]]] = [[] for _ in rounds.origin.devices]
    for job, problem in chosen.items():
        count = len(rounds.run.classes[job])
        operations = time_orders(problem, count, BASELINES[name].orders(problem, count))
        whole = max(operation.end for operation in operations)
        for place, operation in enumerate(sorted(operations, key=lambda entry: (entry.start, entry.end))):
            block = numbers[job][operation.block]
            for device in rounds.origin.blocks[block].devices:
                keyed[device].append((operation.start / whole, place, (block, operation.micro_batch)))
    return _joined(rounds, [[entry for _, _, entry in sorted(row)] for row in keyed])


# -- stand-ins ----------------------------------------------------------------------------------------------------


def stand_ins(rounds: Rounds, job: str | None) -> list[Problem]:
    """Plain problems of one micro-batch of ``job``: mean times over the run, and the amounts of one of its classes."""
    run = rounds.run
    classes = run.classes[job]

    def mean(block: Block) -> Number:
        values = [block.of_class(name).duration for name in classes]
        if len(set(values)) == 1:
            return values[0]
        return float(f"{sum(values) / len(values):.9g}")

    ranked = sorted(classes, key=lambda name: _taken(rounds.origin, job, name))
    likely = dict.fromkeys([ranked[-1], ranked[len(ranked) // 2], ranked[0]])
    return [_of_job(rounds.origin, job, mean, name) for name in likely]


def _taken(problem: Problem, job: str | None, name: str | None) -> float:
    """The memory that a micro-batch takes on all devices, workspace included."""
    return sum(max(amount, 0) for block in problem.blocks if block.job == job
               for plain in [block.of_class(name)] for amount in (*plain.memory, *plain.workspace))


def _of_job(problem: Problem, job: str | None, duration: Callable[[Block], Number], name: str | None) -> Problem:
    """The blocks of ``job`` of class ``name``, with other durations."""
    own = (block for block in problem.blocks if block.job == job)
    return replace(problem, model=None, blocks=tuple(
        replace(block.of_class(name), duration=duration(block)) for block in own))

