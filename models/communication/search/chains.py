"""The chains of a program that may run in chunks: along them computation and communication overlap."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from weft.models.communication.passes.overlap import overlap, overlaps
from weft.models.communication.paths import followers
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, Program

__all__ = ["Chain", "chain_sets", "chains", "in_chunks"]

#: Stages by name, each of which reads what the one before makes.
Chain: TypeAlias = tuple[str, ...]


def chains(program: Program) -> Iterator[Chain]:
    """The paths of two stages and more that can run in chunks, their number aside.

    What begins such a path can be one too, so no path is followed beyond the stage that it cannot have.
    """
    for stage in program.stages:
        rest: list[Chain] = [(stage.name,)]
        while rest:
            path = rest.pop()
            for name in followers(program, path[-1]):
                longer = (*path, name)
                if _can_be_cut(program, longer):
                    yield longer
                    rest.append(longer)


def chain_sets(program: Program, prices: Prices, written: Program | None = None, *, every: bool = True
               ) -> list[tuple[Chain, ...]]:
    """What may run in chunks at once: the longest chain with those that fit beside it; with ``every``, also each alone.

    Only chains that hold several engines are among them: those that take longest first, of two that take as long the
    shorter. One empty set where there is none.
    """
    ranked = []
    for path in chains(program):
        works = [work for name in path for work in work_of(program, program.by_name[name], prices, written)]
        if len({work.engines for work in works}) > 1:
            ranked.append((-sum(work.seconds for work in works), len(path), path))
    together: list[Chain] = []
    beside = program
    for _, _, path in sorted(ranked):
        try:
            beside = overlap(beside, path, 1)
        except CommunicationError:
            continue  # it shares a stage with one of them, or they would wait for each other
        together.append(path)
    return list(dict.fromkeys([tuple(together), *((path,) for _, _, path in sorted(ranked) if every)]))


def in_chunks(program: Program, chosen: Iterable[Chain], count: int) -> Program:
    """``program`` with the chains ``chosen`` in ``count`` chunks; those stay whole whose axes it does not divide."""
    for path in chosen if count > 1 else ():
        try:
            program = overlap(program, path, count)
        except CommunicationError:
            continue
    return program


def _can_be_cut(program: Program, path: Chain) -> bool:
    try:
        next(overlaps(program, path, 1))
    except CommunicationError:
        return False
    return True
