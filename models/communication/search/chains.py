"""The chains of a program that may run in chunks: along them computation and communication overlap.

Short names of programs, in CoCoNet's notation: ``AR-C``, ``RS-C-AG``, ``MM-(RS-C-AG)``; brackets denote one stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from weft.models.communication.passes.overlap import overlap, overlaps
from weft.models.communication.prices import Prices, work_of
from weft.models.communication.program import CommunicationError, CommunicationProgram, ProgramStage
from weft.models.communication.rebuilding import followers

#: Stages by name, each of which reads the previous one's output.
Chain: TypeAlias = tuple[str, ...]


def chains(program: CommunicationProgram) -> Iterator[Chain]:
    """The paths of two stages or more that can run in chunks, for some number of chunks.

    Prefixes of such a path qualify too, so no path is followed beyond a stage that it cannot include.
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
    """Sets of chains that may run in chunks together: the longest chain with the compatible ones; with ``every``, also
    each alone.

    Only chains on several engines are included: those of longest time first, of two with equal times the shorter. One
    empty set if there is none.
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
            continue  # it shares a stage with one of them, or their waits would form a cycle
        together.append(path)
    return list(dict.fromkeys([tuple(together), *((path,) for _, _, path in sorted(ranked) if every)]))


def in_chunks(program: CommunicationProgram, chosen: Iterable[Chain], count: int) -> CommunicationProgram:
    """``program`` with the chains ``chosen`` in ``count`` chunks; chains whose axes it does not divide stay whole."""
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
    """Its stages in order; consecutive computation is one C, slices and updates are left out."""
    return "-".join(_row(program.stages)) or "nothing"


def titles(programs: Sequence[CommunicationProgram]) -> list[str]:
    """The title of each; duplicates are numbered from the second on."""
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
