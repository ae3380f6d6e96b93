"""The chains of a program that may run in chunks: along them computation and communication overlap.

Short names of programs, as CoCoNet writes them: ``AR-C``, ``RS-C-AG``, ``MM-(RS-C-AG)``; brackets are one stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from weft.models.communication.passes.overlap import overlap, overlaps
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import followers

#: Stages by name, each of which reads what the one before makes.
Chain: TypeAlias = tuple[str, ...]


def chains(program: CommunicationProgram) -> Iterator[Chain]:
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


def chain_sets(program: CommunicationProgram, prices: Prices, written: CommunicationProgram | None = None, *,
               every: bool = True
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


def in_chunks(program: CommunicationProgram, chosen: Iterable[Chain], count: int) -> CommunicationProgram:
    """``program`` with the chains ``chosen`` in ``count`` chunks; those stay whole whose axes it does not divide."""
    for path in chosen if count > 1 else ():
        try:
            program = overlap(program, path, count)
        except CommunicationError:
            continue
    return program


def _can_be_cut(program: CommunicationProgram, path: Chain) -> bool:
    try:
        next(overlaps(program, path, 1))
    except CommunicationError:
        return False
    return True


_SHORT = {"matmul": "MM", "all_reduce": "AR", "reduce_scatter": "RS", "all_gather": "AG", "reduce": "R",
          "broadcast": "B", "send": "P2P"}


def title(program: CommunicationProgram) -> str:
    """Its stages in order; computation in a row is one C, slices and updates are left out."""
    return "-".join(_row(program.stages)) or "nothing"


def titles(programs: Sequence[CommunicationProgram]) -> list[str]:
    """Of each its title; of those that bear the same, numbered from the second on."""
    seen: Counter[str] = Counter()
    found = []
    for program in programs:
        name = title(program)
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


def _row(stages: Iterable[ProgramStage]) -> list[str]:
    found: list[str] = []
    for stage in stages:
        if stage.kind in ("slice", "update"):
            continue
        name = f"({'-'.join(_row(stage.parts))})" if stage.parts else _SHORT.get(stage.kind, "C")
        if name != "C" or found[-1:] != [name]:
            found.append(name)
    return found
