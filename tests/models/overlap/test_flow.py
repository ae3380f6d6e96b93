"""Steps on two engines, in chunks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from weft.models.overlap.flow import Step, duration, pieces, serial

COUNTS = (1, 2, 4, 8, 16)


def chunked(compute: float, collective: float, after: float, launch: float) -> list[Step]:
    """What models/candidates/collective_chunks.py has as a problem."""
    divides = {"batch": 16}
    return [Step("compute", (), compute, divides=divides),
            Step("collective", (0,), collective + launch, divides=divides,
                 pieces={count: collective / count + launch for count in COUNTS}),
            Step("after", (1,), after, divides=divides)]


@pytest.mark.parametrize(("times", "best", "count"), [
    ((1000, 1000, 100, 20), 1297.5, 8), ((1000, 500, 50, 20), 1054.375, 16), ((500, 1000, 50, 20), 1217.5, 4)])
def test_one_collective_is_the_chunked_pipeline(times: tuple[int, int, int, int], best: float, count: int) -> None:
    steps = chunked(*times)
    found = {each: duration(steps, each, "batch") for each in COUNTS}
    assert found[1] == serial(steps) == sum(times)
    assert min(found.values()) == found[count] == pytest.approx(best)


def test_what_cannot_be_cut_waits_for_all_chunks() -> None:
    steps = chunked(100, 100, 40, 0)
    assert duration(steps, 2, "batch") == 100 + 50 + 20
    steps[2] = Step("after", (1,), 40)
    assert duration(steps, 2, "batch") == 100 + 50 + 40
    assert duration(steps, 2, "sequence") == 240
    assert duration(steps, 3, "batch") == 240  # 16 units do not make three chunks


def test_a_weight_gradient_runs_beside_the_collective() -> None:
    steps = [Step("inner", (), 10), Step("sum", (0,), 8, pieces={1: 8}), Step("weights", (0,), 6),
             Step("next", (1,), 5)]
    assert serial(steps) == 29 and duration(steps, 1) == 10 + 8 + 5


def test_narrow_cuts_leave_matrix_products_whole_that_no_collective_reads() -> None:
    divides = {"batch": 4}
    steps = [Step("up", (), 100, 10, divides=divides, is_heavy=True),
             Step("down", (0,), 100, 10, divides=divides, is_heavy=True),
             Step("sum", (1,), 60, pieces={1: 60, 2: 30}, divides=divides)]
    wide, narrow = (pieces(steps, 2, "batch", wide=wide) for wide in (True, False))
    assert [piece.seconds for piece in wide] == [110, 110, 30, 30]
    assert [piece.seconds for piece in narrow] == [100, 55, 55, 30, 30]
    assert duration(steps, 2, "batch") == 250 and duration(steps, 2, "batch", wide=False) == 240


@st.composite
def rows(draw: st.DrawFn) -> list[Step]:
    steps: list[Step] = []
    for number in range(draw(st.integers(1, 9))):
        waits = tuple(sorted(draw(st.sets(st.integers(0, number - 1), max_size=2)))) if number else ()
        seconds = draw(st.integers(1, 9))
        divides = draw(st.sampled_from([{}, {"batch": 2}, {"batch": 4}]))
        sent = draw(st.booleans())
        launch = draw(st.integers(0, 1))
        steps.append(Step(str(number), waits, seconds, launch, divides=divides, is_heavy=draw(st.booleans()),
                          pieces={count: launch + (seconds - launch) / count for count in (1, 2, 4)} if sent else {}))
    return steps


@settings(max_examples=examples(200), deadline=None)
@given(rows(), st.sampled_from([1, 2, 4]), st.booleans())
def test_no_piece_begins_before_what_it_reads_and_all_work_is_done(steps: list[Step], count: int, wide: bool) -> None:
    found = pieces(steps, count, "batch", wide=wide)
    assert all(source < number for number, piece in enumerate(found) for source in piece.waits)
    took = duration(steps, count, "batch", wide=wide)
    for sent in (False, True):
        work = sum(piece.seconds for piece in found if piece.is_sent == sent)
        assert work <= took * (1 + 1e-9)
        least = sum(step.seconds for step in steps if step.is_sent == sent)
        assert least <= work * (1 + 1e-9) <= (least + count * len(steps)) * (1 + 1e-9)
    assert took <= sum(piece.seconds for piece in found) * (1 + 1e-9)
    if count == 1:
        assert took <= serial(steps) * (1 + 1e-9)
