"""Jobs and classes as a plain problem: one micro-batch of it is a round of the run.

A round holds p micro-batches of a job; copy c of a block runs micro-batches c, p + c, 2 p + c, ... of its job, with
what its class costs. A wait of distance h links copy (c - h) mod p to copy c, (h - c) / p rounded up to whole rounds
earlier. The copies of a block run in turn, as its micro-batches do: each waits for the one before, the first one for
the last of the round before. So the schedules of the plain problem are those of the run, with the same times, memory
and makespan: no bound is lost and none is gained. One job of one class has one copy, and is the plain problem itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from weft.solver.problem import Block, Dependency, Problem, ProblemError
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run

__all__ = ["Rounds"]


@dataclass(frozen=True)
class Rounds:
    """``wide``, a problem without open choices, in the rounds of ``run``, without jobs and classes of which the options
    taken have left nothing."""

    wide: WideProblem
    run: Run

    def __post_init__(self) -> None:
        if self.wide.choices:
            raise ProblemError(f"the choice {next(iter(self.wide.choices))!r} is open")
        for block in self.wide.blocks:
            self._check_transfers(block)
        object.__setattr__(self, "run", self.run.within(self.wide))

    @cached_property
    def problem(self) -> Problem:
        """The plain problem: its micro-batches are rounds. Raises :class:`~weft.solver.problem.ProblemError` for a
        circle of waits."""
        wide = self.wide
        single = all(len(self.run.per_round(block.job)) == 1 for block in wide.blocks)
        return Problem(wide.name, wide.devices, tuple(self._copy(*place) for place in self.places), wide.links,
                       wide.time_unit, wide.memory_unit, wide.model if single else None)

    @property
    def is_plain(self) -> bool:
        """Whether :attr:`problem` is the problem of one job and one class itself, and a round is a micro-batch."""
        return self.wide.is_plain and all(len(row) == self.run.rounds for row in self.run.classes.values())

    @property
    def counted(self) -> str:
        """What the micro-batches of :attr:`problem` are called: rounds, unless a round is one micro-batch."""
        sizes = {job: len(self.run.per_round(job)) for job in self.run.classes}
        if sizes == {None: 1}:
            return "micro-batches"
        return "rounds of " + " and ".join(f"{size} micro-batch{'es' if size > 1 else ''}"
                                           + ("" if job is None else f" of {job}") for job, size in sizes.items())

    @cached_property
    def places(self) -> tuple[tuple[int, int], ...]:
        """Per plain block, the index of its wide block and which copy of that it is. All of copy 0 come first; with
        links all copies of a block come together, as transfers of one producer run in the order of their consumers."""
        widths = [len(self.run.per_round(block.job)) for block in self.wide.blocks]
        if self.wide.links:
            return tuple((i, c) for i, width in enumerate(widths) for c in range(width))
        return tuple((i, c) for c in range(max(widths)) for i, width in enumerate(widths) if c < width)

    @cached_property
    def index(self) -> Mapping[tuple[int, int], int]:
        """The plain block that is a wide block's copy."""
        return {place: number for number, place in enumerate(self.places)}

    def apart(self, block: int, round_: int) -> tuple[int, int]:
        """The wide block and the micro-batch of its job that the plain ``block`` runs in ``round_``."""
        i, c = self.places[block]
        return i, round_ * self._width(i) + c

    def joined(self, block: int, micro_batch: int) -> tuple[int, int]:
        """The plain block and the round that the wide ``block`` runs ``micro_batch`` of its job in."""
        width = self._width(block)
        return self.index[block, micro_batch % width], micro_batch // width

    def _check_transfers(self, block: WideBlock) -> None:
        """Several transfers from one producer to one consumer would run in another order for each copy."""
        waits = [(wait.block, wait.link) for wait in block.after if wait.link is not None]
        if len(set(waits)) < len(waits) and len(self.run.per_round(block.job)) > 1:
            twice = next(wait for wait in waits if waits.count(wait) > 1)
            raise ProblemError(f"block {block.name!r} waits twice for {twice[0]!r} over the link {twice[1]!r}: where "
                               "micro-batches differ, or a round has several of a job, it may do so once")

    def _width(self, block: int) -> int:
        return len(self.run.per_round(self.wide.blocks[block].job))

    def _name(self, block: WideBlock, copy: int) -> str:
        return block.name if len(self.run.per_round(block.job)) == 1 else f"{block.name}{self._mark}{copy}"

    @cached_property
    def _mark(self) -> str:
        """What stands between a name and its copy's number: such that no two names are alike."""
        mark = "*"
        while any(mark in block.name for block in self.wide.blocks):
            mark += "*"
        return mark

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The wide blocks' indices by name."""
        return {block.name: i for i, block in enumerate(self.wide.blocks)}

    def _copy(self, i: int, c: int) -> Block:
        block = self.wide.blocks[i]
        classes = self.run.per_round(block.job)
        width = len(classes)
        waits = []
        for wait in block.after:
            source = (c - wait.distance) % width
            waits.append(replace(wait.of_class(classes[source]),
                                 block=self._name(self.wide.blocks[self.number[wait.block]], source),
                                 distance=-((c - wait.distance) // width)))
        if width > 1:
            waits.append(Dependency(self._name(block, (c - 1) % width), distance=int(c == 0)))
        return replace(block.of_class(classes[c]), name=self._name(block, c), after=tuple(waits))
