"""Times and amounts in other units."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.sharing import one_gpu
from weft.models.share.job import SharingError
from weft.models.share.units import in_units
from weft.solver.problem import BlockKind, Device
from weft.solver.wide.block import WideBlock, WideDependency
from weft.solver.wide.problem import WideProblem


def test_nothing_changes_in_the_same_units() -> None:
    problem = one_gpu("a", 8, 2).problem
    assert in_units(problem, "s", "B") == problem


def test_every_class_of_a_cost_is_converted() -> None:
    problem = WideProblem("p", (Device("gpu", 4),), (
        WideBlock("C", BlockKind.OTHER, (0,), {"x": 0.1, "y": 3}, memory={"x": (1,), "y": (2,)}),
        WideBlock("D", BlockKind.OTHER, (0,), 1, after=(WideDependency("C", {"x": 0.3, "y": 0}),))),
        time_unit="s", memory_unit="GiB")
    found = in_units(problem, "ms", "MiB")
    assert found.blocks[0].duration == {"x": 100, "y": 3000} and found.blocks[0].memory == {"x": (1024,), "y": (2048,)}
    assert found.blocks[1].after[0].lag == {"x": 300, "y": 0} and found.devices[0].memory == 4096


def test_unknown_units_cannot_be_converted() -> None:
    with pytest.raises(SharingError, match="memory_unit is 'activations', and that of another job is 'B'"):
        in_units(replace(one_gpu("a", 1, 1).problem, memory_unit="activations"), "s", "B")
