"""Periods of orders that repeat for ever, by hand."""

from __future__ import annotations

import pytest

from weft.solver.judge.ring_waits import Ring, greatest_ratio, waits_of
from weft.solver.problem import Block, BlockKind, Dependency, Device, Link, Problem


def there_and_back(lag: int, *, link: bool, back: bool) -> Problem:
    """A block of 1 on each of two devices with a transfer between them; ``back``: the next micro-batch waits for it."""
    after = (Dependency("second", 0, None, 1),) if back else ()
    return Problem("there and back", (Device("a"), Device("b")), (
        Block("first", BlockKind.OTHER, (0,), 1, after=after),
        Block("second", BlockKind.OTHER, (1,), 1, after=(Dependency("first", lag, "wire" if link else None),))),
        links=(Link("wire", 0, 1),))


@pytest.mark.parametrize("q", [1, 2, 3])
@pytest.mark.parametrize(("link", "back", "each"), [
    (False, False, 1),  # a device's work
    (True, False, 5),  # one transfer at a time
    (False, True, 1 + 5 + 1), (True, True, 1 + 5 + 1)])  # the circle there and back
def test_the_period_is_the_greatest_circle_of_waits(link: bool, back: bool, each: int, q: int) -> None:
    problem = there_and_back(5, link=link, back=back)
    rings: list[Ring] = [tuple((block, m) for m in range(q)) for block in range(2)]
    starts = {(block, m): m * 7.0 + block * 6 for block in range(2) for m in range(q)}
    assert greatest_ratio(waits_of(problem, rings, q, starts), 0.5) == pytest.approx(each * q)
