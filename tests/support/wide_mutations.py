"""Single mutations of valid schedules with choices, jobs, classes and lanes, each of which breaks a rule by its making.

The schedules are those of :mod:`tests.support.wide_schedules`: times are whole, no block is shorter than 1, and what
starts after 0 starts as soon as something lets it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from tests.support.wide_schedules import Drawn, held
from weft.solver import Operation, Schedule
from weft.solver.io.schedule_files import schedule_from_json, schedule_to_json
from weft.solver.problem import Block, Dependency, Problem, changed
from weft.solver.problem.rounds import Rounds

#: What it makes of a valid schedule; None where there is nothing of the kind to break. Raises ``ValueError`` where even
#: the file of it is refused.
Mutation: TypeAlias = Callable[[Drawn, random.Random], Drawn | None]


def _mutated(drawn: Drawn, schedule: Schedule) -> Drawn:
    return replace(drawn, schedule=schedule)


def _pick(draw: random.Random, found: list[Any]) -> Any:
    return draw.choice(found) if found else None


def _with(schedule: Schedule, old: Operation, *new: Operation) -> Schedule:
    return schedule.with_operations([*(o for o in schedule.operations if o is not old), *new])


def _at(operation: Operation, start: float) -> Operation:
    return operation._replace(start=start, end=start + operation.end - operation.start)


# -- operations ----------------------------------------------------------------------------------------------------


def earlier(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """By half a unit, which changes no order: what let it start comes after it."""
    chosen = _pick(draw, [o for o in drawn.schedule.operations if o.start > 0])
    return None if chosen is None else _mutated(drawn, _with(drawn.schedule, chosen, _at(chosen, chosen.start - 0.5)))


def missing(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """An operation is gone."""
    return _mutated(drawn, _with(drawn.schedule, draw.choice(drawn.schedule.operations)))


def twice(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """An operation is there again after the end."""
    schedule = drawn.schedule
    chosen = draw.choice(schedule.operations)
    return _mutated(drawn, _with(schedule, chosen, chosen, _at(chosen, schedule.makespan)))


def overlap(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """Two operations of one device or lane start together."""
    rows = [row for row in drawn.schedule.device_orders if len(row) > 1]
    if not rows:
        return None
    one, other = draw.sample(draw.choice(rows), 2)
    return _mutated(drawn, _with(drawn.schedule, one, _at(one, other.start)))


def lane_overlap(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """The same on a lane."""
    problem = drawn.schedule.problem
    rows = [row for device, row in zip(problem.devices, drawn.schedule.device_orders, strict=True)
            if device.lane_of is not None and len(row) > 1]
    if not rows:
        return None
    one, other = draw.sample(draw.choice(rows), 2)
    return _mutated(drawn, _with(drawn.schedule, one, _at(one, other.start)))


def swapped(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """A micro-batch of a block runs when the next one did, and the next one before it."""
    _, value = _file(drawn)
    at = {(o["block"], o["micro_batch"]): o for o in value["operations"]}
    chosen = _pick(draw, [(o, at[name, m + 1]) for (name, m), o in at.items() if (name, m + 1) in at])
    if chosen is None:
        return None
    one, other = chosen
    lasts = [o["end"] - o["start"] for o in chosen]
    one["start"], other["start"] = other["start"], one["start"]
    one["end"], other["end"] = one["start"] + lasts[0], other["start"] + lasts[1]
    return _mutated(drawn, schedule_from_json(value))


def stretched(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """An operation takes longer than its block."""
    chosen = draw.choice(drawn.schedule.operations)
    return _mutated(drawn, _with(drawn.schedule, chosen, chosen._replace(end=chosen.end + 0.5)))


# -- jobs and classes ----------------------------------------------------------------------------------------------


def _file(drawn: Drawn) -> tuple[Problem | None, dict[str, Any]]:
    rounds = drawn.schedule.rounds
    return None if rounds is None else rounds.origin, schedule_to_json(drawn.schedule)


def counted(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """A job has one micro-batch more or less than there are operations for."""
    _, value = _file(drawn)
    counts = value["micro_batches"]
    job = draw.choice(list(counts)) if isinstance(counts, dict) else None
    count = counts[job] if isinstance(counts, dict) else counts
    more = draw.random() < 0.5
    if isinstance(count, int):
        changed: Any = count + 1 if more else count - 1
    else:
        changed = [*count, count[-1]] if more else count[:-1]
    value["micro_batches"] = {**counts, job: changed} if isinstance(counts, dict) else changed
    return _mutated(drawn, schedule_from_json(value))


def given_to_another_job(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """One micro-batch less of a job, one more of another."""
    _, value = _file(drawn)
    counts = value["micro_batches"]
    if not isinstance(counts, dict) or len(counts) < 2:
        return None
    one, other = draw.sample(list(counts), 2)
    for job, by in ((one, -1), (other, 1)):
        had = counts[job]
        counts[job] = had + by if isinstance(had, int) else [*had, had[-1]] if by > 0 else had[:-1]
    return _mutated(drawn, schedule_from_json(value))


def of_another_class(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """A micro-batch is of a class for which some block lasts shorter or longer."""
    wide, value = _file(drawn)
    found = []
    for block in wide.blocks if wide is not None else ():
        counts = value["micro_batches"]
        row = counts[block.job] if isinstance(counts, dict) else counts
        if (lasts := block.by_class.get("duration")) and isinstance(row, list):
            found += [(row, m, name) for m, of in enumerate(row) for name in lasts if lasts[name] != lasts[of]]
    chosen = _pick(draw, found)
    if chosen is None:
        return None
    row, m, name = chosen
    row[m] = name
    return _mutated(drawn, schedule_from_json(value))


def swapped_durations(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """Two classes of one block have each other's duration, and a micro-batch of one of them runs."""
    rounds = drawn.schedule.rounds
    if rounds is None:
        return None
    chosen = _pick(draw, [block for block in rounds.origin.blocks if (lasts := block.by_class.get("duration"))
                          and {"short", "long"} & set(rounds.run.classes[block.job])
                          and lasts["short"] != lasts["long"]])
    if chosen is None:
        return None
    short, long = (chosen.by_class["duration"][name] for name in ("short", "long"))
    by_class = {**chosen.by_class, "duration": {"short": long, "long": short}}
    return _in(drawn, chosen, replace(chosen, duration=long, by_class=by_class), draw)


def longer_transfer(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """A transfer that a block starts right after takes one unit more, of every class."""
    rounds = drawn.schedule.rounds
    if rounds is None:
        return None
    at = {rounds.apart(o.block, o.micro_batch): o for o in drawn.schedule.operations}
    found = []
    for i, block in enumerate(rounds.origin.blocks):
        classes = rounds.run.classes[block.job]
        for k, wait in enumerate(block.after):
            for m in range(wait.distance, len(classes)):
                lag = wait.of_class(classes[m - wait.distance]).lag
                before = at[rounds.origin.index[wait.block], m - wait.distance]
                if wait.link is None and at[i, m].start == before.end + lag:
                    found.append((block, k, wait))
    chosen = _pick(draw, found)
    if chosen is None:
        return None
    block, k, wait = chosen
    more = replace(wait, **changed(wait, lag=lambda lag: lag + 1))
    after = (*block.after[:k], more, *block.after[k + 1:])
    return _in(drawn, block, replace(block, after=after), draw)


def _in(drawn: Drawn, old: Block, new: Block, draw: random.Random) -> Drawn:
    """With another block in the problem with classes, and either in the problem of rounds or not."""
    rounds = drawn.schedule.rounds
    assert rounds is not None
    blocks = tuple(new if block is old else block for block in rounds.origin.blocks)
    changed = Rounds(replace(rounds.origin, blocks=blocks), rounds.run)
    problem = changed.problem if draw.random() < 0.5 else drawn.schedule.problem
    return _mutated(drawn, replace(drawn.schedule, rounds=changed, problem=problem))


def tampered(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """The problem of rounds alone is changed: it lets more pass."""
    schedule = drawn.schedule
    if schedule.rounds is None:
        return None
    blocks = list(schedule.problem.blocks)
    i = draw.randrange(len(blocks))
    block: Block = blocks[i]
    kind = draw.choice(["workspace", "wait", "memory", "more"])
    if kind == "wait" and block.after:
        blocks[i] = replace(block, after=block.after[1:])
    elif kind == "more":
        blocks[i] = replace(block, after=(*block.after, Dependency(block.name, distance=7)))
    elif kind == "memory":
        blocks[i] = replace(block, memory=tuple(amount - 1 for amount in block.memory))
    else:
        blocks[i] = replace(block, workspace=tuple(amount + 1 for amount in block.workspace))
    return _mutated(drawn, replace(schedule, problem=replace(schedule.problem, blocks=tuple(blocks))))


# -- memory --------------------------------------------------------------------------------------------------------


def less_room(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """A device has one unit less than the most that it and its lanes hold."""
    schedule = drawn.schedule
    peaks = {d: max(level for _, level in held(schedule, d)) for d in range(len(schedule.problem.devices))}
    device = _pick(draw, [d for d, peak in peaks.items() if peak > 0])
    if device is None:
        return None
    devices = tuple(replace(one, memory=peaks[d] - 1) if d == device else one
                    for d, one in enumerate(schedule.problem.devices))
    if schedule.rounds is None:
        return _mutated(drawn, replace(schedule, problem=replace(schedule.problem, devices=devices)))
    rounds = Rounds(replace(schedule.rounds.origin, devices=devices), schedule.rounds.run)
    return _mutated(drawn, replace(schedule, rounds=rounds, problem=rounds.problem))


# -- choices -------------------------------------------------------------------------------------------------------


def flipped(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """Another option is said to be taken, under which other blocks exist or cost something else."""
    choices = drawn.schedule.choices
    found = []
    for choice, options in drawn.whole.choices.items():
        for option in options:
            other = {**choices, choice: option}
            if _existing(drawn.whole, other) != _existing(drawn.whole, choices):
                found.append(other)
    other = _pick(draw, found)
    return None if other is None else _mutated(drawn, replace(drawn.schedule, choices=other))


def not_taken(drawn: Drawn, draw: random.Random) -> Drawn | None:
    """An option is left out, is none, or is of a choice that there is not."""
    choices = dict(drawn.schedule.choices)
    if draw.random() < 0.4 or not choices:
        return _mutated(drawn, replace(drawn.schedule, choices={**choices, "none such": "x"}))
    choice = draw.choice(list(choices))
    if draw.random() < 0.5:
        del choices[choice]
    else:
        choices[choice] = "none such"
    return _mutated(drawn, replace(drawn.schedule, choices=choices))


def _existing(whole: Problem, taken: Mapping[str, str]) -> list[str]:
    """All that exists under ``taken``, as text that does not hang on the order of waits."""
    blocks = [block for block in whole.blocks if block.when.items() <= taken.items()]
    names = {block.name for block in blocks}

    def text(wait: Dependency) -> str:
        return f"{wait.block} {wait.lag} {wait.by_class} {wait.link} {wait.distance}"

    return sorted(f"{block.name} {block.devices} {block.duration} {block.memory} {block.workspace} {block.by_class} "
                  + str(sorted(text(wait) for wait in block.after
                               if wait.block in names and wait.when.items() <= taken.items())) for block in blocks)


MUTATIONS: tuple[Mutation, ...] = (
    earlier, missing, twice, overlap, lane_overlap, swapped, stretched, counted, given_to_another_job, of_another_class,
    swapped_durations, longer_transfer, tampered, less_room, flipped, not_taken)
