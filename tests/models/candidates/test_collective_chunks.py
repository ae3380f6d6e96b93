"""The number of chunks of a collective as a choice."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from weft.models.candidates.collective_chunks import CHUNKS, chunked_collective
from weft.solver.choices.solve import solve_wide
from weft.solver.problem import ProblemError
from weft.solver.timing import time_orders


def at(count: int, times: tuple[float, float, float, float]) -> float:
    """The makespan where the parts that are made go before those that are used, and each in turn."""
    problem = chunked_collective(*times, [count]).plain()
    made = [(problem.index[f"compute {i}"], 0) for i in range(count)]
    used = [(problem.index[f"after {i}"], 0) for i in range(count)] if times[2] else []
    sent = [(problem.index[f"collective {i}"], 0) for i in range(count)]
    return max(operation.end for operation in time_orders(problem, 1, [[*made, *used], sent]))


@pytest.mark.parametrize(("times", "best", "count"), [
    ((1000, 1000, 100, 20), 1297.5, 8), ((1000, 500, 50, 20), 1054.375, 16), ((500, 1000, 50, 20), 1217.5, 4)])
def test_the_best_number_is_chosen_and_proven(times: tuple[int, int, int, int], best: float, count: int) -> None:
    counts = [1, 2, 4, 8, 16]
    found = solve_wide(chunked_collective(*times, counts), 1, effort=4.0)
    assert found.makespan == pytest.approx(best) == found.makespan_bound
    assert found.choices == {CHUNKS: str(count)}
    assert min(at(n, times) for n in counts) == pytest.approx(best)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=3, unique=True),
       st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 3), st.integers(0, 2)))
def test_each_number_is_the_problem_of_that_many_parts(counts: Sequence[int], times: tuple[int, int, int, int]) -> None:
    wide = chunked_collective(*times, counts)
    for count in counts:
        plain = wide.under({CHUNKS: str(count)} if len(counts) > 1 else {}).plain()
        assert plain.blocks == chunked_collective(*times, [count]).plain().blocks
        work = [sum(block.duration for block in plain.blocks if block.devices == (device,)) for device in (0, 1)]
        assert work == pytest.approx([times[0] + times[2], times[1] + count * times[3]])


@pytest.mark.parametrize("counts", [[], [0, 1], [2, 2]])
def test_numbers_that_mean_nothing_are_refused(counts: list[int]) -> None:
    with pytest.raises(ProblemError, match="chunks: "):
        chunked_collective(1, 1, 1, 1, counts)
