"""Times as whole steps."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, pipeline
from weft.runtime.export.refusal import ExportError
from weft.runtime.export.whole_steps import ranked_steps
from weft.solver import Operation, baseline


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
