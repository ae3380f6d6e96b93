"""Short names of programs, as CoCoNet writes them: ``AR-C``, ``RS-C-AG``, ``MM-(RS-C-AG)``; brackets are one stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from weft.models.communication.program import Program, Stage

__all__ = ["title", "titles"]

_SHORT = {"matmul": "MM", "all_reduce": "AR", "reduce_scatter": "RS", "all_gather": "AG", "reduce": "R",
          "broadcast": "B", "send": "P2P"}


def title(program: Program) -> str:
    """Its stages in order; computation in a row is one C, slices and updates are left out."""
    return "-".join(_row(program.stages)) or "nothing"


def titles(programs: Sequence[Program]) -> list[str]:
    """Of each its title; of those that bear the same, numbered from the second on."""
    seen: Counter[str] = Counter()
    found = []
    for program in programs:
        name = title(program)
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found


def _row(stages: Iterable[Stage]) -> list[str]:
    found: list[str] = []
    for stage in stages:
        if stage.kind in ("slice", "update"):
            continue
        name = f"({'-'.join(_row(stage.parts))})" if stage.parts else _SHORT.get(stage.kind, "C")
        if name != "C" or found[-1:] != [name]:
            found.append(name)
    return found
