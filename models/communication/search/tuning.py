"""One solve for transformation, chunks and order: what to run of all that the passes reach, with a proven bound."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from weft.models.communication.prices import Prices
from weft.models.communication.program import Program
from weft.models.communication.search.problem import Choices, choices_of
from weft.models.communication.search.schedules import Schedule
from weft.solver.control.clock import watching

if TYPE_CHECKING:
    from weft.solver.schedule import Schedule as Found
    from weft.solver.step.search import Limits

__all__ = ["Tuned", "tune"]

#: What listing the programs may take of the time limit.
_LISTING = 0.4


@dataclass(frozen=True)
class Tuned:
    """``program``: what was chosen, its chains in chunks; ``variant``: its title, ``passes``: what leads to it;
    ``chunks``: of its ``chains``, 1 where it runs whole. ``schedule`` is judged, its makespan in microseconds and its
    bound proven over all ``choices``."""

    program: Program
    variant: str
    passes: tuple[str, ...]
    chunks: int
    chains: tuple[tuple[str, ...], ...]
    schedule: Found
    choices: Choices

    @property
    def chain(self) -> tuple[str, ...]:
        """The longest of its chains; none where it runs whole."""
        return self.chains[0] if self.chains else ()

    @property
    def microseconds(self) -> float:
        """How long a run takes."""
        return float(self.schedule.makespan)

    @property
    def bound(self) -> float:
        """No run of the variants that were tried, in these numbers of chunks, takes less."""
        return float(self.schedule.makespan_bound)

    @property
    def proven(self) -> bool:
        """Whether nothing among the choices is shorter."""
        return self.microseconds <= self.bound * (1 + 1e-9)

    def __str__(self) -> str:
        rows = " and ".join(" -> ".join(chain) for chain in self.chains)
        whole = f", {rows} in {self.chunks} chunks" if self.chains else ""
        more = ("" if self.choices.complete and self.choices.every_fusion else " (there are more)"
                if not self.choices.complete else " (not every way to fuse them is among these)")
        of = f"{self.choices.tried} program{'s' * (self.choices.tried != 1)}{more}"
        sure = "proven best" if self.proven else f"nothing is below {self.bound:.6g} us"
        return f"{self.variant}{whole}: {self.microseconds:.6g} us, {sure} of {of}"


def tune(program: Program, prices: Prices, counts: Sequence[int] = (1, 2, 4, 8, 16), *,
         variants: Sequence[Schedule] | None = None, limit: int = 1024, held: int | None = None,
         every_chain: bool = True, leave_out: bool = True, **limits: Unpack[Limits]) -> Tuned:
    """The best of the programs that the passes reach from ``program``, in the best of ``counts`` of chunks.

    The arguments are those of :func:`~weft.models.communication.search.problem.choices_of`; ``limits`` those of
    :func:`~weft.solver.choices.solve.solve_wide` (``time_limit``, ``effort``, ``seed`` ...). ``time_limit`` (60 s) is
    one for all: listing the programs takes at most two fifths of it where no ``effort`` is given, and where it stops
    early ``choices.complete`` is false. Past the limit there is only what one program takes to price, and the answer
    to judge. Raises what these do.
    """
    from weft.solver.choices.solve import solve_wide  # loads OR-Tools

    began, limit_s = time.monotonic(), limits.get("time_limit", 60.0)
    listed_by = began + limit_s * (_LISTING if limits.get("effort") is None else 1.0)
    with watching(lambda: time.monotonic() >= listed_by):
        choices = choices_of(program, prices, counts, variants=variants, limit=limit, held=held,
                             every_chain=every_chain, leave_out=leave_out)
    limits["time_limit"] = max(1e-3, limit_s - (time.monotonic() - began))
    schedule = solve_wide(choices.problem, 1, **limits)
    taken = schedule.choices or {}
    name, chosen = choices.variant(taken), choices.chosen(taken)
    chunks = chosen.overlaps[0].chunks if chosen.overlaps else 1
    return Tuned(chosen, name, choices.variants[name].passes, chunks,
                 tuple(overlap.stages for overlap in chosen.overlaps), schedule, choices)
