"""``weft.plans``: its names, and a plan from a module to its communication."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from tests.support.loading import loaded_after
from weft import plans


def test_every_name_is_there_and_none_loads_torch() -> None:
    code = "import weft; names = [getattr(weft.plans, name) for name in weft.plans.__all__]"
    assert loaded_after(code, "torch", "altair") == []
    assert weft.plans is plans
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        plans.nothing  # noqa: B018


def test_a_module_is_planned_in_a_few_lines() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).double()
    program = plans.with_backward(plans.program(module, (torch.randn(4, 8).double(),)))
    plan = plans.Plan(program).split("linear.product linear", "n", 4).split("gelu", "d1", 4)
    done = plan.split("linear_1.product", "k", 4).assign("*", range(4)).preserve(plans.uniform(1e-5, 1e10))
    assert str(done) == ("linear_1.product -> linear_1: all_reduce on devices 0, 1, 2, 3 <1, 4, 1, 1> -> all_reduce -> "
                         "<4, 1, 1, 1>")
    with pytest.raises(plans.PlanError, match="which 3 parts do not divide"):
        plan.split("gelu", "d1", 3)
