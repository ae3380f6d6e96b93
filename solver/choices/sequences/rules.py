"""Orders of classes that are known or likely to be good: what the search starts from.

A hill (the shortest at both ends, where devices wait for the first and for the last) and a valley; classes spread
evenly; the shortest first; the longest first; Johnson's rule for two machines in a row ("Optimal two- and three-stage
production schedules", 1954), the first and the last device of a micro-batch; and the injections that DynaPipe tries
(:func:`weft.solver.baselines.dynapipe.injections`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from weft.solver.baselines.dynapipe import injections
from weft.solver.choices.sequences.costs import Costs
from weft.solver.choices.sequences.partial import Partial
from weft.solver.choices.sequences.partial import Sequence as ClassSequence

__all__ = ["sequences_by_rule"]

_Row: TypeAlias = tuple[str | None, ...]


def sequences_by_rule(costs: Costs, root: Partial) -> Iterator[tuple[str, ClassSequence]]:
    """Sequences of the counts that ``root`` leaves, each with the rule's name; all jobs by one rule, none twice."""
    by_job = {}
    for job, part in root.jobs.items():
        row = [name for name, count in zip(part.names, part.left, strict=True) for _ in range(count)][:part.open]
        by_job[job] = dict(_rules(row, [costs.work(job, name) for name in row], *_ends(costs, job, row)))
    seen: set[tuple[_Row, ...]] = set()
    for name in dict.fromkeys(name for found in by_job.values() for name in found):
        sequence = {job: found.get(name, found["shortest first"]) for job, found in by_job.items()}
        if tuple(sequence.values()) not in seen:
            seen.add(tuple(sequence.values()))
            yield name, sequence


def _ends(costs: Costs, job: str | None, row: Sequence[str | None]) -> tuple[list[float], list[float]]:
    """What each micro-batch takes on the first device that it meets, and on the last."""
    blocks = [block for block in costs.wide.blocks if block.job == job]
    first = blocks[0].devices[0]
    last = next((block.devices[0] for block in reversed(blocks) if block.devices[0] != first), first)
    return tuple([float(sum(block.of_class(name).duration for block in blocks if device in block.devices))
                  for name in row] for device in (first, last))  # type: ignore[return-value]


def _rules(row: Sequence[str | None], work: Sequence[float], first: Sequence[float], last: Sequence[float]
           ) -> Iterator[tuple[str, _Row]]:
    places = sorted(range(len(row)), key=lambda m: work[m])

    def of(order: Sequence[int]) -> _Row:
        return tuple(row[m] for m in order)

    yield "hill", of([*places[::2], *places[1::2][::-1]])
    yield "spread", _spread(row)
    yield "shortest first", of(places)
    yield "longest first", of(places[::-1])
    yield "valley", of([*places[::-1][::2], *places[::-1][1::2][::-1]])
    early = sorted((m for m in places if first[m] < last[m]), key=lambda m: first[m])
    late = sorted((m for m in places if first[m] >= last[m]), key=lambda m: -last[m])
    yield "Johnson", of([*early, *late])
    for number, order in enumerate(injections(work)):
        yield f"DynaPipe {number}", of(order)


def _spread(row: Sequence[str | None]) -> _Row:
    """Each class at even distances."""
    keyed = []
    for place, (name, count) in enumerate(Counter(row).items()):
        keyed += [((k + 0.5) / count, place, name) for k in range(count)]
    return tuple(name for _, _, name in sorted(keyed, key=lambda entry: entry[:2]))
