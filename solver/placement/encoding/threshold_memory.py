"""Memory in the threshold encoding: rows that apply if a stage is on a kind with limited memory.

Rows count each kind's memory in units of its own, a power of two in which all amounts are whole if that is fine enough,
and rounded down otherwise: to 2^-45 of the kind's memory. So no row is stricter than the judge, which lets sums exceed
the memory by a billionth (:func:`weft.solver.placement.groups.room`), and one kind with much memory does not reduce the
precision of another with little.
"""

from __future__ import annotations

import math
from fractions import Fraction

from weft.solver.late import cp_model
from weft.solver.placement.encoding.threshold import Terms, Threshold
from weft.solver.placement.groups import room

#: The most units of a kind's memory: with 2^17 groups sums stay inside 64 bits.
_UNITS = 2**45
#: The most units of all memory together, if kinds share a unit.
_WHOLE = 2**50


def require_memory(threshold: Threshold, excess: cp_model.IntVar | None = None) -> None:
    """Every stage within the memory of its kind, as required for a row of stages; and ``excess`` more, in units of
    :func:`excess_scale`, if that is given."""
    problem = threshold.groups.problem
    scale = None if excess is None else excess_scale(threshold)
    for k, kind in enumerate(problem.kinds):
        for stage in range(threshold.stages if kind.memory is not None and kind.count else 0):
            terms, limit = memory_terms(threshold, stage, k, problem.in_flight(threshold.stages - stage), scale)
            on = threshold.kind[stage][k]
            if on is not False and sum(amount for amount, _ in terms) > limit:
                threshold.at_most(terms, limit if excess is None else limit + excess, on)


def memory_terms(threshold: Threshold, stage: int, kind: int, in_flight: int, scale: Fraction | None = None
                 ) -> tuple[Terms, int]:
    """(units, literal) whose sum is the memory of ``stage`` with ``in_flight`` micro-batches, and the capacity of a
    device of ``kind``, whose memory is limited. A group that does not fit by itself counts as one unit more than
    that, except in units of a given ``scale``."""
    groups = threshold.groups
    memory = groups.problem.kinds[kind].memory
    assert memory is not None
    demand: list[float] = (groups.resident + in_flight * groups.per_micro_batch).tolist()
    there = [(demand[group], threshold.inside(group, stage)) for group in threshold.groups_at(stage)]
    if scale is not None:
        return [(math.floor(Fraction(held) * scale), x) for held, x in there], math.floor(Fraction(memory) * scale)
    if not memory:
        return [(int(held > 0), x) for held, x in there], 0
    most = room(memory)
    finest = max(Fraction(amount).denominator for amount in (most, *(a for a in demand if a <= most)))
    scale = min(Fraction(finest), Fraction(2) ** math.floor(math.log2(_UNITS) - math.log2(most)))
    limit = math.floor(Fraction(most) * scale)
    return [(min(math.floor(Fraction(held) * scale), limit + 1), x) for held, x in there], limit


def excess_scale(threshold: Threshold) -> Fraction:
    """Units per unit of the problem in rows where all kinds lack the same amount: a power of two in which all amounts
    are whole if it is small enough for that."""
    groups, problem = threshold.groups, threshold.groups.problem
    amounts = [*groups.resident.tolist(), *groups.per_micro_batch.tolist()]
    limits = [kind.memory for kind in problem.kinds if kind.memory is not None]
    total = max(groups.memory(range(groups.count), problem.in_flight(threshold.stages)), *limits, 1.0)
    finest = max(Fraction(amount).denominator for amount in (*amounts, *limits))
    return min(Fraction(finest), Fraction(2) ** math.floor(math.log2(_WHOLE) - math.log2(total)))
