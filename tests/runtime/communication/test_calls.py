"""Kernels with torch against those of the interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from weft.models.communication.functions import FUNCTIONS
from weft.models.communication.interpreter import dropped as by_numpy
from weft.runtime.communication.calls import KERNELS, dropped
from weft.runtime.communication.instructions import StageCall

ATTRIBUTES: dict[str, dict[str, Any]] = {
    "scale": {"factor": 0.3}, "descend": {"rate": 0.1}, "mean_of": {"beta": 0.9}, "square_of": {"beta": 0.99},
    "adam_direction": {"betas": (0.9, 0.99), "eps": 1e-8}, "decayed": {"decay": 0.1}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pointwise_functions_are_those_of_numpy(name: str) -> None:
    function = FUNCTIONS[name]
    operands = [np.abs(np.random.default_rng(i).standard_normal((3, 4))) + 1.0 for i in range(function.arity)]
    if name == "trust":
        operands[1:] = [np.array(2.0), np.array(0.0)]
    attributes = ATTRIBUTES.get(name, {})
    call = StageCall("s", "pointwise", ("a",) * function.arity, ("b",), attributes, function.compute)
    found = KERNELS["pointwise"](call, [torch.tensor(operand) for operand in operands])
    np.testing.assert_allclose(found.numpy(), function.compute(np, *operands, **attributes), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("rate", "seed"), [(0.1, 0), (0.5, 7), (0.0, 2**40)])
def test_the_same_elements_are_dropped_as_by_the_interpreter(rate: float, seed: int) -> None:
    places = np.arange(5000)
    assert np.array_equal(dropped(torch.tensor(places), rate, seed).numpy(), by_numpy(places, rate, seed))


def test_a_pointwise_stage_has_the_widest_type_also_where_that_is_a_single_numbers() -> None:
    call = StageCall("s", "pointwise", ("a", "b"), ("c",), {}, FUNCTIONS["add"].compute)
    third = torch.tensor(1 / 3, dtype=torch.float64)
    found = KERNELS["pointwise"](call, [torch.zeros(2), third])
    assert found.dtype == torch.float64 and bool((found == third).all())
