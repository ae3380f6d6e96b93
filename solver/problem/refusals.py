"""What is refused of a problem's choices, jobs and classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import combinations

from weft.solver.problem.block import Block, Options, all_classes, excludes, options_text
from weft.solver.values import ProblemError, require_name

#: The options of each choice.
Choices = Mapping[str, tuple[str, ...]]


def by_name(blocks: Sequence[Block]) -> Mapping[str, tuple[Block, ...]]:
    """The blocks of each name, in file order."""
    found: dict[str, list[Block]] = {}
    for block in blocks:
        found.setdefault(block.name, []).append(block)
    return {name: tuple(alike) for name, alike in found.items()}


def refuse_names(alternatives: Mapping[str, Sequence[Block]]) -> None:
    """Raises :class:`ProblemError` for two blocks of one name that may exist at once, and for waits that never hold or
    are for no block."""
    for name, blocks in alternatives.items():
        for one, other in combinations(blocks, 2):
            if not excludes(one.when, other.when):
                raise ProblemError(f"blocks: the name {name!r} is used twice under options that do not exclude "
                                   f"each other ({_text(one.when)} and {_text(other.when)})")
    for block in (block for blocks in alternatives.values() for block in blocks):
        for wait in block.after:
            if wait.block not in alternatives:
                raise ProblemError(f"block {block.name!r}: after {wait.block!r}: there is no block of that name")
            if excludes(wait.when, block.when):
                raise ProblemError(f"block {block.name!r}: after {wait.block!r}: when {_text(wait.when)} never holds "
                                   f"where the block exists ({_text(block.when)})")


def is_simple(blocks: Sequence[Block], choices: Choices) -> bool:
    """Whether no assignment can have a circle, none is empty, and no link is used that may not join its blocks."""
    if any(wait.link is not None for block in blocks for wait in block.after):
        return False
    waits: TopologicalSorter[str] = TopologicalSorter()
    for block in blocks:
        waits.add(block.name, *(wait.block for wait in block.after if wait.distance == 0))
    try:
        waits.prepare()
    except CycleError:
        return False
    alone = {next(iter(block.when.items())) for block in blocks if len(block.when) == 1}
    return any(not block.when for block in blocks) or any(
        all((choice, option) in alone for option in options) for choice, options in choices.items())


def refuse_choices(blocks: Sequence[Block], choices: Choices) -> None:
    """Raises :class:`ProblemError` for choices without two options, and for options that only one side names."""
    for choice, options in choices.items():
        for text in (choice, *options):
            require_name(text, "choices")
        if len(set(options)) < len(options):
            raise ProblemError(f"choices: {choice!r} names an option twice")
        if len(options) < 2:
            raise ProblemError(f"choices: {choice!r} has {len(options) or 'no'} option{'s' * (not options)}, a choice "
                               "is between at least two: take it out, and what names it out of `when`")
    named: set[tuple[str, str]] = set()
    for block in blocks:
        for when, where in [(block.when, f"block {block.name!r}: when"),
                            *((wait.when, f"block {block.name!r}: after {wait.block!r}: when")
                              for wait in block.after)]:
            for choice, option in when.items():
                require_option(choices, choice, option, where)
                named.add((choice, option))
    for choice, options in choices.items():
        for option in options:
            if (choice, option) not in named:
                raise ProblemError(f"choices: {choice!r}: no block and no wait names the option {option!r} in its "
                                   "`when`: take it out, or say what it changes")


def require_option(choices: Choices, choice: str, option: str, where: str) -> None:
    """Raises :class:`ProblemError` unless there is such an option; ``where`` it is named."""
    if choice not in choices:
        raise ProblemError(f"{where}: there is no choice named {choice!r}"
                           + (", there are " + ", ".join(map(repr, choices)) if choices else ""))
    if option not in choices[choice]:
        raise ProblemError(f"{where}: the choice {choice!r} has no option {option!r}, it has "
                           + ", ".join(map(repr, choices[choice])) + ": what names it exists under none")


def refuse_jobs(blocks: Sequence[Block]) -> None:
    """Raises :class:`ProblemError` for blocks of no job beside others, and waits between jobs."""
    if all(block.job is None for block in blocks):
        return
    for block in blocks:
        if block.job is None:
            raise ProblemError(f"block {block.name!r} belongs to no job and others do: give each block its job")
    jobs = {block.name: block.job for block in blocks}
    for block in blocks:
        if jobs[block.name] != block.job:
            raise ProblemError(f"blocks: the name {block.name!r} is used in the jobs {jobs[block.name]!r} and "
                               f"{block.job!r}")
        for wait in block.after:
            if jobs.get(wait.block, block.job) != block.job:
                raise ProblemError(f"block {block.name!r} of job {block.job!r} waits for {wait.block!r} of job "
                                   f"{jobs[wait.block]!r}: micro-batches are counted per job")


def refuse_classes(blocks: Sequence[Block]) -> None:
    """Raises :class:`ProblemError` for values that only some of a job's classes have."""
    jobs = {block.job for block in blocks}
    names = {job: all_classes(block for block in blocks if block.job == job) for job in jobs}
    for block in blocks:
        lags = ((f"after {wait.block!r}: {label}", values) for wait in block.after
                for label, values in wait.by_class.items())
        for what, values in (*block.by_class.items(), *lags):
            missing = [name for name in names[block.job] if name not in values]
            if missing:
                raise ProblemError(f"block {block.name!r}: {what} says nothing of class {missing[0]!r}, which "
                                   "other blocks name: give a number for each class, or one for all")


def _text(options: Options) -> str:
    return options_text(options) or "always"
