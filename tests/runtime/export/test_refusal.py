"""What other tools' formats cannot say of lanes and jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.lane_problems import laned_schedule
from tests.support.wide_problems import schedule_of_jobs, schedule_of_rounds
from weft.runtime.export.refusal import ExportError
from weft.runtime.export.tessel import tessel_to_json
from weft.runtime.export.tools import TOOLS
from weft.runtime.export.tools.nnscaler import nnscaler_module
from weft.runtime.export.torch_csv import torch_rows
from weft.solver import BlockKind, Device, Schedule
from weft.solver.wide.block import WideBlock
from weft.solver.wide.problem import WideProblem
from weft.solver.wide.run import Run


def lengths() -> Schedule:
    problem = WideProblem("lengths", (Device("gpu"),), (WideBlock("F", BlockKind.FORWARD, (0,), {"a": 1, "b": 2}),))
    return schedule_of_rounds(problem, Run.of(problem, ["a", "b"]))


@pytest.mark.parametrize("export", [torch_rows, nnscaler_module, tessel_to_json,
                                    TOOLS["megatron"].run])
@pytest.mark.parametrize(("schedule", "why"), [
    (laned_schedule(), "device 'gpu 0 network' is a lane of 'gpu 0', it has devices without lanes only"),
    (schedule_of_jobs(), "it has the jobs 'chat' and 'search', and all micro-batches there are alike"),
    (lengths(), "it has micro-batches of several classes"),
])
def test_lanes_jobs_and_classes_are_refused_in_a_sentence(export: Callable[[Schedule], Any], schedule: Schedule,
                                                          why: str) -> None:
    with pytest.raises(ExportError, match=f"cannot express '{schedule.problem.name}': {why}"):
        export(schedule)
