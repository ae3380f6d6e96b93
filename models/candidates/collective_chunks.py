"""In how many chunks a collective overlaps what is computed before and after it: a problem with a choice of the number.

A GPU computes for ``compute``, what it made goes through a ``collective`` on its network lane, and ``after`` is
computed with the result. In n chunks each of the three is cut into n parts: part i is sent once it is made, beside the
computation of part i + 1, and used once it has arrived; every part of the collective takes ``launch`` more. More chunks
overlap more and launch more: the best number lies in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.solver.problem import BlockKind, Device, Number, ProblemError
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem

__all__ = ["CHUNKS", "chunked_collective"]

#: The name of the choice.
CHUNKS = "chunks"


def chunked_collective(compute: Number, collective: Number, after: Number, launch: Number, counts: Sequence[int], *,
                       name: str = "chunked collective", time_unit: str = "us") -> WideProblem:
    """The problem of one GPU and its network lane, with a choice among ``counts`` of chunks; times in ``time_unit``.

    Where ``after`` is 0, nothing is computed after it. Of one count there is no choice. Raises
    :class:`~weft.solver.problem.ProblemError` for counts that are none, below 1 or there twice.
    """
    if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
        raise ProblemError(f"chunks: {', '.join(map(str, counts)) or 'nothing'} must be numbers of at least 1, each "
                           "once")
    blocks = [block for count in counts for block in _parts(compute, collective, after, launch, count, len(counts) > 1)]
    choices = {CHUNKS: tuple(map(str, counts))} if len(counts) > 1 else {}
    return WideProblem(name, (Device("gpu"), Device("network", lane_of="gpu")), tuple(blocks), choices=choices,
                       time_unit=time_unit)


def _parts(compute: Number, collective: Number, after: Number, launch: Number, count: int, is_open: bool
           ) -> list[WideBlock]:
    """Those of ``count`` chunks. A part bears one name whatever the count: the first ones exist under every count."""
    when = {CHUNKS: str(count)} if is_open else {}
    found: list[WideBlock] = []
    for i in range(count):
        made = (WideDependency(f"compute {i - 1}"),) if i else ()
        sent = (WideDependency(f"compute {i}"), *((WideDependency(f"collective {i - 1}"),) if i else ()))
        used = (WideDependency(f"collective {i}"), *((WideDependency(f"after {i - 1}"),) if i else ()))
        found += [WideBlock(f"compute {i}", BlockKind.OTHER, (0,), compute / count, after=made, when=when),
                  WideBlock(f"collective {i}", BlockKind.OTHER, (1,), collective / count + launch, after=sent,
                            when=when),
                  *([WideBlock(f"after {i}", BlockKind.OTHER, (0,), after / count, after=used, when=when)]
                    if after else [])]
    return found
