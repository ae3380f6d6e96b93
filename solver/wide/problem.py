"""A block problem with choices, jobs and classes: many plain problems in one.

*Choices.* Exactly one option of each choice is taken, the same for all micro-batches. A block (or a wait) exists under
the options that it names; two blocks may bear one name under options that exclude each other. What waits for a block
that no option taken contains is void. :meth:`WideProblem.under` takes options.

*Jobs.* A block may belong to a job; micro-batches are counted per job. Jobs share devices, memory and links.

*Classes.* Durations, amounts of memory and lags may be given per class; a :class:`~weft.solver.wide.run.Run` says the
class of every micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import combinations, product
from math import prod

from weft.solver.model_facts import ModelFacts
from weft.solver.problem import Block, BlockKind, Device, Link, Problem, ProblemError
from weft.solver.values import require_name
from weft.solver.wide.block import Options, WideBlock, all_classes, excludes, holds, options_text

#: Of up to so many assignments each is looked at for a circle of waits before the search; of more when it gets there.
_LOOKED_AT = 4096


@dataclass(frozen=True)
class WideProblem:
    """Blocks with choices, jobs and classes. Raises :class:`~weft.solver.problem.ProblemError` if they have no meaning.
    """

    name: str
    devices: tuple[Device, ...]
    blocks: tuple[WideBlock, ...]
    links: tuple[Link, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    time_unit: str = "s"
    memory_unit: str = "B"
    model: ModelFacts | None = None

    def __post_init__(self) -> None:
        _check_frame(self)
        _check_choices(self)
        _check_jobs(self)
        _check_classes(self)
        for name, alternatives in self.alternatives.items():
            for one, other in combinations(alternatives, 2):
                if not excludes(one.when, other.when):
                    raise ProblemError(f"blocks: the name {name!r} is used twice under options that do not exclude "
                                       f"each other ({_text(one.when)} and {_text(other.when)})")
        _check_waits(self)
        self._check_plain_problems()

    @cached_property
    def alternatives(self) -> Mapping[str, tuple[WideBlock, ...]]:
        """The blocks by name, in file order: those of one name exclude each other."""
        found: dict[str, list[WideBlock]] = {}
        for block in self.blocks:
            found.setdefault(block.name, []).append(block)
        return {name: tuple(blocks) for name, blocks in found.items()}

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The classes of micro-batches; none where all are alike."""
        return all_classes(self.blocks)

    def classes_of(self, job: str | None) -> tuple[str, ...]:
        """The classes of the micro-batches of ``job``."""
        return all_classes(block for block in self.blocks if block.job == job)

    @cached_property
    def jobs(self) -> tuple[str, ...]:
        """The jobs; none where there are no jobs."""
        return tuple(dict.fromkeys(block.job for block in self.blocks if block.job is not None))

    @property
    def is_plain(self) -> bool:
        """Whether nothing is left to be decided, so that :meth:`plain` is the same problem."""
        return not self.choices and not self.classes and len(self.jobs) <= 1

    @property
    def assignments(self) -> Iterator[dict[str, str]]:
        """Every way to take one option of each choice."""
        for options in product(*self.choices.values()):
            yield dict(zip(self.choices, options, strict=True))

    @property
    def assignment_count(self) -> int:
        """How many :attr:`assignments` there are."""
        return prod(map(len, self.choices.values()))

    def under(self, options: Options) -> WideProblem:
        """The problem where ``options`` are taken: other choices stay open. Raises
        :class:`~weft.solver.problem.ProblemError` for options that there are not."""
        for choice, option in options.items():
            _require_option(self, choice, option, "options")
        kept = [block.under(options) for block in self.blocks if holds(block.when, options)]
        left = {choice: of for choice, of in self.choices.items() if choice not in options}
        names = {block.name for block in kept}
        blocks = tuple(replace(block, after=tuple(wait for wait in block.after if wait.block in names))
                       for block in kept)
        return _unchecked(self, blocks, left)

    def plain(self, name: str | None = None) -> Problem:
        """The plain problem of micro-batches of class ``name``. Raises :class:`~weft.solver.problem.ProblemError` where
        choices are open, and for a circle of waits."""
        if self.choices:
            raise ProblemError(f"the choice {next(iter(self.choices))!r} is open")
        if not self.blocks:
            raise ProblemError("blocks is empty: no block exists under these options")
        return Problem(self.name, self.devices, tuple(block.of_class(name) for block in self.blocks), self.links,
                       self.time_unit, self.memory_unit, self.model)

    def _check_plain_problems(self) -> None:
        """Every assignment is a problem: waits make no circle, links join what they are used by."""
        if self.assignment_count <= _LOOKED_AT and (not self.choices or not self._is_simple()):
            for options in self.assignments:
                try:
                    self.under(options).plain(self.classes[0] if self.classes else None)
                except ProblemError as error:
                    raise ProblemError(f"{error} (under {_text(options)})" if options else str(error)) from None

    def _is_simple(self) -> bool:
        """Whether no assignment can have a circle, and no link is used that may not join its blocks."""
        if any(wait.link is not None for block in self.blocks for wait in block.after):
            return False
        waits: TopologicalSorter[str] = TopologicalSorter()
        for block in self.blocks:
            waits.add(block.name, *(wait.block for wait in block.after if wait.distance == 0))
        try:
            waits.prepare()
        except CycleError:
            return False
        return self._is_never_empty()

    def _is_never_empty(self) -> bool:
        """Whether some block exists under every assignment, or one under each option of some choice."""
        alone = {next(iter(block.when.items())) for block in self.blocks if len(block.when) == 1}
        return any(not block.when for block in self.blocks) or any(
            all((choice, option) in alone for option in options) for choice, options in self.choices.items())


def _unchecked(problem: WideProblem, blocks: tuple[WideBlock, ...], choices: Mapping[str, tuple[str, ...]]
               ) -> WideProblem:
    """``problem`` with some of its own blocks and choices, which are not checked again."""
    made = object.__new__(WideProblem)
    for name, value in {**{label: getattr(problem, label) for label in problem.__dataclass_fields__},
                        "blocks": blocks, "choices": choices}.items():
        object.__setattr__(made, name, value)
    return made


# -- what is refused ----------------------------------------------------------------------------------------------


def _check_frame(problem: WideProblem) -> None:
    """What is the same under all options: names, devices and links, and that blocks are on devices that there are."""
    if not problem.blocks:
        raise ProblemError("blocks is empty, a problem has at least one block")
    for block in problem.blocks:
        outside = [device for device in block.devices if not 0 <= device < len(problem.devices)]
        if problem.devices and outside:
            raise ProblemError(f"block {block.name!r}: devices names device {outside[0]}, but there are "
                               f"{len(problem.devices)} devices (0 to {len(problem.devices) - 1})")
    Problem(problem.name, problem.devices, (Block("any", BlockKind.OTHER, (0,), 1),), problem.links,
            problem.time_unit, problem.memory_unit)


def _check_choices(problem: WideProblem) -> None:
    for choice, options in problem.choices.items():
        for text in (choice, *options):
            require_name(text, "choices")
        if len(set(options)) < len(options):
            raise ProblemError(f"choices: {choice!r} names an option twice")
        if len(options) < 2:
            raise ProblemError(f"choices: {choice!r} has {len(options) or 'no'} option{'s' * (not options)}, a choice "
                               "is between at least two: take it out, and what names it out of `when`")
    named: set[tuple[str, str]] = set()
    for block in problem.blocks:
        for when, where in [(block.when, f"block {block.name!r}: when"),
                            *((wait.when, f"block {block.name!r}: after {wait.block!r}: when")
                              for wait in block.after)]:
            for choice, option in when.items():
                _require_option(problem, choice, option, where)
                named.add((choice, option))
    for choice, options in problem.choices.items():
        for option in options:
            if (choice, option) not in named:
                raise ProblemError(f"choices: {choice!r}: no block and no wait names the option {option!r} in its "
                                   "`when`: take it out, or say what it changes")


def _require_option(problem: WideProblem, choice: str, option: str, where: str) -> None:
    if choice not in problem.choices:
        raise ProblemError(f"{where}: there is no choice named {choice!r}"
                           + (", there are " + ", ".join(map(repr, problem.choices)) if problem.choices else ""))
    if option not in problem.choices[choice]:
        raise ProblemError(f"{where}: the choice {choice!r} has no option {option!r}, it has "
                           + ", ".join(map(repr, problem.choices[choice])) + ": what names it exists under none")


def _check_jobs(problem: WideProblem) -> None:
    if not problem.jobs:
        return
    for block in problem.blocks:
        if block.job is None:
            raise ProblemError(f"block {block.name!r} belongs to no job and others do: give each block its job")
    jobs = {block.name: block.job for block in problem.blocks}
    for block in problem.blocks:
        if jobs[block.name] != block.job:
            raise ProblemError(f"blocks: the name {block.name!r} is used in the jobs {jobs[block.name]!r} and "
                               f"{block.job!r}")
        for wait in block.after:
            if jobs.get(wait.block, block.job) != block.job:
                raise ProblemError(f"block {block.name!r} of job {block.job!r} waits for {wait.block!r} of job "
                                   f"{jobs[wait.block]!r}: micro-batches are counted per job")


def _check_classes(problem: WideProblem) -> None:
    for block in problem.blocks:
        for what, value in [("duration", block.duration), ("memory", block.memory), ("workspace", block.workspace),
                            *((f"after {wait.block!r}: lag", wait.lag) for wait in block.after)]:
            if isinstance(value, Mapping):
                missing = [name for name in problem.classes_of(block.job) if name not in value]
                if missing:
                    raise ProblemError(f"block {block.name!r}: {what} says nothing of class {missing[0]!r}, which "
                                       "other blocks name: give a number for each class, or one for all")


def _check_waits(problem: WideProblem) -> None:
    for block in problem.blocks:
        for wait in block.after:
            if wait.block not in problem.alternatives:
                raise ProblemError(f"block {block.name!r}: after {wait.block!r}: there is no block of that name")
            if excludes(wait.when, block.when):
                raise ProblemError(f"block {block.name!r}: after {wait.block!r}: when {_text(wait.when)} never holds "
                                   f"where the block exists ({_text(block.when)})")


def _text(options: Options) -> str:
    return options_text(options) or "always"
