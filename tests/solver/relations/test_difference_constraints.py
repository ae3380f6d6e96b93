"""Longest paths under constraints with periods, and the cycle that a too short period violates."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from weft.solver.relations.difference_constraints import Constraint, longest_paths_or_cycle, ratio

NODES = 5
CONSTRAINTS = st.lists(st.builds(Constraint, st.integers(0, NODES - 1), st.integers(0, NODES - 1), st.integers(-6, 9),
                                 st.integers(0, 3)), max_size=12)


@given(CONSTRAINTS, st.fractions(1, 20, max_denominator=6))
def test_either_starts_satisfy_all_or_a_cycle_forbids_the_period(edges: list[Constraint], period: Fraction) -> None:
    starts, cycle = longest_paths_or_cycle(NODES, edges, period)
    if cycle is None:
        assert all(starts[edge.target] >= starts[edge.source] + edge.weight - edge.height * period for edge in edges)
        return
    assert [edge.target for edge in cycle] == [edge.source for edge in (*cycle[1:], cycle[0])]
    assert sum(edge.weight - edge.height * period for edge in cycle) > 0
    if sum(edge.height for edge in cycle):
        assert ratio(cycle) > period


def test_the_ratio_of_the_violated_cycle_is_the_least_period() -> None:
    edges = [Constraint(0, 1, 3, 0), Constraint(1, 0, 4, 2)]
    _, cycle = longest_paths_or_cycle(2, edges, Fraction(3))
    assert cycle is not None and ratio(cycle) == Fraction(7, 2)
    starts, cycle = longest_paths_or_cycle(2, edges, Fraction(7, 2))
    assert cycle is None and starts == [0, 3]
