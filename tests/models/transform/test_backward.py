"""Gradients against differences, and operators of one's own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from torch import Tensor

from tests.support.programs import attention, convolutions, experts, mlp, numbers, transformer
from weft.app.plans.checking import error, run_dense
from weft.app.plans.programs import forget, operator
from weft.models.transform.backward import OWN, with_backward
from weft.models.transform.plan import TransformPlan
from weft.models.transform.program import PlanError, PlanProgram, ProgramBuilder
from weft.runtime.by_hand.kernels import runs


@pytest.mark.parametrize("model", [mlp, transformer, attention, convolutions, experts])
def test_gradients_are_those_of_differences(model: Callable[[], PlanProgram]) -> None:
    program, step = model(), 1e-6
    given = numbers(program)
    found, random = run_dense(program, given), np.random.default_rng(1)
    for name, tensor in program.tensors.items():
        if f"d({name})" not in program.outputs:
            continue
        along = random.standard_normal(tensor.shape)
        above, below = (run_dense(program, {**given, name: given[name] + sign * step * along})["loss"]
                        for sign in (1, -1))
        expected = float(above - below) / (2 * step)
        assert float((found[f"d({name})"] * along).sum()) == pytest.approx(expected, rel=1e-5, abs=1e-5), name


@pytest.mark.parametrize("kind", ["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "exp", "square", "identity"])
def test_slopes_are_those_of_differences(kind: str) -> None:
    b = ProgramBuilder("one")
    y = b.add("y", kind, "n -> n", [b.input("x", (9,), gradient=True)])
    program = with_backward(b.build(b.add("loss", "einsum", "n+ -> ", [y])))
    x = np.linspace(-2, 2.1, 9)
    given = {"x": x, "d(loss) given": np.ones(())}
    rise = [(run_dense(program, {**given, "x": x + sign * 1e-6 * np.eye(9)[i]})["loss"]) for i in range(9)
            for sign in (1, -1)]
    assert run_dense(program, given)["d(x)"] == pytest.approx(
        [float(rise[2 * i] - rise[2 * i + 1]) / 2e-6 for i in range(9)], abs=1e-6)


def test_an_operator_of_ones_own_is_split_as_it_says() -> None:
    @operator("n k -> n k")
    def raised(x: Tensor, power: int) -> Tensor:
        return x**power

    try:
        assert str(OWN["raised"]) == "n k -> n k"
        b = ProgramBuilder("own")
        y = b.add("y", "raised", "n k -> n k", [b.input("x", (4, 6), gradient=True)], power=3)
        program = with_backward(b.build(b.add("loss", "einsum", "n+ k+ -> ", [y])))
        given = numbers(program)
        assert run_dense(program, given)["d(x)"] == pytest.approx(3 * given["x"] ** 2)
        done = TransformPlan(program).split("y", "k", 3).assign("y", range(3)).assign("loss", 0).preserve()
        assert error(done, given) < 1e-12
        with pytest.raises(PlanError, match="a kernel 'raised' already"):
            operator("n -> n")(raised)
    finally:
        forget("raised")
    assert "raised" not in OWN and not runs("raised", {}) and not runs("raised_grad0", {})


def test_what_is_not_known_is_refused() -> None:
    b = ProgramBuilder("one")
    b.add("y", "nothing", "n -> n", [b.input("x", (4,), gradient=True)])
    with pytest.raises(PlanError, match="there is no kernel 'nothing'"):
        with_backward(b.build("y"))
    b = ProgramBuilder("two")
    b.add("y", "top_k_grad", "n -> n", [b.input("x", (4,), gradient=True)])
    with pytest.raises(PlanError, match="has no gradient of its input 0"):
        with_backward(b.build("y"))
