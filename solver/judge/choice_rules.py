"""Whether a schedule is one of a problem with choices: is its problem the one that the options it states make?

A schedule contains the plain problem that its options make (or, with jobs or classes, the one that has no choice left),
so this check also needs the whole problem. The blocks and waits that exist under the options are derived here anew:

- exactly one option of each choice is taken;
- a block exists where every option in its ``when`` is taken, and so does a wait; a wait for a block that does not exist
  is void;
- every block that exists has the same costs as in the whole problem, on the same devices.

The costs of a block of a wide problem for one class of micro-batches: a part of the judge, with its own derivation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeAlias, TypeVar

from weft.solver.problem import Block, Device, Link, Number
from weft.solver.schedule import Schedule
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

_Wait: TypeAlias = tuple[str, Number, str | None, int]


def violations_of_choice(schedule: Schedule, whole: WideProblem, *, limit: int = 20) -> list[str]:
    """Why ``schedule`` is not a schedule of ``whole`` under its ``choices``: at most ``limit`` sentences, none if it is
    one. Whether it keeps the rules of its own problem is for :func:`weft.solver.judge.validate.violations`."""
    return list(islice(_violations(schedule, whole), limit))


def _violations(schedule: Schedule, whole: WideProblem) -> Iterator[str]:
    faults = list(_check_options(schedule.choices, whole))
    yield from faults
    if faults:
        return
    problem = schedule.problem if schedule.rounds is None else schedule.rounds.wide
    yield from _check_frame(problem.devices, whole.devices, "devices")
    yield from _check_frame(problem.links, whole.links, "links")
    if (problem.time_unit, problem.memory_unit) != (whole.time_unit, whole.memory_unit):
        yield (f"the schedule's problem is in {problem.time_unit} and {problem.memory_unit}, the whole problem in "
               f"{whole.time_unit} and {whole.memory_unit}")
    existing = _existing(whole, schedule.choices)
    if schedule.rounds is None:
        yield from _check_plain(schedule, existing)
    else:
        yield from _check_wide(schedule.rounds.wide, schedule.rounds.run.classes, existing)


def _existing(whole: WideProblem, taken: Mapping[str, str]) -> dict[str, WideBlock]:
    """The blocks that exist under the options ``taken``, by name, with the waits that exist and are not void."""
    blocks = [block for block in whole.blocks if _is_taken(block.when, taken)]
    names = {block.name for block in blocks}
    return {block.name: replace(block, after=tuple(wait for wait in block.after
                                                   if wait.block in names and _is_taken(wait.when, taken)))
            for block in blocks}


def _is_taken(when: Mapping[str, str], taken: Mapping[str, str]) -> bool:
    return all(taken[choice] == option for choice, option in when.items())


def _check_options(taken: Mapping[str, str], whole: WideProblem) -> Iterator[str]:
    for choice, options in whole.choices.items():
        if choice not in taken:
            yield f"choices: no option of {choice!r} is taken, it must be one of {', '.join(map(repr, options))}"
        elif taken[choice] not in options:
            yield (f"choices: {taken[choice]!r} is no option of {choice!r}, it must be one of "
                   f"{', '.join(map(repr, options))}")
    for choice in taken:
        if choice not in whole.choices:
            yield (f"choices: there is no choice named {choice!r}"
                   + (", there are " + ", ".join(map(repr, whole.choices)) if whole.choices else ""))


def _check_frame(stated: Sequence[Device | Link], whole: Sequence[Device | Link], what: str) -> Iterator[str]:
    if stated != whole:
        differing = [entry.name for entry in stated if entry not in whole] or [
            entry.name for entry in whole if entry not in stated]
        yield f"the schedule's problem has other {what} than the whole problem: {', '.join(map(repr, differing))}"


def _check_plain(schedule: Schedule, existing: Mapping[str, WideBlock]) -> Iterator[str]:
    """For a schedule of a plain problem: all blocks are of one job and one class."""
    jobs = dict.fromkeys(block.job for block in existing.values())
    if len(jobs) > 1:
        yield f"there are the jobs {', '.join(map(repr, jobs))}, and the schedule counts the micro-batches of one"
        return
    unknown = [f"block {block.name!r}: {text}" for block in existing.values()
               if (text := unknown_class(block, (None,))) is not None]
    if unknown:
        yield unknown[0]
        return
    yield from _check_names([block.name for block in schedule.problem.blocks], existing)
    for plain in schedule.problem.blocks:
        if plain.name in existing:
            waits = Counter((wait.block, wait.lag, wait.link, wait.distance) for wait in plain.after)
            yield from _check_block(plain, waits, existing[plain.name], None)


def _check_wide(problem: WideProblem, classes: Mapping[str | None, Sequence[str | None]],
                existing: Mapping[str, WideBlock]) -> Iterator[str]:
    """For a schedule of a problem with jobs or classes: the costs agree for every class with micro-batches in the
    run."""
    for choice in problem.choices:
        yield f"the choice {choice!r} is open in the schedule's problem"
    yield from _check_names([block.name for block in problem.blocks], existing)
    for block in problem.blocks:
        if block.name not in existing:
            continue
        whole = existing[block.name]
        if block.job != whole.job:
            yield f"block {block.name!r} is of the job {block.job!r}, in the whole problem of {whole.job!r}"
        elif block.job not in classes:
            yield f"block {block.name!r}: no micro-batches are counted of its job"
        else:
            yield from _check_classes(block, whole, tuple(dict.fromkeys(classes[block.job])))


def _check_classes(block: WideBlock, whole: WideBlock, classes: Sequence[str | None]) -> Iterator[str]:
    for one in (block, whole):
        if (unknown := unknown_class(one, classes)) is not None:
            yield f"block {block.name!r}: {unknown}"
            return
    for class_ in classes:
        yield from _check_block(block_of(block, class_, block.name), _waits(block, class_), whole, class_)


def _check_names(stated: Sequence[str], existing: Mapping[str, WideBlock]) -> Iterator[str]:
    for name in existing:
        if name not in stated:
            yield f"block {name!r} exists under the options taken, and the schedule's problem has none of that name"
    for name in stated:
        if name not in existing:
            yield f"the schedule's problem has a block {name!r}, which does not exist under the options taken"
    kept = [name for name in stated if name in existing]
    if kept != [name for name in existing if name in kept]:
        yield "the blocks of the schedule's problem stand in another order than those of the whole problem"


def _check_block(stated: Block, waits: Counter[_Wait], whole: WideBlock, class_: str | None) -> Iterator[str]:
    actual = block_of(whole, class_, whole.name)
    of_class = "" if class_ is None else f" of class {class_!r}"
    for label in ("kind", "devices", "duration", "memory", "workspace"):
        one, other = getattr(stated, label), getattr(actual, label)
        if one != other:
            yield (f"block {whole.name!r}{of_class}: {label} is {shown(one)}, and {shown(other)} under the options "
                   "taken")
    expected = _waits(whole, class_)
    if waits != expected:
        yield (f"block {whole.name!r}{of_class} waits for {_names(waits)}, and for {_names(expected)} under the "
               "options taken")


def _waits(block: WideBlock, class_: str | None) -> Counter[_Wait]:
    return Counter((wait.block, lag_of(wait, class_), wait.link, wait.distance) for wait in block.after)


def _names(waits: Counter[_Wait]) -> str:
    return ", ".join(repr(block) + (f" (lag {lag})" if lag else "") + (f" (distance {distance})" if distance else "")
                     for block, lag, _, distance in waits.elements()) or "nothing"


def shown(value: object) -> str:
    """``value``, an amount or a name or several, for a sentence."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


Value = TypeVar("Value")


def block_of(block: WideBlock, class_: str | None, name: str) -> Block:
    """``block`` with its costs for a micro-batch of ``class_``, called ``name`` and without its waits."""
    return Block(name, block.kind, block.devices, _cost(block.duration, class_), _cost(block.memory, class_),
                 _cost(block.workspace, class_))


def lag_of(wait: WideDependency, class_: str | None) -> Number:
    """The lag of ``wait`` for a transfer from a micro-batch of ``class_``."""
    return _cost(wait.lag, class_)


def unknown_class(block: WideBlock, classes: Iterable[str | None]) -> str | None:
    """The first value of ``block`` that is given for some classes but not for one of ``classes``, in words; None if all
    are covered."""
    values = [("duration", block.duration), ("memory", block.memory), ("workspace", block.workspace),
              *((f"the lag after {wait.block!r}", wait.lag) for wait in block.after)]
    for label, value in values:
        for class_ in classes:
            if isinstance(value, Mapping) and class_ not in value and (class_ is not None or len(value) > 1):
                return (f"{label} is given for the classes {', '.join(map(repr, value))}, and a micro-batch is of "
                        + ("none" if class_ is None else repr(class_)))
    return None


def _cost(value: Value | Mapping[str, Value], class_: str | None) -> Value:
    if not isinstance(value, Mapping):
        return value
    return next(iter(value.values())) if class_ is None else value[class_]
