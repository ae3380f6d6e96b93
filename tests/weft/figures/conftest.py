"""Two schedules that several tests draw."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, pipeline
from tests.support.pictures import GIB
from weft.solver import Repetend, Schedule, baseline


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """1F1B of 4 devices and 8 micro-batches; 0.01 s forwards that keep 1 GiB each under a cap of 6 GiB."""
    made = baseline("1f1b", pipeline(chain(4), forward=0.01, backward=0.02, activation=GIB, memory=6 * GIB), 8)
    return Schedule(made.problem, made.micro_batches, made.operations, 0.3, made.period, made.period,
                    Repetend(3, 5), {"name": "weft"})


@pytest.fixture(scope="module")
def gpipe(schedule: Schedule) -> Schedule:
    return baseline("gpipe", schedule.problem, 8)
