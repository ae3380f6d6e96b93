"""A schedule in rounds, judged as one of the problem that it is written of: micro-batches of jobs, each of its class.

A schedule with jobs or classes is written down as one of a plain problem whose micro-batches are rounds
(:mod:`weft.solver.problem.rounds`). The judge compares it with the problem of jobs and classes itself. A round has p
micro-batches of a job, so copy c of a block in round r stands for its micro-batch r p + c. The name of a block of the
plain problem states which copy it is (the block's own name, and from two a round on a mark of stars and the copy's
number). From there on rounds play no part. Every micro-batch's block becomes a block of its own, with the costs of its
class; it waits for the micro-batches that its waits name, each transfer with the length for the class of its source.
The rules are those of :mod:`weft.solver.judge.validate`:

- every block of every micro-batch 0 .. N-1 of its job occurs once and lasts as long as its class requires;
- devices, lanes and links carry one at a time; memory suffices with the amounts of the classes, added exactly;
- micro-batch m of a block starts before m + 1.

Whether the plain problem is that of the rounds is checked too: bounds and periods are stated of it.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from weft.solver.control.clock import checked
from weft.solver.judge.case import JudgedCase, sound_operations
from weft.solver.judge.choice_rules import block_of, lag_of, shown, unknown_class
from weft.solver.judge.order_rules import check_all
from weft.solver.problem import Block, Dependency, Number, Problem
from weft.solver.problem.rounds import Run
from weft.solver.schedule import Operation, Schedule

#: The suffix of a block's name that says which copy a block of the plain problem is.
_COPY = re.compile(r"\*+(\d+)")


def run_violations(schedule: Schedule, *, capacities: bool = True, in_turn: bool = True) -> Iterator[str]:
    """The faults of ``schedule``, which has rounds, in terms of its jobs, classes and micro-batches."""
    assert schedule.rounds is not None
    origin, run = schedule.rounds.origin, schedule.rounds.run
    faults = [*_check_run(schedule, origin, run)] or [*_check_plain(schedule.problem, origin, run)]
    if faults:  # the meaning of operations is not certain
        yield from faults
        return
    yield from _check_operations(schedule, origin, run)
    case = _RunCase.of_run(schedule, origin, run)
    yield from check_all(case, capacities=capacities, in_turn=in_turn)


def run_operations(schedule: Schedule) -> list[tuple[int, int, float, float]]:
    """``(block, micro-batch of its job, start, end)`` of every operation of ``schedule``, which has rounds; blocks are
    those of the origin."""
    assert schedule.rounds is not None
    origin, run = schedule.rounds.origin, schedule.rounds.run
    meaning = _meanings(schedule.problem, origin, run)
    return [(meaning[block][0], m * _share(run, origin.blocks[meaning[block][0]]) + meaning[block][1], start, end)
            for block, m, start, end in checked(schedule.operations, 4096)]


# -- what is claimed of the plain problem ------------------------------------------------------------------------


def _share(run: Run, block: Block) -> int:
    """Micro-batches of the block's job in a round."""
    return len(run.classes[block.job]) // run.rounds


def _check_run(schedule: Schedule, origin: Problem, run: Run) -> Iterator[str]:
    for choice in origin.choices:
        yield f"the choice {choice!r} is open, a schedule is one of a problem with all choices made"
    if schedule.micro_batches != run.rounds:
        yield f"micro_batches is {schedule.micro_batches}, and the run has {run.rounds} rounds"
    for block in origin.blocks:
        if block.job not in run.classes:
            yield f"block {block.name!r}: no micro-batches are counted of the job {block.job!r}"
        elif not run.classes[block.job] or run.rounds < 1 or len(run.classes[block.job]) % run.rounds:
            yield (f"block {block.name!r}: {len(run.classes[block.job])} micro-batches of its job do not make "
                   f"{run.rounds} rounds of as many each")
        elif (unknown := unknown_class(block, dict.fromkeys(run.classes[block.job]))) is not None:
            yield f"block {block.name!r}: {unknown}"


def _meanings(problem: Problem, origin: Problem, run: Run) -> dict[int, tuple[int, int]]:
    """Per block of the plain problem, the origin's block and the copy that its name states."""
    singles = {block.name: i for i, block in enumerate(origin.blocks) if _share(run, block) == 1}
    several = {block.name: i for i, block in enumerate(origin.blocks) if _share(run, block) > 1}
    found: dict[int, tuple[int, int]] = {}
    for number, plain in enumerate(problem.blocks):
        if plain.name in singles:
            found[number] = singles[plain.name], 0
            continue
        for place in range(len(plain.name) - 1, 0, -1):  # a name may end in stars itself: the shortest mark counts
            copy = _COPY.fullmatch(plain.name, place)
            if copy is not None and plain.name[:place] in several and _is_mark(plain.name[place:copy.start(1)], origin):
                found[number] = several[plain.name[:place]], int(copy[1])
                break
    return found


def _is_mark(mark: str, origin: Problem) -> bool:
    return not any(mark in block.name for block in origin.blocks)


def _check_plain(problem: Problem, origin: Problem, run: Run) -> Iterator[str]:
    """Whether ``problem`` is ``origin`` in rounds: its blocks are the copies, with the waits of the originals."""
    if (problem.devices, problem.links, problem.time_unit, problem.memory_unit) != (
            origin.devices, origin.links, origin.time_unit, origin.memory_unit):
        yield "the problem of the rounds has other devices, links or units than the problem with jobs and classes"
        return
    meaning = _meanings(problem, origin, run)
    for number, plain in enumerate(problem.blocks):
        if number not in meaning:
            yield f"the problem of the rounds: block {plain.name!r} is no copy of a block"
    times = Counter(meaning.values())
    for i, block in enumerate(origin.blocks):
        for c in range(_share(run, block)):
            if times.pop((i, c), 0) != 1:
                yield (f"the problem of the rounds: there must be one block for copy {c} of block {block.name!r}, as a "
                       f"round holds {_share(run, block)} micro-batches of its job")
    for i, c in times:
        yield (f"the problem of the rounds: there is a copy {c} of block {origin.blocks[i].name!r}, and a round holds "
               f"{_share(run, origin.blocks[i])} micro-batches of its job")
    if len(meaning) != len(problem.blocks) or times:
        return
    numbers = {place: number for number, place in meaning.items()}
    if len(numbers) == len(problem.blocks) == sum(_share(run, block) for block in origin.blocks):
        for number, place in meaning.items():
            yield from _check_copy(problem, number, origin, run, place, numbers)


def _check_copy(problem: Problem, number: int, origin: Problem, run: Run, place: tuple[int, int],
                numbers: Mapping[tuple[int, int], int]) -> Iterator[str]:
    plain, block, c = problem.blocks[number], origin.blocks[place[0]], place[1]
    share, row = _share(run, block), run.classes[block.job]
    of_name = {other.name: i for i, other in enumerate(origin.blocks)}
    expected = block_of(block, row[c], plain.name)
    for label in ("kind", "devices", "duration", "memory", "workspace"):
        if getattr(plain, label) != getattr(expected, label):
            yield (f"the problem of the rounds: block {plain.name!r} has the {label} {shown(getattr(plain, label))}, "
                   f"and what it stands for has {shown(getattr(expected, label))}")
    waits: Counter[tuple[int, int, Number, str | None]] = Counter()
    for wait in block.after:
        # A round late enough that the producer is a micro-batch of the run, if that is long enough.
        late = (wait.distance + 1) * share + c
        source = late - wait.distance
        waits[numbers[of_name[wait.block], source % share], late // share - source // share,
              lag_of(wait, row[source % share]), wait.link] += 1
    if share > 1:  # copies run in turn, the first after the last of the round before
        waits[numbers[place[0], (c - 1) % share], int(c == 0), 0, None] += 1
    if waits != Counter((problem.index[wait.block], wait.distance, wait.lag, wait.link) for wait in plain.after):
        yield f"the problem of the rounds: block {plain.name!r} waits for other blocks than what it stands for does"


# -- the operations themselves -----------------------------------------------------------------------------------


def _check_operations(schedule: Schedule, origin: Problem, run: Run) -> Iterator[str]:
    """The operations that are not well-formed."""
    meaning = _meanings(schedule.problem, origin, run)
    for block, m, start, end in checked(schedule.operations, 4096):
        if not isinstance(block, int) or block not in meaning:
            yield f"an operation of round {m} names block number {block!r}, there are 0 to {len(meaning) - 1}"
            continue
        i, c = meaning[block]
        row = run.classes[origin.blocks[i].job]
        if not isinstance(m, int) or not 0 <= m < run.rounds:
            number = m * _share(run, origin.blocks[i]) + c if isinstance(m, int) else m
            yield (f"block {origin.blocks[i].name!r} runs for micro-batch {number!r}{_of(origin.blocks[i])}, there are "
                   f"0 to {len(row) - 1}")
        elif not (math.isfinite(start) and math.isfinite(end)):
            number = m * _share(run, origin.blocks[i]) + c
            yield (f"block {origin.blocks[i].name!r} of micro-batch {number}{_of(origin.blocks[i])} runs from {start} "
                   f"to {end}, times are finite")


def _of(block: Block) -> str:
    return "" if block.job is None else f" of job {block.job!r}"


@dataclass(frozen=True)
class _RunCase(JudgedCase):
    """A case of one micro-batch whose blocks are the blocks of all micro-batches of all jobs."""

    origin: Problem
    #: Per block of the case, which block of the origin it is, of which micro-batch of its job.
    numbers: list[tuple[int, int]]

    @classmethod
    def of_run(cls, schedule: Schedule, origin: Problem, run: Run) -> _RunCase:
        """The case of ``schedule``, with its well-formed operations."""
        numbers = [(i, m) for i, block in enumerate(origin.blocks) for m in range(len(run.classes[block.job]))]
        blocks = tuple(_blocks(origin, run))
        problem = Problem(origin.name, origin.devices, blocks, origin.links, origin.time_unit, origin.memory_unit)
        number_of = {place: number for number, place in enumerate(numbers)}
        sound = schedule.with_operations([*sound_operations(schedule)])
        return cls.made(problem, 1, (Operation(number_of[i, m], 0, start, end)
                                     for i, m, start, end in run_operations(sound)), origin, numbers)

    def waits(self) -> Iterator[tuple[int, int, Dependency]]:
        """The waits; places are those of the origin's waits."""
        places = {(i, k): place for place, (i, k) in enumerate(
            (i, k) for i, block in enumerate(self.origin.blocks) for k in range(len(block.after)))}
        for consumer, (i, m) in enumerate(self.numbers):
            begun = [k for k, wait in enumerate(self.origin.blocks[i].after) if wait.distance <= m]
            for k, dependency in zip(begun, self.problem.blocks[consumer].after, strict=True):
                yield places[i, k], consumer, dependency

    def rows_of_blocks(self) -> Iterator[tuple[int, int, Mapping[int, Operation]]]:
        """Per block of the origin: its first of this case, and its micro-batches."""
        found: dict[int, tuple[int, dict[int, Operation]]] = {}
        counts = Counter(i for i, _ in self.numbers)
        for block, ((i, m), present) in enumerate(zip(self.numbers, self.table, strict=True)):
            row = found.setdefault(i, (block, {}))[1]
            if present:
                row[m] = present[0]
        for i, (block, row) in found.items():
            yield block, counts[i], row

    def called(self, block: int, micro_batch: int) -> str:
        """The name by the origin's block, its micro-batch and job."""
        origin = self.origin.blocks[self.numbers[block][0]]
        return f"block {origin.name!r} of micro-batch {micro_batch}{_of(origin)}"

    def name(self, operation: Operation) -> str:
        """The name of ``operation`` in a sentence."""
        return self.called(operation.block, self.numbers[operation.block][1])


def _blocks(origin: Problem, run: Run) -> Iterator[Block]:
    """A block for every micro-batch of every block, in this order; a wait for a micro-batch before the first is
    dropped."""
    for i, block in enumerate(checked(origin.blocks, 16)):
        row = run.classes[block.job]
        of_name = {other.name: j for j, other in enumerate(origin.blocks)}
        costs = {class_: block_of(block, class_, "x") for class_ in dict.fromkeys(row)}
        for m, class_ in enumerate(row):
            waits = tuple(Dependency(f"{of_name[wait.block]}:{m - wait.distance}",
                                     lag_of(wait, row[m - wait.distance]), wait.link)
                          for wait in block.after if wait.distance <= m)
            yield replace(costs[class_], name=f"{i}:{m}", after=waits)
