"""Places of cuts are the best of all, by trying all."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import strategies as st

from tests.support.examples import for_all
from weft.app.pipeline.planning.places import SECONDS_A_BYTE, SLACK, cut_places


def loads(seconds: list[float], sizes: list[float | None], places: tuple[int, ...]) -> list[float]:
    ends = [0, *places, len(seconds)]
    sent = [0.0 if end in (0, len(seconds)) else float(sizes[end] or 0) for end in ends]
    return [sum(seconds[a:b]) + 2 * SECONDS_A_BYTE * (sent[i] + sent[i + 1]) for i, (a, b) in enumerate(pairwise(ends))]


@for_all(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 4))), min_size=2, max_size=9),
         st.integers(1, 4), st.integers(1, 3), tries=40)
def test_no_cuts_have_a_smaller_load_or_within_the_slack_fewer_bytes(row: list[tuple[int, int | None]], count: int,
                                                                     first: int) -> None:
    seconds = [float(time) for time, _ in row]
    sizes = [None if size is None else size * 1e8 for _, size in row]
    found = cut_places(seconds, sizes, count, first)
    allowed = [place for place in range(max(1, first), len(row)) if sizes[place] is not None]
    every = list(combinations(allowed, count - 1))
    if not every:
        assert found is None
        return
    least = min(max(loads(seconds, sizes, places)) for places in every)
    fewest = min(sum(float(sizes[place] or 0) for place in places) for places in every
                 if max(loads(seconds, sizes, places)) <= SLACK * least + 1e-9)
    assert found is not None and tuple(found) in every
    assert max(loads(seconds, sizes, tuple(found))) <= SLACK * least + 1e-9
    assert sum(float(sizes[place] or 0) for place in found) <= fewest + 1e-6


def test_a_row_that_is_too_short_has_no_cuts() -> None:
    assert cut_places([1.0, 1.0], [0.0, None], 2) is None and cut_places([1.0, 1.0], [0.0, 8.0], 1) == []
