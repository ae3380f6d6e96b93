"""The search against an exact oracle, on random problems that give before they take, leave memory behind, have idle
devices, times far apart, lone blocks, links and blocks on several devices.

``WEFT_RANDOM_PROBLEMS=20000`` compares so many.
"""

from __future__ import annotations

import os

import pytest

from tests.oracles.agreement import disagreements
from tests.oracles.generated import drawn
from tests.oracles.whole import TooLarge

COUNT = int(os.environ.get("WEFT_RANDOM_PROBLEMS", "160"))
_AT_ONCE = 40
#: Problems that were answered wrongly once: a period of ticks too fine for 63 bits, and blocks on all devices that wait
#: for the micro-batch before, in the period search and in a known schedule.
ONCE_WRONG = [12199, 15160, 20998]


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, COUNT, _AT_ONCE))
def test_random_problems_are_answered_right(first: int) -> None:
    wrong = {number: found for number in range(first, first + _AT_ONCE) if (found := compared(number))}
    assert not wrong


@pytest.mark.parametrize("number", ONCE_WRONG)
def test_problems_that_were_answered_wrongly_once(number: int) -> None:
    assert not compared(number)


def test_many_devices_most_of_them_idle() -> None:
    assert not {number: found for number in range(25) if (found := compared(number, idle=16))}


def compared(number: int, idle: int | None = None) -> list[str]:
    case = drawn(number, idle=idle)
    try:
        return disagreements(case.problem, case.micro_batches)
    except TooLarge:
        return []
