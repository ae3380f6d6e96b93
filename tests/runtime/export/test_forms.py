"""What other tools' formats cannot say of lanes and jobs.

Times as whole steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import chain, pipeline
from tests.support.lane_problems import laned_schedule
from tests.support.wide_problems import schedule_of_jobs, schedule_of_rounds
from weft.runtime.export.forms import ExportError, ranked_steps
from weft.runtime.export.tessel import tessel_to_json
from weft.runtime.export.tools import TOOLS
from weft.runtime.export.tools.nnscaler import nnscaler_module
from weft.runtime.export.torch_csv import torch_rows
from weft.solver import BlockKind, Device, Schedule
from weft.solver.baselines import baseline
from weft.solver.problem import Block, Problem, per_class
from weft.solver.problem.rounds import Run
from weft.solver.schedule import Operation


def lengths() -> Schedule:
    problem = Problem("lengths", (Device("gpu"),), (
        Block("F", BlockKind.FORWARD, (0,), **per_class(duration={"a": 1, "b": 2})),))
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


def test_a_step_ends_where_anything_starts_or_ends() -> None:
    schedule = baseline("gpipe", pipeline(chain(2), forward=1, backward=None), 2)  # F0 F0 | F1 F1, one later
    spans = {(o.block, o.micro_batch): steps for o, steps in
             zip(schedule.operations, ranked_steps(schedule, "a tool"), strict=True)}
    assert spans == {(0, 0): (0, 1), (0, 1): (1, 1), (1, 0): (1, 1), (1, 1): (2, 1)}


def test_an_operation_too_short_for_a_step_is_refused() -> None:
    schedule = baseline("gpipe", pipeline(chain(2), forward=1, backward=None), 2)
    first, *others = schedule.operations
    short = Operation(first.block, first.micro_batch, first.start, first.start + 1e-15)
    tiny = schedule.with_operations([short, *others])
    with pytest.raises(ExportError, match=r"a tool cannot express .* is too short beside the whole schedule"):
        ranked_steps(tiny, "a tool")
