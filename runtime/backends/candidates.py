"""The parts of a graph that backends may compute, in the order in which measuring pays, and their cover problem.

Parts that compute alike are measured once. Of a backend's parts, the next is the one that, with all like it, has most
operators of the graph, where an operator counts half for each earlier part that has it: first the largest parts, then
the largest elsewhere, so that wherever measuring ends, all of the graph has been considered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from weft.runtime.backends.graph import UnitGraph
from weft.runtime.backends.patterns import chains
from weft.runtime.backends.registry import EAGER, Backend
from weft.runtime.backends.trial import Found
from weft.solver.placement.cover.problem import CoverPart, CoverProblem, Value


@dataclass(frozen=True)
class Alike:
    """Parts that ``backend`` computes alike: their ``key``, and the units of each."""

    backend: Backend
    key: str
    places: tuple[tuple[int, ...], ...]

    @property
    def covered(self) -> set[int]:
        """The units of all of them together."""
        return {unit for place in self.places for unit in place}


def candidates_of(graph: UnitGraph, backend: Backend) -> list[Alike]:
    """The parts that ``backend`` may compute, grouped by likeness; eager's are not listed.

    Raises :class:`~weft.runtime.backends.registry.BackendError` for a pattern whose finds are not parts.
    """
    if backend.name == EAGER:
        return []
    patterns = backend.patterns
    found = chains(graph, patterns) if not callable(patterns) else patterns(graph)
    by_key: dict[str, list[tuple[int, ...]]] = {}
    for units in dict.fromkeys(tuple(sorted(set(units))) for units in found):
        graph.require_part(units, backend.name)
        if not all(map(graph.is_plain, units)):
            continue
        part = graph.part(units)
        if part.gives and backend.supports(part):
            by_key.setdefault(part.key, []).append(units)
    return _ordered(Alike(backend, key, tuple(places)) for key, places in by_key.items())


def _ordered(candidates: Iterable[Alike]) -> list[Alike]:
    """In the order in which measuring pays."""
    times, found = Counter[int](), list[Alike]()
    listed = sorted(candidates, key=lambda one: (-len(one.places[0]), one.places[0]))
    waiting = [(-float(len(one.covered)), i) for i, one in enumerate(listed)]
    heapify(waiting)
    while waiting:  # counts only fall, so the first with an unchanged count is the next
        counted, i = heappop(waiting)
        now = -sum(0.5 ** times[unit] for unit in listed[i].covered)
        if now > counted:
            heappush(waiting, (now, i))
            continue
        times.update(listed[i].covered)
        found.append(listed[i])
    return found


def cover_problem(graph: UnitGraph, eager: Found, measured: Sequence[tuple[Alike, Found]],
                  boundaries: Mapping[tuple[str, str], tuple[float, float]]) -> CoverProblem:
    """The choice of parts. ``eager``: of each unit; ``measured``: the trials, of which only those not refused count;
    ``boundaries``: by pair of backends, seconds per value and per byte."""
    found = [CoverPart(frozenset([unit]), EAGER, seconds) for unit, seconds in enumerate(eager.units)]
    for alike, trial in measured:
        if trial.refused is None:
            ratio = trial.seconds / max(trial.eager, 1e-12)
            found += [CoverPart(frozenset(units), alike.backend.name, ratio * sum(eager.units[unit] for unit in units))
                      for units in alike.places]
    values = [Value(maker, readers, {pair: fixed + per_byte * size for pair, (fixed, per_byte) in boundaries.items()})
              for maker, readers, size in graph.values]
    passed = {(value.maker, reader) for value in values for reader in value.readers}
    values += [Value(a, (b,)) for a, b in graph.order if (a, b) not in passed]
    return CoverProblem(len(graph.units), tuple(values), tuple(found))
