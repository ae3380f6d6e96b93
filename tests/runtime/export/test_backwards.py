"""Which backward belongs to which forward."""

from __future__ import annotations

import pytest

from tests.support.builders import chain, loop, pipeline, v
from weft.runtime.export.backwards import backward_of
from weft.runtime.export.refusal import ExportError
from weft.solver.problem import Problem


@pytest.mark.parametrize("devices", [chain(3), loop(2), v(2)])
def test_the_backward_of_a_stage_is_found_by_what_waits_for_what(devices: list[int]) -> None:
    problem = pipeline(devices)
    names = {problem.blocks[f].name: problem.blocks[b].name for f, b in backward_of(problem, "a tool").items()}
    assert names == {f"f{s}": f"b{s}" for s in range(len(devices))}


def test_inference_has_none_and_halves_are_refused() -> None:
    assert backward_of(pipeline(chain(2), backward=None), "a tool") == {}
    with pytest.raises(ExportError, match=r"a tool cannot express .* it has forwards and full backwards only"):
        backward_of(pipeline(chain(2), split=(1, 1)), "a tool")


def test_a_backward_too_few_is_refused() -> None:
    whole = pipeline(chain(2))
    fewer = Problem("fewer", whole.devices, tuple(block for block in whole.blocks if block.name != "b0"))
    with pytest.raises(ExportError, match="no backward mirrors forward 'f0'"):
        backward_of(fewer, "a tool")
