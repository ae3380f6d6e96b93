"""What backends can be given of a graph, in the order in which it pays to measure it, and the problem of it.

Parts that compute alike are measured once. Of a backend's, those come first that, with all that are like them, have
most operators of the graph; backends take turns, so that one that takes long to build does not hold up the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from weft.runtime.backends.graph import Graph
from weft.runtime.backends.patterns import chains
from weft.runtime.backends.registry import EAGER, Backend
from weft.runtime.backends.trial import Found
from weft.solver.placement.cover.problem import Candidate, CoverProblem, Value

__all__ = ["Alike", "candidates_of", "cover_problem", "in_turn"]


@dataclass(frozen=True)
class Alike:
    """Parts that compute alike, by ``backend``: their ``key``, and the units of each."""

    backend: Backend
    key: str
    places: tuple[tuple[int, ...], ...]

    @property
    def covered(self) -> int:
        """Units that they have together."""
        return len({unit for place in self.places for unit in place})


def candidates_of(graph: Graph, backend: Backend) -> list[Alike]:
    """The parts that ``backend`` may be given, those that are alike together; eager's are not listed.

    Raises :class:`~weft.runtime.backends.registry.BackendError` for a pattern that finds what is no part.
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
    alike = [Alike(backend, key, tuple(places)) for key, places in by_key.items()]
    return sorted(alike, key=lambda one: (-one.covered, -len(one.places[0]), one.places[0]))


def in_turn(candidates: Sequence[Sequence[Alike]]) -> Iterator[Alike]:
    """The first of each backend, then the second, and so on."""
    for row in zip_longest(*candidates):
        yield from (one for one in row if one is not None)


def cover_problem(graph: Graph, eager: Found, measured: Sequence[tuple[Alike, Found]],
                  boundaries: Mapping[tuple[str, str], tuple[float, float]]) -> CoverProblem:
    """Which parts to take. ``eager``: of each unit; ``measured``: what was tried, of which only what was not refused
    counts; ``boundaries``: by pair of backends, seconds a value and a byte."""
    found = [Candidate(frozenset([unit]), EAGER, seconds) for unit, seconds in enumerate(eager.units)]
    for alike, trial in measured:
        if trial.refused is None:
            ratio = trial.seconds / max(trial.eager, 1e-12)
            found += [Candidate(frozenset(units), alike.backend.name, ratio * sum(eager.units[unit] for unit in units))
                      for units in alike.places]
    values = [Value(maker, readers, {pair: fixed + per_byte * size for pair, (fixed, per_byte) in boundaries.items()})
              for maker, readers, size in graph.values]
    passed = {(value.maker, reader) for value in values for reader in value.readers}
    values += [Value(a, (b,)) for a, b in graph.order if (a, b) not in passed]
    return CoverProblem(len(graph.units), tuple(values), tuple(found))
