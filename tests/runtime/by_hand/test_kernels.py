"""Kernels with torch where types and indices are not the plain ones."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention.bias import CausalBias, causal_lower_right

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels import forget, in_torch, run_kernel, runs


def test_a_product_of_integers_and_numbers() -> None:
    call = KernelCall("einsum", ((("n",),), (("n",),)), ((("n",),),), {"n": 2}, {"n": 0})
    made, = run_kernel(call, [torch.tensor([2, 3]), torch.tensor([0.5, 1.5], dtype=torch.float64)])
    assert made.dtype == torch.float64 and made.tolist() == [1.0, 4.5]


@pytest.mark.parametrize("target", [-1, 3])
def test_a_target_that_is_none_is_refused(target: int) -> None:
    call = KernelCall("cross_entropy", ((("n",), ("v",)), (("n",),)), ((("n",),),), {"n": 2, "v": 3}, {"n": 0, "v": 0})
    with pytest.raises(ValueError, match="a target is not one of 0 to 2, nor -100"):
        run_kernel(call, [torch.zeros(2, 3), torch.tensor([0, target])])


def test_a_row_of_padding_has_no_gradient() -> None:
    call = KernelCall("embedding_grad", ((("n",), ("m",)), (("n",),)), ((("v",), ("m",)),), {"n": 3, "v": 2, "m": 1},
                      {"n": 0, "v": 2, "m": 0}, {"padding": 3})
    made, = run_kernel(call, [torch.ones(3, 1), torch.tensor([2, 3, 2])])
    assert made.tolist() == [[2.0], [0.0]]


def test_a_function_of_ones_own_has_the_gradients_of_autograd() -> None:
    @in_torch("cubed")
    def cubed(x: torch.Tensor, *, times: float) -> torch.Tensor:
        return times * x**3

    try:
        axes = (("n",),)
        call = KernelCall("cubed", (axes,), (axes,), {"n": 2}, {"n": 0}, {"times": 2.0})
        made, = run_kernel(call, [torch.tensor([1.0, 2.0])])
        back = KernelCall("cubed_grad0", (axes, axes), (axes,), {"n": 2}, {"n": 0}, {"times": 2.0})
        gradient, = run_kernel(back, [torch.ones(2), torch.tensor([1.0, 2.0])])
        assert made.tolist() == [2.0, 16.0] and gradient.tolist() == [6.0, 24.0]
        with pytest.raises(ValueError, match="there is a kernel 'cubed' already"):
            in_torch("cubed")(cubed)
    finally:
        forget("cubed")


def test_drawing_and_strides_are_refused() -> None:
    for target in ("aten.bernoulli.default", "aten.as_strided.default", "aten.no_such.default", "nothing.here.default"):
        assert not runs("aten.one", {"target": f"torch.ops.{target}"})
    assert runs("aten.one", {"target": "torch.ops.aten.cumprod.default"})


def test_an_operator_that_writes_in_place_leaves_what_it_reads() -> None:
    x = torch.ones(3)
    attributes = {"target": "torch.ops.aten.sub_.Tensor", "arguments": [{"tensor": 0}, {"tensor": 0}], "keywords": {},
                  "given": (0,)}
    made, = run_kernel(KernelCall("aten.sub_", ((("n",),),), ((("n",),),), {"n": 3}, {}, attributes), [x])
    assert made.tolist() == [0, 0, 0] and x.tolist() == [1, 1, 1]


@pytest.mark.parametrize("first", [0, 2, 6])
def test_a_part_of_causal_attention_needs_no_matrix_of_its_own(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, dtype=torch.float64) for _ in range(3))
    called: list[tuple[int, ...]] = []

    def noted(*size: int) -> CausalBias:
        called.append(size)
        return causal_lower_right(*size)

    whole = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    monkeypatch.setattr("weft.runtime.by_hand.operators.causal_lower_right", noted)
    axes = ((("b",), ("h",), ("s",), ("d",)), (("b",), ("h",), ("t",), ("d",)), (("b",), ("h",), ("t",), ("e",)))
    call = KernelCall("attention", axes, ((("b",), ("h",), ("s",), ("e",)),), {
        "b": 2, "h": 3, "s": 2, "t": 8, "d": 4, "e": 4}, {"s": first}, {"causal": True})
    made, = run_kernel(call, [q[:, :, first:first + 2], k, v])
    assert torch.allclose(made, whole[:, :, first:first + 2], rtol=1e-12, atol=1e-12)
    assert called == [(2, first + 2)]
