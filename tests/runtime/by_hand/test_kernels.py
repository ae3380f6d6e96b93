"""Kernels with torch where types and indices are not the plain ones."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.by_hand.instructions import KernelCall
from weft.runtime.by_hand.kernels import KERNELS, in_torch, run_kernel


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
        with pytest.raises(ValueError, match="there is a kernel 'cubed' for torch already"):
            in_torch("cubed")(cubed)
    finally:
        for kind in [name for name in KERNELS if name.startswith("cubed")]:
            del KERNELS[kind]
