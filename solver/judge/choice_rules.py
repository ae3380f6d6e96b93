"""Whether a schedule is one of a problem with choices: is its problem the one that the options it states make?

A schedule contains the plain problem that its options make (or, with jobs or classes, the one that has no choice left),
so this check also needs the whole problem. The blocks and waits that exist under the options are derived here anew:

- exactly one option of each choice is taken;
- a block exists where every option in its ``when`` is taken, and so does a wait; a wait for a block that does not exist
  is void;
- every block that exists has the same costs as in the whole problem, on the same devices.

The costs of a block for one class of micro-batches: a part of the judge, with its own derivation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from weft.solver.problem import Block, Dependency, Device, Link, Number, Problem
from weft.solver.schedule import Schedule

_Wait: TypeAlias = tuple[str, Number, str | None, int]


def violations_of_choice(schedule: Schedule, whole: Problem, *, limit: int = 20) -> list[str]:
    """Why ``schedule`` is not a schedule of ``whole`` under its ``choices``: at most ``limit`` sentences, none if it is
    one. Whether it keeps the rules of its own problem is for :func:`weft.solver.judge.validate.violations`."""
    return list(islice(_violations(schedule, whole), limit))


def _violations(schedule: Schedule, whole: Problem) -> Iterator[str]:
    faults = list(_check_options(schedule.choices, whole))
    yield from faults
    if faults:
        return
    problem = schedule.problem if schedule.rounds is None else schedule.rounds.origin
    yield from _check_frame(problem.devices, whole.devices, "devices")
    yield from _check_frame(problem.links, whole.links, "links")
    if (problem.time_unit, problem.memory_unit) != (whole.time_unit, whole.memory_unit):
        yield (f"the schedule's problem is in {problem.time_unit} and {problem.memory_unit}, the whole problem in "
               f"{whole.time_unit} and {whole.memory_unit}")
    yield from _check_blocks(schedule, problem, _existing(whole, schedule.choices))


def _existing(whole: Problem, taken: Mapping[str, str]) -> dict[str, Block]:
    """The blocks that exist under the options ``taken``, by name, with the waits that exist and are not void."""
    blocks = [block for block in whole.blocks if _is_taken(block.when, taken)]
    names = {block.name for block in blocks}
    return {block.name: replace(block, after=tuple(wait for wait in block.after
                                                   if wait.block in names and _is_taken(wait.when, taken)))
            for block in blocks}


def _is_taken(when: Mapping[str, str], taken: Mapping[str, str]) -> bool:
    return all(taken[choice] == option for choice, option in when.items())


def _check_options(taken: Mapping[str, str], whole: Problem) -> Iterator[str]:
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


def _check_blocks(schedule: Schedule, problem: Problem, existing: Mapping[str, Block]) -> Iterator[str]:
    """Whether the blocks of ``problem`` are the ``existing`` ones, with the same costs for every class with
    micro-batches in the run; without a run all micro-batches are of one job and one class."""
    run = None if schedule.rounds is None else schedule.rounds.run
    jobs = dict.fromkeys(block.job for block in existing.values())
    if run is None and len(jobs) > 1:
        yield f"there are the jobs {', '.join(map(repr, jobs))}, and the schedule counts the micro-batches of one"
        return
    for choice in problem.choices:
        yield f"the choice {choice!r} is open in the schedule's problem"
    yield from _check_names([block.name for block in problem.blocks], existing)
    for block in problem.blocks:
        if block.name not in existing:
            continue
        whole = existing[block.name]
        if run is None:
            yield from _check_classes(block, whole, (None,))
        elif block.job != whole.job:
            yield f"block {block.name!r} is of the job {block.job!r}, in the whole problem of {whole.job!r}"
        elif block.job not in run.classes:
            yield f"block {block.name!r}: no micro-batches are counted of its job"
        else:
            yield from _check_classes(block, whole, tuple(dict.fromkeys(run.classes[block.job])))


def _check_classes(block: Block, whole: Block, classes: Sequence[str | None]) -> Iterator[str]:
    for one in (block, whole):
        if (unknown := unknown_class(one, classes)) is not None:
            yield f"block {block.name!r}: {unknown}"
            return
    for class_ in classes:
        yield from _check_block(block_of(block, class_, block.name), _waits(block, class_), whole, class_)


def _check_names(stated: Sequence[str], existing: Mapping[str, Block]) -> Iterator[str]:
    for name in existing:
        if name not in stated:
            yield f"block {name!r} exists under the options taken, and the schedule's problem has none of that name"
    for name in stated:
        if name not in existing:
            yield f"the schedule's problem has a block {name!r}, which does not exist under the options taken"
    kept = [name for name in stated if name in existing]
    if kept != [name for name in existing if name in kept]:
        yield "the blocks of the schedule's problem stand in another order than those of the whole problem"


def _check_block(stated: Block, waits: Counter[_Wait], whole: Block, class_: str | None) -> Iterator[str]:
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


def _waits(block: Block, class_: str | None) -> Counter[_Wait]:
    return Counter((wait.block, lag_of(wait, class_), wait.link, wait.distance) for wait in block.after)


def _names(waits: Counter[_Wait]) -> str:
    return ", ".join(repr(block) + (f" (lag {lag})" if lag else "") + (f" (distance {distance})" if distance else "")
                     for block, lag, _, distance in waits.elements()) or "nothing"


def shown(value: object) -> str:
    """``value``, an amount or a name or several, for a sentence."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def block_of(block: Block, class_: str | None, name: str) -> Block:
    """``block`` with its costs for a micro-batch of ``class_``, called ``name`` and without its waits."""
    return Block(name, block.kind, block.devices, _cost(block, "duration", class_), _cost(block, "memory", class_),
                 _cost(block, "workspace", class_))


def lag_of(wait: Dependency, class_: str | None) -> Number:
    """The lag of ``wait`` for a transfer from a micro-batch of ``class_``."""
    lag: Number = _cost(wait, "lag", class_)
    return lag


def unknown_class(block: Block, classes: Iterable[str | None]) -> str | None:
    """The first value of ``block`` that is given for some classes but not for one of ``classes``, in words; None if all
    are covered."""
    for label, values in (*block.by_class.items(), *((f"the lag after {wait.block!r}", values) for wait in block.after
                                                     for values in wait.by_class.values())):
        for class_ in classes:
            if class_ not in values and (class_ is not None or len(values) > 1):
                return (f"{label} is given for the classes {', '.join(map(repr, values))}, and a micro-batch is of "
                        + ("none" if class_ is None else repr(class_)))
    return None


def _cost(of: Block | Dependency, label: str, class_: str | None) -> Any:
    values = of.by_class.get(label)
    if values is None:
        return getattr(of, label)
    return next(iter(values.values())) if class_ is None else values[class_]
