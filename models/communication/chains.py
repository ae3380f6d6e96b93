"""The chains of a program that may run in chunks: along them computation and communication overlap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.models.communication.passes.overlap import overlaps
from weft.models.communication.paths import followers
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, Overlap, Program

__all__ = ["best_chain", "chains", "in_chunks"]


def chains(program: Program) -> Iterator[tuple[str, ...]]:
    """The paths of two stages and more that can run in chunks, their number aside.

    What begins such a path can be one too, so no path is followed beyond the stage that it cannot have.
    """
    for stage in program.stages:
        rest: list[tuple[str, ...]] = [(stage.name,)]
        while rest:
            path = rest.pop()
            for name in followers(program, path[-1]):
                longer = (*path, name)
                if _ways(program, longer, 1):
                    yield longer
                    rest.append(longer)


def best_chain(program: Program, prices: Prices, written: Program | None = None) -> tuple[str, ...]:
    """The chain whose stages take longest together, the shortest of these; none where no chain holds two engines."""
    best: tuple[str, ...] = ()
    most = 0.0
    for path in chains(program):
        works = [work for name in path for work in work_of(program, program.by_name[name], prices, written)]
        seconds = sum(work.seconds for work in works)
        if len({work.engines for work in works}) > 1 and (seconds, -len(path)) > (most, -len(best)):
            best, most = path, seconds
    return best


def in_chunks(program: Program, chain: Sequence[str], count: int) -> Overlap | None:
    """The way to run ``chain`` in ``count`` chunks; ``None`` where it stays whole: of one, or a number that divides
    none of the axes."""
    return next(iter(_ways(program, chain, count)), None) if count > 1 and chain else None


def _ways(program: Program, chain: Sequence[str], chunks: int) -> list[Overlap]:
    try:
        return list(overlaps(program, chain, chunks))
    except CommunicationError:
        return []
